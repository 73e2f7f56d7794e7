/* SPDX-License-Identifier: MIT */
/*
 * poll.c - wait for any of many descriptors.
 *
 * Problem: a thread that polls waits in many places at once, and an event must wake only threads whose current set
 * includes it. So a call lists one waiter per descriptor and side of its set, with the requested events, and unlists
 * them all before it returns. Nothing outlives the call. The only locks are the guards of the descriptors, one at a
 * time.
 *
 *   1  seen = edges, for each
 *   2  ask the kernel with one ppoll that does not wait. If something is ready: done
 *   3  arm what is not armed
 *   4  prepare; list each, comparing edges with seen under its guard. If they differ: unlist all, go to 1
 *   5  commit; unlist all, go to 1
 *
 * No wake-up is lost: readiness after 2 is an event that is counted after 1 (fdtable.h shows why), so either 4 finds
 * the edge or the edge finds the waiter. A claim ends the wait once. Later events find waiters whose claim fails, and
 * leave them to the thread, which asks the kernel anyway.
 *
 * A wake-up after which nothing is ready has lost a race: an event did arrive, but another thread took what it
 * announced. The call continues to sleep until the same deadline.
 *
 * A descriptor that was closed meanwhile is detected by its generation, which is compared after each ppoll, since the
 * number may name another descriptor by then.
 *
 * Kernel and foreign threads sleep in ppoll. They are listed so that a close reaches them.
 *
 * Exclusive calls are takers: an event of a descriptor wakes one of its takers, either a read or an exclusive poll. A
 * thread woken from an exclusive poll has a debt for that descriptor towards the other takers. The debt is settled
 * when the thread carries out an operation on the descriptor, polls again, parks anywhere, or ends: the kernel is
 * asked, and if the descriptor is still ready the next taker is woken. So while a descriptor is ready and a taker
 * sleeps, there is a running thread with a debt that will park, and core/park settles at each park. Kernel and foreign
 * threads that poll exclusively are woken by events, like user threads.
 *
 * Rejected: one ppoll before 1, so that a ready set is not walked (each sleep then costs one more ppoll of the whole
 * set); after a wake-up, asking only for the event's descriptor (the caller must learn of all ready descriptors).
 */
#include "io/poll.h"

#include "core/turn.h"
#include "io/ready.h"
#include "io/set.h"
#include "io/uring/multishot.h"

#include <rouse/poll.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_COST 128u /* of a turn's 1,024 units: eight calls that do not block */
#define SMALL_SET 12   /* slots on the thread's stack */

_Static_assert(EPOLLIN == POLLIN && EPOLLRDHUP == POLLRDHUP && EPOLLWRBAND == POLLWRBAND,
               "poll and epoll call the events by the same numbers");

/* One side of one descriptor. */
struct slot {
    struct rsi_fd_waiter waiter;
    struct rsi_fd_ref ref;
    uint32_t seen;  /* edges before the last look */
    uint32_t index; /* index of the descriptor in fds */
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
    bool by_events; /* the poller wakes the thread. Otherwise it sleeps in ppoll */
    bool is_exclusive;
    bool is_select;
};

/* a result of sleep_once: an edge has been counted since the look */
#define LOOK_AGAIN INT_MAX

static uint8_t kind_of(const struct poll_call *call)
{
    if (call->is_exclusive)
        return RSI_FD_EXCLUSIVE;
    return call->by_events ? RSI_FD_POLLER : RSI_FD_WATCHER;
}

static void slot_add(struct poll_call *call, uint32_t index, const struct rsi_fd_ref *ref,
                     uint8_t side, uint32_t events)
{
    struct slot *slot = &call->slots[call->slot_count++];
    *slot = (struct slot){ .waiter = { .thread = call->self,
                                       .events = events,
                                       .result = (int32_t)call->slot_count - 1,
                                       .kind = kind_of(call) },
                           .ref = *ref,
                           .index = index,
                           .side = side };
}

