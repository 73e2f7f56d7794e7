/* SPDX-License-Identifier: MIT */
/*
 * waiters.c - lists the threads that wait for each object, so that a wake-up that passes through us can mark its
 * waiter.
 *
 * libc keeps its own order of waiters, which we cannot see. We mark the first waiter that has no mark. If an unmarked
 * thread returns with success while another waiter of the object is marked, it takes that mark over. A marked thread
 * that gives up passes its mark to an unmarked waiter. So the number of waits that a wake-up ended never exceeds the
 * number of wake-ups, and no wake-up is lost while a thread waits that it may have been for.
 */
#include "record/waiters.h"

#include "obs/site.h"

#include <rouse/obs.h>

#include <string.h>

#define RELEASED_MOST 32u /* waiters of a broadcast whose marks a release looks at */

struct rpi_waiters rpi_waiters_lists[RPI_WAITERS_LISTS];

static void append_locked(struct rpi_waiters *queue, struct rpi_thread *thread)
{
    thread->next = NULL;
    thread->previous = queue->last;
    if (queue->last)
        queue->last->next = thread;
    else
        rsi_store_relaxed(&queue->first, thread);
    queue->last = thread;
}

void rpi_waiters_join(struct rpi_thread *self, const void *object)
{
    struct rpi_waiters *queue = rpi_waiters_of(object);
    self->mark = (struct rpi_mark){ 0 };
    rsi_guard_lock(&queue->guard);
    rsi_store_relaxed(&self->object, object);
    append_locked(queue, self);
    rsi_guard_unlock(&queue->guard);
}

/* The first waiter of object that has a mark, or has none. */
static struct rpi_thread *find_locked(const struct rpi_waiters *queue, const void *object,
                                      bool is_marked)
{
    for (struct rpi_thread *thread = queue->first; thread; thread = thread->next)
        if (thread->object == object && (thread->mark.tsc != 0) == is_marked)
            return thread;
    return NULL;
}

static void unlink_locked(struct rpi_waiters *queue, struct rpi_thread *self)
{
    if (self->previous)
        self->previous->next = self->next;
    else
        rsi_store_relaxed(&queue->first, self->next);
    *(self->next ? &self->next->previous : &queue->last) = self->previous;
}

/* Lock the list that self is in. Until then another thread may move self to another list. */
static struct rpi_waiters *lock_own(const struct rpi_thread *self)
{
    for (;;) {
        struct rpi_waiters *queue = rpi_waiters_of(rsi_load_relaxed(&self->object));
        rsi_guard_lock(&queue->guard);
        if (queue == rpi_waiters_of(rsi_load_relaxed(&self->object)))
            return queue;
        rsi_guard_unlock(&queue->guard);
    }
}

void rpi_waiters_leave(struct rpi_thread *self, bool is_woken, struct rpi_mark *mark)
{
    struct rpi_waiters *queue = lock_own(self);
    struct rpi_thread *other = NULL;
    unlink_locked(queue, self);
    if (is_woken != (self->mark.tsc != 0))
        other = find_locked(queue, self->object, is_woken);
    if (other) {
        struct rpi_mark theirs = other->mark;
        other->mark = self->mark;
        self->mark = theirs;
    }
    *mark = self->mark;
    self->object = NULL;
    rsi_guard_unlock(&queue->guard);
}

/* Whether the waker of a thread at a condition holds the mutex, without which that thread cannot return. */
static void note_held(const struct rpi_thread *self, struct rpi_thread *thread)
{
    const pthread_mutex_t *mutex = thread->mutex;
    if (thread->slot->kind != ROUSE_WAIT_COND || !mutex)
        return;
    const struct rpi_held *held = &self->held[rpi_thread_held_at(mutex)];
    thread->mark.is_held = held->lock == mutex &&
                           rsi_load_relaxed(&mutex->__data.__owner) == self->tid;
    thread->mark.acquired = held->acquired;
}

size_t rpi_waiters_wake(const struct rpi_thread *self, const void *object, enum rpi_wakes which,
                        const void *site)
{
    struct rpi_waiters *queue = rpi_waiters_of(object);
    if (!rpi_waiters_has(object))
        return 0;
    struct rpi_mark mark = { .tsc = rsi_tsc(),
                             .waker_id = (uint64_t)self->tid,
                             .site = rsi_site_of(self->writer, site) };
    size_t count = 0;
    rsi_guard_lock(&queue->guard);
    for (struct rpi_thread *thread = queue->first; thread; thread = thread->next) {
        if (thread->object != object)
            continue;
        bool is_new = thread->mark.tsc == 0;
        if (which == RPI_WAKES_WRITERS_ANEW && thread->slot->kind != ROUSE_WAIT_WRITE_LOCK)
            continue;
        if (is_new || which >= RPI_WAKES_ALL_ANEW) {
            thread->mark = mark;
            note_held(self, thread);
        }
        count += is_new;
        if (is_new && which == RPI_WAKES_ONE)
            break;
    }
    rsi_guard_unlock(&queue->guard);
    return count;
}

