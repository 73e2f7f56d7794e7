/* SPDX-License-Identifier: MIT */
/*
 * queue.c - who waits for what, so that a wake-up that passes through us finds whom it is for.
 *
 * libc keeps its own order, which is not seen. Here the first that came is marked; a thread that comes back without a
 * mark, while one that still waits for the same has one, takes that over, and a thread that gives up hands its own
 * on. So no more waits are said to be ended by somebody than calls were made to end one, and no call is lost while
 * somebody waits that it may have been for.
 */
#include "preload.h"

#include <string.h>

struct rsi_queue rsi_queues[RSI_QUEUES];

static void append_locked(struct rsi_queue *queue, struct rsi_party *party)
{
    party->next = NULL;
    party->previous = queue->last;
    if (queue->last)
        queue->last->next = party;
    else
        rsi_store_relaxed(&queue->first, party);
    queue->last = party;
}

void rsi_queue_join(struct rsi_party *self, const void *object)
{
    struct rsi_queue *queue = rsi_queue_of(object);
    self->mark = (struct rsi_mark){ 0 };
    rsi_guard_lock(&queue->guard);
    rsi_store_relaxed(&self->object, object);
    append_locked(queue, self);
    rsi_guard_unlock(&queue->guard);
}

/* The first that waits for object and has, or has not, a mark. */
static struct rsi_party *find_locked(const struct rsi_queue *queue, const void *object,
                                     bool is_marked)
{
    for (struct rsi_party *party = queue->first; party; party = party->next)
        if (party->object == object && (party->mark.tsc != 0) == is_marked)
            return party;
    return NULL;
}

static void unlink_locked(struct rsi_queue *queue, struct rsi_party *self)
{
    if (self->previous)
        self->previous->next = self->next;
    else
        rsi_store_relaxed(&queue->first, self->next);
    *(self->next ? &self->next->previous : &queue->last) = self->previous;
}

/* The queue that self is in, locked: until then it may be moved to another. */
static struct rsi_queue *lock_own(const struct rsi_party *self)
{
    for (;;) {
        struct rsi_queue *queue = rsi_queue_of(rsi_load_relaxed(&self->object));
        rsi_guard_lock(&queue->guard);
        if (queue == rsi_queue_of(rsi_load_relaxed(&self->object)))
            return queue;
        rsi_guard_unlock(&queue->guard);
    }
}

void rsi_queue_leave(struct rsi_party *self, bool is_got, struct rsi_mark *mark)
{
    struct rsi_queue *queue = lock_own(self);
    struct rsi_party *other = NULL;
    unlink_locked(queue, self);
    if (is_got != (self->mark.tsc != 0))
        other = find_locked(queue, self->object, is_got);
    if (other) {
        struct rsi_mark theirs = other->mark;
        other->mark = self->mark;
        self->mark = theirs;
    }
    *mark = self->mark;
    self->object = NULL;
    rsi_guard_unlock(&queue->guard);
}

size_t rsi_queue_wake(const struct rsi_party *self, const void *object, enum rsi_wakes whom,
                      const void *site)
{
    struct rsi_queue *queue = rsi_queue_of(object);
    if (!rsi_queue_has(object))
        return 0;
    struct rsi_mark mark = { rsi_tsc(), (uint64_t)self->tid, rsi_site_of(self->writer, site) };
    bool is_one = whom == RSI_WAKES_ONE || whom == RSI_WAKES_HOLDER;
    struct rsi_party *woken = NULL;
    size_t count = 0;
    rsi_guard_lock(&queue->guard);
    for (struct rsi_party *party = queue->first; party; party = party->next) {
        if (party->object != object)
            continue;
        bool is_new = party->mark.tsc == 0;
        if (whom == RSI_WAKES_WRITERS_ANEW && party->slot->kind != ROUSE_WAIT_WRITE_LOCK)
            continue;
        if (is_new || whom >= RSI_WAKES_ALL_ANEW)
            party->mark = mark;
        else if (!woken)
            woken = party;
        count += is_new;
        if (is_new && is_one)
            break;
    }
    if (count == 0 && whom == RSI_WAKES_HOLDER && woken)
        woken->mark = mark;
    rsi_guard_unlock(&queue->guard);
    return count;
}

size_t rsi_queue_gather(struct rsi_party *self, const void *object, size_t count)
{
    struct rsi_queue *queue = rsi_queue_of(object);
    struct rsi_mark mark = { rsi_tsc(), (uint64_t)self->tid, self->slot->wait_site };
    size_t waiting = 0;
    rsi_guard_lock(&queue->guard);
    for (const struct rsi_party *party = queue->first; party; party = party->next)
        waiting += party->object == object && party->mark.tsc == 0;
    if (waiting == count) {
        unlink_locked(queue, self);
        self->object = NULL;
        for (struct rsi_party *party = queue->first; party; party = party->next)
            if (party->object == object && party->mark.tsc == 0)
                party->mark = mark;
    }
    rsi_guard_unlock(&queue->guard);
    return waiting == count ? count : 0;
}

void rsi_queue_unmark(const struct rsi_party *self, const void *object, uint64_t since, size_t most)
{
    struct rsi_queue *queue = rsi_queue_of(object);
    rsi_guard_lock(&queue->guard);
    for (struct rsi_party *party = queue->last; party && most > 0; party = party->previous)
        if (party->object == object && party->mark.tsc >= since &&
            party->mark.waker_id == (uint64_t)self->tid) {
            party->mark = (struct rsi_mark){ 0 };
            most--;
        }
    rsi_guard_unlock(&queue->guard);
}

/* Who is marked goes along: of those it may be another that has been woken, and takes the mark over. */
void rsi_queue_move(const void *from, const void *to, size_t most)
{
    struct rsi_queue *queue = rsi_queue_of(from), *target = rsi_queue_of(to);
    bool is_other = queue != target;
    if (!rsi_queue_has(from))
        return;
    rsi_guard_lock(queue < target ? &queue->guard : &target->guard);
    if (is_other)
        rsi_guard_lock(queue < target ? &target->guard : &queue->guard);
    for (struct rsi_party *party = queue->first, *next; party && most > 0; party = next) {
        next = party->next;
        if (party->object != from)
            continue;
        most -= party->mark.tsc == 0;
        rsi_store_relaxed(&party->object, to);
        if (is_other) {
            unlink_locked(queue, party);
            append_locked(target, party);
        }
    }
    if (is_other)
        rsi_guard_unlock(&target->guard);
    rsi_guard_unlock(&queue->guard);
}

void rsi_queues_child(void)
{
    memset(rsi_queues, 0, sizeof rsi_queues);
}