/* Which of error and hang-up end the wait for a descriptor with these requested events. */
static short ends_that_count(const struct poll_call *call, short events)
{
    int counting = POLLERR | POLLHUP;
    if (call->is_select) {
        counting = (events & RSI_POLL_IN) != 0 ? RSI_POLL_IN_COUNTS : 0;
        counting |= (events & RSI_POLL_OUT) != 0 ? RSI_POLL_OUT_COUNTS : 0;
        counting &= POLLERR | POLLHUP;
    }
    return (short)counting;
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
            continue; /* the kernel will report it */
        if (result < 0)
            return result;
        uint32_t reads = events & RSI_FD_READ_EVENTS, writes = events & RSI_FD_WRITE_EVENTS;
        uint32_t counting = events | (uint32_t)ends_that_count(call, (short)events);
        if (writes != 0)
            slot_add(call, i, &ref, RSI_FD_WRITE, counting & ~RSI_FD_READ_EVENTS);
        if (reads != 0 || writes == 0)
            slot_add(call, i, &ref, RSI_FD_READ, counting & ~RSI_FD_WRITE_EVENTS);
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

/* Acquire: pairs with rsi_ready_event's release. The look must not appear to begin before it. */
static void slots_see(struct poll_call *call)
{
    for (uint32_t i = 0; i < call->slot_count; i++)
        call->slots[i].seen = rsi_load_acquire(&side_of(&call->slots[i])->edges);
}

/* Data that a ring has received is no longer in the kernel. Returns how many are ready only because of such data. */
static long look_at_multishots(struct pollfd *fds, nfds_t count)
{
    long ready = 0;
    for (nfds_t i = 0; i < count; i++) {
        struct pollfd *one = &fds[i];
        struct rsi_fd *entry = rsi_fdtable_peek(one->fd);
        if (entry == NULL || !rsi_multishot_is_on(entry))
            continue;
        uint32_t wanted = (uint16_t)one->events | RSI_FD_END_EVENTS;
        short events = (short)(rsi_multishot_events(entry, one->fd) & wanted);
        ready += one->revents == 0 && events != 0;
        one->revents |= events;
    }
    return ready;
}

/* Reduce revents to what select counts. Returns how many descriptors are ready, or -EBADF. */
static long count_selected(const struct poll_call *call)
{
    long ready = 0;
    for (nfds_t i = 0; i < call->count; i++) {
        struct pollfd *one = &call->fds[i];
        if ((one->revents & POLLNVAL) != 0)
            return -EBADF;
        one->revents = (short)(one->revents & (one->events | ends_that_count(call, one->events)));
        ready += one->revents != 0;
    }
    return ready;
}

long rsi_poll_look(struct pollfd *fds, nfds_t count)
{
    const struct timespec zero = { 0, 0 };
    long ready;
    do {
        ready = rsi_syscall5(SYS_ppoll, fds, count, &zero, 0, 0);
    } while (ready == -EINTR);
    return ready >= 0 && rsi_backend_has_rings() ? ready + look_at_multishots(fds, count) : ready;
}

static long look(const struct poll_call *call)
{
    long ready = rsi_poll_look(call->fds, call->count);
    for (uint32_t i = 0; ready >= 0 && i < call->slot_count; i++) {
        const struct slot *slot = &call->slots[i];
        /* Acquire: pairs with end_generation. */
        if (rsi_likely(rsi_load_acquire(&slot->ref.entry->generation) == slot->ref.generation))
            continue;
        ready += call->fds[slot->index].revents == 0;
        call->fds[slot->index].revents = POLLNVAL;
    }
    return ready > 0 && call->is_select ? count_selected(call) : ready;
}

static struct rsi_io_op op_of(const struct poll_call *call, const struct slot *slot)
{
    return (
        struct rsi_io_op){ .ref = slot->ref, .fd = call->fds[slot->index].fd, .side = slot->side };
}

static bool is_multishot(const struct slot *slot)
{
    return slot->side == RSI_FD_READ && rsi_multishot_is_on(slot->ref.entry);
}

/* If a ring receives for one of the descriptors, sleep by events: ppoll would not see its data. */
static void slots_follow_rings(struct poll_call *call)
{
    bool found = false;
    for (uint32_t i = 0; i < call->slot_count && !found; i++)
        found = is_multishot(&call->slots[i]);
    if (!found)
        return;
    call->by_events = true;
    for (uint32_t i = 0; i < call->slot_count; i++)
        call->slots[i].waiter.kind = kind_of(call);
}

/* Make the poller watch all. A descriptor that cannot be watched (-EPERM) is listed only for its close. */
static int slots_arm(struct poll_call *call)
{
    if (rsi_unlikely(!call->by_events))
        slots_follow_rings(call);
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
            return LOOK_AGAIN; /* closed: the next look sees that, or the kernel reports it */
        else if (result < 0)
            return result;
    }
    return 0;
}

