/* SPDX-License-Identifier: MIT */
/*
 * barrier.c - barriers: a fixed number of threads wait for each other.
 *
 * The last thread to arrive releases all threads in the list, under the guard. A waiter that times out or is
 * cancelled takes its arrival back if it is still in the list. If it is not, the last thread has arrived meanwhile
 * and counted it: the waiter has passed, despite the time-out, and a cancellation is requested again.
 *
 * arrived counts the threads in the list. leaving counts the threads that the last one released although they had
 * timed out or been cancelled: they still have to take the guard. The last thread may destroy the barrier at once,
 * so destroy waits for them. Threads that were woken do not touch the barrier any more.
 */
#include "core/turn.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

static bool is_last_locked(const struct rouse_barrier *b)
{
    return b->arrived + 1 >= b->parties;
}

static void release_all_locked(struct rouse_barrier *b, const void *site,
                               struct rsi_claimed *claimed)
{
    for (struct rouse_thread *t; (t = rsi_waitlist_claim_first(&b->waiters, 0, site));)
        rsi_claimed_add(claimed, t);
    b->leaving += b->arrived - claimed->count;
    b->arrived = 0;
}

/* Returns the result of the call: 0 if the barrier opened before the caller could leave. */
static RSI_COLD int leave(struct rouse_barrier *b, struct rouse_thread *self, int result)
{
    rsi_test_delay();
    rsi_guard_lock(&b->guard);
    bool is_taken_back = rsi_waitlist_leave(&b->waiters, self);
    if (is_taken_back)
        b->arrived--;
    else
        b->leaving--;
    rsi_guard_unlock(&b->guard);
    if (is_taken_back)
        return result;
    rsi_waitlist_verdict(self, ROUSE_VERDICT_USEFUL);
    if (result == -ECANCELED)
        (void)rouse_thread_cancel(self);
    return 0;
}

static int wait_until(struct rouse_barrier *b, const void *site, uint64_t deadline_ns,
                      unsigned flags)
{
    struct rouse_thread *self = rsi_self();
    struct rsi_claimed claimed = { 0 };
    rsi_turn_spend(self, 1);
    rsi_guard_lock(&b->guard);
    if (is_last_locked(b)) {
        release_all_locked(b, site, &claimed);
        rsi_guard_unlock(&b->guard);
        rsi_claimed_publish(&claimed);
        return 1;
    }
    b->arrived++;
    uint64_t ticket = rsi_park_prepare(self, ROUSE_WAIT_BARRIER, b, site, deadline_ns, flags);
    rsi_waitlist_push_back(&b->waiters, self);
    rsi_guard_unlock(&b->guard);
    rsi_test_delay();
    int result = rsi_park_commit(self, ticket);
    return result < 0 ? leave(b, self, result) : 0;
}

void rouse_barrier_init(struct rouse_barrier *b, uint32_t parties, const char *name)
{
    *b = (struct rouse_barrier)ROUSE_BARRIER_INIT_NAMED(parties, name);
}

RSI_NOINLINE int rouse_barrier_wait(struct rouse_barrier *b)
{
    return wait_until(b, RSI_CALLER(), ROUSE_FOREVER, 0);
}

RSI_NOINLINE int rouse_barrier_wait_until(struct rouse_barrier *b, uint64_t deadline_ns)
{
    return wait_until(b, RSI_CALLER(), deadline_ns, RSI_PARK_CANCELLABLE);
}

RSI_NOINLINE int rouse_barrier_wait_try(struct rouse_barrier *b)
{
    struct rsi_claimed claimed = { 0 };
    rsi_turn_spend(rsi_self(), 1);
    rsi_guard_lock(&b->guard);
    bool is_last = is_last_locked(b);
    if (is_last)
        release_all_locked(b, RSI_CALLER(), &claimed);
    rsi_guard_unlock(&b->guard);
    rsi_claimed_publish(&claimed);
    return is_last ? 1 : -EBUSY;
}

RSI_NOINLINE void rouse_barrier_destroy(struct rouse_barrier *b)
{
    for (;;) {
        rsi_guard_lock(&b->guard);
        if (b->waiters.first)
            rsi_misuse("barrier", b, b->name, "destroyed while waited for", RSI_CALLER(), NULL);
        uint32_t leaving = b->leaving;
        rsi_guard_unlock(&b->guard);
        if (leaving == 0)
            return;
        rouse_thread_yield();
    }
}
