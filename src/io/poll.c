/* SPDX-License-Identifier: MIT */
/*
 * poll.c - wait for any of many descriptors.
 *
 * Problem: each thread that polls waits in many places at once, and every event is to wake those only whose
 * present set has it. So a call lists a waiter for each descriptor and side of its set, with the events that
 * it asks for, and takes them all back before it returns. Nothing outlives the call; the only locks are the
 * guards of the descriptors, one at a time.
 *
 *   1  seen = edges, for each
 *   2  ask the kernel, by one ppoll that does not wait; something is ready: done
 *   3  arm what is not armed
 *   4  prepare; list each, comparing edges with seen under its guard. Other than seen: take all back, go to 1
 *   5  commit; take all back, go to 1
 *
 * No wake-up is lost: what becomes ready after 2 is an event that is counted after 1 (fdtable.h has why),
 * so that either 4 finds the edge or the edge finds the waiter. A claim ends the wait once; the events that
 * come later find waiters whose claim fails, and leave them to the thread, which asks the kernel anyway.
 *
 * A wake-up after which nothing is ready has lost a race: the event had come (the filter saw it), and
 * somebody took what it announced. It goes on to sleep till the same deadline.
 *
 * A descriptor closed meanwhile is known by its generation, which is compared after each look of the
 * kernel: the number may be another's by then.
 *
 * Kernel and foreign threads sleep in ppoll; they are listed so that a close reaches them.
 *
 * Rejected: one look at the kernel before 1, so that a set that is ready is not walked: each sleep costs one
 * more ppoll of the whole set. Rejected: looking at the descriptor of the event alone after a wake-up: the
 * caller is to be told of all that is ready.
 */
#include "io/ready.h"

#include <rouse/poll.h>

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_COST 128u /* of a turn's 1,024 units: eight looks that do not block */
#define SMALL_SET 12   /* slots on the thread's stack */

_Static_assert(EPOLLIN == POLLIN && EPOLLRDHUP == POLLRDHUP && EPOLLWRBAND == POLLWRBAND,
               "poll and epoll call the events by the same numbers");

/* One side of one descriptor. */
struct slot {
    struct rsi_fd_waiter waiter;
    struct rsi_fd_ref ref;
    uint32_t seen;  /* edges before the last look */
    uint32_t index; /* of the descriptor in fds */
    uint8_t side;
};

struct poll_call {
    struct rouse_thread *self;
    struct pollfd *fds;
    nfds_t count;
    uint64_t deadline_ns;
    const void *site;
    struct slot *slots;
    uint32_t slot_count;
    bool is_user;
};

/* sleep's result: an edge has come since the look */
#define LOOK_AGAIN 1

static void slot_add(struct poll_call *call, uint32_t index, const struct rsi_fd_ref *ref,
                     uint8_t side, uint32_t events)
{
    struct slot *slot = &call->slots[call->slot_count++];
    *slot = (struct slot){ .waiter = { .thread = call->self,
                                       .events = events | RSI_FD_END_EVENTS,
                                       .kind = call->is_user ? RSI_FD_POLLER : RSI_FD_WATCHER },
                           .ref = *ref,
                           .index = index,
                           .side = side };
}

/* Two slots at most for each descriptor. Returns 0 or -errno. */
static int slots_make(struct poll_call *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        uint32_t events = (uint16_t)call->fds[i].events;
        struct rsi_fd_ref ref;
        if (call->fds[i].fd < 0)
            continue;
        int result = rsi_fdtable_ref(call->fds[i].fd, &ref);
        if (result == -EBADF)
            continue; /* the kernel will say so */
        if (result < 0)
            return result;
        if ((events & RSI_FD_WRITE_EVENTS) != 0)
            slot_add(call, i, &ref, RSI_FD_WRITE, events & RSI_FD_WRITE_EVENTS);
        if ((events & RSI_FD_READ_EVENTS) != 0 || (events & RSI_FD_WRITE_EVENTS) == 0)
            slot_add(call, i, &ref, RSI_FD_READ, events & RSI_FD_READ_EVENTS);
    }
    return 0;
}

static uint32_t slots_wanted(const struct pollfd *fds, nfds_t count)
{
    uint32_t wanted = 0;
    for (nfds_t i = 0; i < count; i++) {
        uint32_t events = (uint16_t)fds[i].events;
        if (fds[i].fd >= 0)
            wanted += (events & RSI_FD_WRITE_EVENTS) != 0 && (events & RSI_FD_READ_EVENTS) != 0 ? 2
                                                                                                : 1;
    }
    return wanted;
}

static struct rsi_fd_side *side_of(const struct slot *slot)
{
    return &slot->ref.entry->sides[slot->side];
}

/* Acquire: pairs with rsi_ready_event's release; the look must not seem to begin before it. */
static void slots_see(struct poll_call *call)
{
    for (uint32_t i = 0; i < call->slot_count; i++)
        call->slots[i].seen = rsi_load_acquire(&side_of(&call->slots[i])->edges);
}

static long look(const struct poll_call *call)
{
    const struct timespec zero = { 0, 0 };
    long ready;
    do {
        ready = rsi_syscall5(SYS_ppoll, call->fds, call->count, &zero, 0, 0);
    } while (ready == -EINTR);
    for (uint32_t i = 0; ready >= 0 && i < call->slot_count; i++) {
        const struct slot *slot = &call->slots[i];
        /* Acquire: pairs with end_generation. */
        if (rsi_likely(rsi_load_acquire(&slot->ref.entry->generation) == slot->ref.generation))
            continue;
        ready += call->fds[slot->index].revents == 0;
        call->fds[slot->index].revents = POLLNVAL;
    }
    return ready;
}