/* Returns false if the thread must not wait: closed, not armed, or an edge was counted. */
static bool slot_list(struct slot *slot, uint64_t ticket)
{
    struct rsi_fd *entry = slot->ref.entry;
    struct rsi_fd_side *side = side_of(slot);
    uint8_t bit = (uint8_t)(1u << slot->side);
    slot->waiter.ticket = ticket;
    rsi_test_delay();
    rsi_guard_lock(&entry->guard);
    bool is_good = entry->generation == slot->ref.generation;
    if (slot->waiter.kind != RSI_FD_WATCHER)
        is_good = is_good && (entry->armed & bit) != 0 && side->edges == slot->seen;
    else if (is_multishot(slot))
        is_good = false;
    if (is_good)
        rsi_fdtable_list_locked(side, &slot->waiter);
    rsi_guard_unlock(&entry->guard);
    return is_good;
}

static void slots_unlist(struct poll_call *call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = &call->slots[i];
        /* Take the guard even if a waker has unlisted it: the waker may still be reading it. */
        rsi_guard_lock(&slot->ref.entry->guard);
        rsi_fdtable_unlist_locked(side_of(slot), &slot->waiter);
        rsi_guard_unlock(&slot->ref.entry->guard);
    }
}

/* Steps 3 to 5. Returns the slot whose event has ended the wait, LOOK_AGAIN, or -errno. */
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
    else if (call->by_events)
        result = rsi_park_commit(call->self, ticket);
    else
        result = rsi_park_commit_ppoll(call->self, ticket, call->fds, call->count);
    slots_unlist(call, listed);
    return result;
}

/*
 * A debt is the index of a set, or a descriptor and the events that woke the thread, as bits of debt_events. There is
 * no room for the generation: if the number has been reused and is ready, one of its takers gets a spurious wake-up.
 */
#define DEBT_FD_BITS 24
_Static_assert(RSI_FD_CHUNKS *RSI_FD_CHUNK == 1u << DEBT_FD_BITS, "a debt holds any descriptor");
static const short debt_events[] = { POLLIN | POLLRDNORM | POLLRDBAND | POLLMSG, POLLPRI, POLLRDHUP,
                                     POLLOUT | POLLWRNORM | POLLWRBAND };
#define DEBT_EVENTS (sizeof debt_events / sizeof *debt_events)

/* If the descriptor is still ready, wake the next taker of its events. */
static void settle(uint32_t debt)
{
    if (debt >> DEBT_FD_BITS == 0) {
        rsi_set_settle(debt);
        return;
    }
    struct pollfd one = { .fd = (int)(debt & ((1u << DEBT_FD_BITS) - 1)) };
    struct rsi_fd *entry = rsi_fdtable_peek(one.fd);
    struct rsi_fd_batch batch = { NULL, NULL };
    for (unsigned i = 0; i < DEBT_EVENTS; i++)
        if ((debt >> DEBT_FD_BITS & 1u << i) != 0)
            one.events = (short)(one.events | debt_events[i]);
    /* Relaxed: those that count were listed before the event that woke the caller. */
    if (entry == NULL || (rsi_load_relaxed(&entry->sides[RSI_FD_READ].first) == NULL &&
                          rsi_load_relaxed(&entry->sides[RSI_FD_WRITE].first) == NULL))
        return;
    (void)rsi_poll_look(&one, 1);
    uint32_t events = (uint16_t)one.revents;
    if ((events & POLLNVAL) != 0 || events == 0)
        return;
    rsi_guard_lock(&entry->guard);
    if ((events & (RSI_FD_READ_EVENTS | RSI_FD_END_EVENTS)) != 0)
        rsi_fdtable_pass_on_locked(&entry->sides[RSI_FD_READ], events, NULL, &batch);
    if ((events & RSI_FD_WRITE_EVENTS) != 0)
        rsi_fdtable_pass_on_locked(&entry->sides[RSI_FD_WRITE], events, NULL, &batch);
    rsi_guard_unlock(&entry->guard);
    rsi_fdtable_publish(&batch);
}

/* The event of this slot has woken this thread and no other taker: record the debt. */
static void owe(const struct poll_call *call, int woken_by)
{
    const struct pollfd *one = &call->fds[call->slots[woken_by].index];
    uint32_t debt = (uint32_t)one->fd;
    uint32_t events = (uint16_t)one->revents;
    bool has_ended = (events & (POLLERR | POLLHUP)) != 0;
    for (unsigned i = 0; i < DEBT_EVENTS; i++)
        if ((events & (uint16_t)debt_events[i]) != 0 || has_ended)
            debt |= 1u << (DEBT_FD_BITS + i);
    if (events != 0 && (events & POLLNVAL) == 0)
        rsi_park_owe(call->self, debt, settle);
}

void rsi_poll_served_owing(struct rouse_thread *self, int fd, bool is_empty)
{
    uint32_t debt = rsi_park_debt(self, false);
    if (debt >> DEBT_FD_BITS == 0 || (debt & ((1u << DEBT_FD_BITS) - 1)) != (uint32_t)fd)
        return;
    rsi_park_debt(self, true);
    if (!is_empty)
        settle(debt);
}