size_t rpi_waiters_gather(struct rpi_thread *self, const void *object, size_t count)
{
    struct rpi_waiters *queue = rpi_waiters_of(object);
    struct rpi_mark mark = { .tsc = rsi_tsc(),
                             .waker_id = (uint64_t)self->tid,
                             .site = self->slot->wait_site };
    size_t waiting = 0;
    rsi_guard_lock(&queue->guard);
    for (const struct rpi_thread *thread = queue->first; thread; thread = thread->next)
        waiting += thread->object == object && thread->mark.tsc == 0;
    if (waiting == count) {
        unlink_locked(queue, self);
        self->object = NULL;
        for (struct rpi_thread *thread = queue->first; thread; thread = thread->next)
            if (thread->object == object && thread->mark.tsc == 0)
                thread->mark = mark;
    }
    rsi_guard_unlock(&queue->guard);
    return waiting == count ? count : 0;
}

/*
 * The next waiter of a condition that is marked, and that returns with mutex. Those that were marked first are the
 * first in the list, usually. The others are idle, and may be many.
 */
static struct rpi_thread *next_woken_locked(struct rpi_thread *thread, const void *object,
                                            const pthread_mutex_t *mutex)
{
    for (; thread; thread = thread->next)
        if (thread->object == object && thread->mark.tsc == 0)
            return NULL;
        else if (thread->object == object && thread->mutex == mutex)
            return thread;
    return NULL;
}

/* Since when self has held the mutex without a break, as far as is known, after thread was woken. 0: not known. */
static uint64_t held_since(const struct rpi_thread *self, const pthread_mutex_t *mutex,
                           const struct rpi_mark *mark)
{
    const struct rpi_held *held = &self->held[rpi_thread_held_at(mutex)];
    if (held->lock != mutex)
        return 0;
    if (mark->is_held && mark->waker_id == (uint64_t)self->tid && mark->acquired == held->acquired)
        return mark->tsc;
    if (self->mutex != mutex || self->returned_acquired != held->acquired)
        return 0;
    return self->returned_tsc > mark->tsc ? self->returned_tsc : mark->tsc;
}

void rpi_waiters_release(const struct rpi_thread *self, const pthread_mutex_t *mutex, uint64_t site)
{
    struct rpi_waiters *queue = rpi_waiters_of(self->woken_at);
    uint64_t now = rsi_tsc(), since;
    unsigned left = RELEASED_MOST;
    rsi_guard_lock(&queue->guard);
    for (struct rpi_thread *thread = queue->first; left > 0; thread = thread->next, left--) {
        thread = next_woken_locked(thread, self->woken_at, mutex);
        if (!thread)
            break;
        struct rpi_mark *mark = &thread->mark;
        if ((since = held_since(self, mutex, mark)) == 0 || since >= now)
            continue;
        mark->held_ticks += now - since;
        mark->released_tsc = now;
        mark->releaser_id = (uint64_t)self->tid;
        mark->released_site = site;
        mark->holder_site = (uintptr_t)self->held[rpi_thread_held_at(mutex)].site;
    }
    rsi_guard_unlock(&queue->guard);
}

void rpi_waiters_unmark(const struct rpi_thread *self, const void *object, uint64_t since,
                        size_t most)
{
    struct rpi_waiters *queue = rpi_waiters_of(object);
    rsi_guard_lock(&queue->guard);
    for (struct rpi_thread *thread = queue->last; thread && most > 0; thread = thread->previous)
        if (thread->object == object && thread->mark.tsc >= since &&
            thread->mark.waker_id == (uint64_t)self->tid) {
            thread->mark = (struct rpi_mark){ 0 };
            most--;
        }
    rsi_guard_unlock(&queue->guard);
}

void rpi_waiters_unmark_released(const pthread_mutex_t *mutex, const struct rpi_mark *taken)
{
    struct rpi_waiters *queue = rpi_waiters_of(mutex);
    if (!rpi_waiters_has(mutex))
        return;
    rsi_guard_lock(&queue->guard);
    for (struct rpi_thread *thread = queue->last; thread; thread = thread->previous)
        if (thread->object == mutex && thread->mark.waker_id == taken->releaser_id &&
            thread->mark.tsc <= taken->released_tsc) {
            thread->mark = (struct rpi_mark){ 0 };
            break;
        }
    rsi_guard_unlock(&queue->guard);
}

/* Marked waiters move too: the kernel may have woken another waiter instead, which then takes the mark over. */
void rpi_waiters_move(const void *from, const void *to, size_t most)
{
    struct rpi_waiters *queue = rpi_waiters_of(from), *target = rpi_waiters_of(to);
    bool is_other = queue != target;
    if (!rpi_waiters_has(from))
        return;
    rsi_guard_lock(queue < target ? &queue->guard : &target->guard);
    if (is_other)
        rsi_guard_lock(queue < target ? &target->guard : &queue->guard);
    for (struct rpi_thread *thread = queue->first, *next; thread && most > 0; thread = next) {
        next = thread->next;
        if (thread->object != from)
            continue;
        most -= thread->mark.tsc == 0;
        rsi_store_relaxed(&thread->object, to);
        if (is_other) {
            unlink_locked(queue, thread);
            append_locked(target, thread);
        }
    }
    if (is_other)
        rsi_guard_unlock(&target->guard);
    rsi_guard_unlock(&queue->guard);
}

void rpi_waiters_note_wake_slow(const void *object, enum rpi_wakes which, const void *site)
{
    struct rpi_thread *self = rpi_self;
    if ((!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return;
    (void)rpi_waiters_wake(self, object, which, site);
    self->is_busy = false;
}

void rpi_waiters_child(void)
{
    memset(rpi_waiters_lists, 0, sizeof rpi_waiters_lists);
}