static struct rsi_io_op op_of(const struct poll_call *call, const struct slot *slot)
{
    return (
        struct rsi_io_op){ .ref = slot->ref, .fd = call->fds[slot->index].fd, .side = slot->side };
}

/* Have the poller watch all. What cannot be watched (-EPERM) has no events: it is listed for its close. */
static int slots_arm(struct poll_call *call)
{
    for (uint32_t i = 0; i < call->slot_count; i++) {
        struct slot *slot = &call->slots[i];
        uint8_t bit = (uint8_t)(1u << slot->side);
        if (rsi_likely((rsi_load_relaxed(&slot->ref.entry->armed) & bit) != 0) ||
            slot->waiter.kind == RSI_FD_WATCHER)
            continue;
        struct rsi_io_op op = op_of(call, slot);
        int result = rsi_epoll_arm(&op, bit);
        if (result == -EPERM)
            slot->waiter.kind = RSI_FD_WATCHER;
        else if (result == -EBADF)
            return LOOK_AGAIN; /* closed: rouse_close's is known by now, close(2)'s by the kernel */
        else if (result < 0)
            return result;
    }
    return 0;
}

/* False: it is not to be waited for as things are. */
static bool slot_list(struct slot *slot, uint64_t ticket)
{
    struct rsi_fd *entry = slot->ref.entry;
    struct rsi_fd_side *side = side_of(slot);
    uint8_t bit = (uint8_t)(1u << slot->side);
    slot->waiter.ticket = ticket;
    rsi_guard_lock(&entry->guard);
    bool is_good = entry->generation == slot->ref.generation;
    if (slot->waiter.kind != RSI_FD_WATCHER)
        is_good = is_good && (entry->armed & bit) != 0 && side->edges == slot->seen;
    if (is_good)
        rsi_fdtable_list_locked(side, &slot->waiter);
    rsi_guard_unlock(&entry->guard);
    return is_good;
}

static void slots_unlist(struct poll_call *call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = &call->slots[i];
        /* Though a waker may have taken it off: then that one may still be reading it. */
        rsi_guard_lock(&slot->ref.entry->guard);
        rsi_fdtable_unlist_locked(side_of(slot), &slot->waiter);
        rsi_guard_unlock(&slot->ref.entry->guard);
    }
}

/* 3 to 5 above. Returns LOOK_AGAIN, or how the wait was ended: 0 by an event, -errno. */
static int sleep_once(struct poll_call *call)
{
    int result = slots_arm(call);
    if (result != 0)
        return result;
    uint64_t ticket = rsi_park_prepare(call->self, ROUSE_WAIT_POLL,
                                       (const void *)(uintptr_t)call->count, call->site,
                                       call->deadline_ns, RSI_PARK_CANCELLABLE);
    uint32_t listed = 0;
    while (listed < call->slot_count && slot_list(&call->slots[listed], ticket))
        listed++;
    if (rsi_unlikely(listed < call->slot_count) && rsi_park_abandon(call->self, ticket))
        result = LOOK_AGAIN;
    else if (call->is_user)
        result = rsi_park_commit(call->self, ticket);
    else
        result = rsi_park_commit_ppoll(call->self, ticket, call->fds, call->count);
    slots_unlist(call, listed);
    return result;
}

static bool is_past(uint64_t deadline_ns)
{
    return deadline_ns == 0 || (deadline_ns != ROUSE_FOREVER && deadline_ns <= rsi_now_ns());
}

static long wait_for_events(struct poll_call *call)
{
    bool was_woken = false, is_over = false;
    for (;;) {
        slots_see(call);
        long ready = look(call);
        if (ready != 0)
            return ready;
        if (was_woken)
            rsi_park_verdict(call->self, ROUSE_VERDICT_LOST_RACE);
        if (is_over || (is_past(call->deadline_ns) && !rouse_thread_cancel_pending()))
            return 0;
        int result = sleep_once(call);
        was_woken = result == 0 && call->is_user;
        is_over = result == -ETIMEDOUT; /* what came just before is there all the same */
        if (result < 0 && result != -ETIMEDOUT && result != -EBADF)
            return result;
    }
}

static int do_poll(struct pollfd *fds, nfds_t count, uint64_t deadline_ns, const void *site)
{
    struct slot small[SMALL_SET];
    struct poll_call call = { .self = rsi_self(),
                              .fds = fds,
                              .count = count,
                              .deadline_ns = deadline_ns,
                              .site = site,
                              .slots = small };
    if (fds == NULL && count != 0)
        return -EFAULT;
    if (count > RSI_FD_CHUNKS * RSI_FD_CHUNK)
        return -EINVAL;
    call.is_user = rsi_is_user(call.self);
    rsi_turn_spend(call.self, LOOK_COST);
    if (is_past(deadline_ns) && !rouse_thread_cancel_pending())
        return (int)look(&call);
    uint32_t wanted = slots_wanted(fds, count);
    if (wanted > SMALL_SET)
        call.slots = malloc(wanted * sizeof *call.slots);
    if (call.slots == NULL)
        return -ENOMEM;
    long result = slots_make(&call);
    if (result == 0)
        result = wait_for_events(&call);
    if (call.slots != small)
        free(call.slots);
    return (int)result;
}

RSI_NOINLINE int rouse_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    uint64_t deadline_ns = 0;
    if (timeout_ms < 0)
        deadline_ns = ROUSE_FOREVER;
    else if (timeout_ms > 0)
        deadline_ns = rsi_now_ns() + (uint64_t)timeout_ms * 1000000;
    return do_poll(fds, count, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE int rouse_poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns)
{
    return do_poll(fds, count, deadline_ns, RSI_CALLER());
}