void rsi_poll_owe_set(struct rouse_thread *self, uint32_t index)
{
    rsi_park_owe(self, index, settle);
}

void rsi_poll_turn_away(struct rouse_thread *self, uint32_t index)
{
    if (rsi_likely(!rsi_park_owes(self)))
        return;
    uint32_t debt = rsi_park_debt(self, true);
    if (debt != index)
        settle(debt);
}

static bool is_past(uint64_t deadline_ns)
{
    return deadline_ns == 0 || (deadline_ns != ROUSE_FOREVER && deadline_ns <= rsi_now_ns());
}

static long wait_for_events(struct poll_call *call)
{
    int woken_by = LOOK_AGAIN;
    bool is_over = false;
    for (;;) {
        slots_see(call);
        long ready = look(call);
        bool was_woken = woken_by >= 0 && woken_by < LOOK_AGAIN && call->by_events;
        if (ready != 0) {
            if (was_woken && call->is_exclusive)
                owe(call, woken_by);
            return ready;
        }
        if (was_woken)
            rsi_park_verdict(call->self, ROUSE_VERDICT_LOST_RACE);
        if (is_over || (is_past(call->deadline_ns) && !rouse_thread_cancel_pending()))
            return 0;
        woken_by = sleep_once(call);
        is_over = woken_by == -ETIMEDOUT; /* look once more: an event may just have arrived */
        if (woken_by < 0 && woken_by != -ETIMEDOUT && woken_by != -EBADF)
            return woken_by;
    }
}

/*
 * Whether ppoll ends for exactly the events that count, so that a kernel thread may sleep in it. ppoll ends for every
 * hang-up and error.
 */
static bool is_ppoll_exact(const struct poll_call *call)
{
    for (nfds_t i = 0; call->is_select && i < call->count; i++)
        if ((call->fds[i].events & RSI_POLL_IN) == 0)
            return false;
    return true;
}

static long look_and_wait(struct poll_call *call)
{
    struct slot small[SMALL_SET];
    uint32_t wanted = slots_wanted(call->fds, call->count);
    call->slots = wanted > SMALL_SET ? malloc(wanted * sizeof *call->slots) : small;
    if (call->slots == NULL)
        return -ENOMEM;
    long result = slots_make(call);
    if (result == 0)
        result = wait_for_events(call);
    if (call->slots != small)
        free(call->slots);
    call->slots = NULL;
    return result;
}

int rsi_poll_wait(struct pollfd *fds, nfds_t count, uint64_t deadline_ns, unsigned flags,
                  const void *site)
{
    struct poll_call call = { .self = rsi_self(),
                              .fds = fds,
                              .count = count,
                              .deadline_ns = deadline_ns,
                              .site = site,
                              .is_exclusive = (flags & RSI_POLL_EXCLUSIVE) != 0,
                              .is_select = (flags & RSI_POLL_SELECT) != 0 };
    if (fds == NULL && count != 0)
        return -EFAULT;
    if (count > RSI_FD_CHUNKS * RSI_FD_CHUNK)
        return -EINVAL;
    call.by_events = call.is_exclusive || rsi_is_user(call.self) || !is_ppoll_exact(&call);
    if (rsi_unlikely(rsi_park_owes(call.self)))
        settle(rsi_park_debt(call.self, true));
    rsi_turn_spend(call.self, LOOK_COST);
    long result = is_past(deadline_ns) && !rouse_thread_cancel_pending() ? look(&call)
                                                                         : look_and_wait(&call);
    rsi_account_call(ROUSE_WAIT_POLL, result);
    return (int)result;
}

static uint64_t deadline_in_ms(int timeout_ms)
{
    if (timeout_ms < 0)
        return ROUSE_FOREVER;
    return timeout_ms > 0 ? rsi_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
}

RSI_NOINLINE int rouse_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return rsi_poll_wait(fds, count, deadline_in_ms(timeout_ms), 0, RSI_CALLER());
}

RSI_NOINLINE int rouse_poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns)
{
    return rsi_poll_wait(fds, count, deadline_ns, 0, RSI_CALLER());
}

RSI_NOINLINE int rouse_poll_exclusive(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return rsi_poll_wait(fds, count, deadline_in_ms(timeout_ms), RSI_POLL_EXCLUSIVE, RSI_CALLER());
}

RSI_NOINLINE int rouse_poll_exclusive_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns)
{
    return rsi_poll_wait(fds, count, deadline_ns, RSI_POLL_EXCLUSIVE, RSI_CALLER());
}
