/* SPDX-License-Identifier: MIT */
/*
 * park.h - how every thread waits and is woken.
 *
 * Public within librouse: sync/ and io/ may include it. park.c has the claim word's states and the races it
 * settles (waker against time-out against cancel); switch.h has the step from one stack to the next.
 *
 * The waiter:
 *     ticket = rsi_park_prepare(self, kind, object, site, deadline_ns, flags);
 *     add (self, ticket) to the list where wakers look, under the object's guard; or call rsi_park_abandon
 *     result = rsi_park_commit(self, ticket);
 * The waker:
 *     if (rsi_park_claim(t, ticket, result, site)) rsi_park_publish(t);
 * Exactly one claim of a ticket succeeds: a waker's, the timer's or a cancel's. Only the winner writes the
 * second half of the wait record and makes the thread runnable. Between prepare and commit the waiter must not
 * block, and it must either commit or abandon a prepared wait.
 *
 * At the time of a late claim t may have ended and its block may belong to another thread. That is safe:
 * control blocks are never unmapped and tickets never repeat, so the late claim fails.
 */
#ifndef RSI_CORE_PARK_H
#define RSI_CORE_PARK_H

#include "core/exec.h"
#include "core/observe.h"
#include "core/waiter.h"

#define RSI_PARK_CANCELLABLE 1u

RSI_INLINE uint64_t rsi_park_prepare(struct rouse_thread *self, enum rouse_wait_kind kind,
                                     const void *object, const void *site, uint64_t deadline_ns,
                                     unsigned flags)
{
    struct rsi_waiter *waiter = rsi_waiter(self);
    /* Atomic, since the deadlock detector reads it at any time. */
    rsi_store_relaxed(&waiter->record.kind, (uint8_t)kind);
    waiter->record.object = object;
    waiter->record.wait_site = site;
    uint64_t ticket = (rsi_load_relaxed(&waiter->claim) | 3) +
                      ((flags & RSI_PARK_CANCELLABLE) ? 3 : 2);
    rsi_store_relaxed(&waiter->deadline_ns, deadline_ns);
    rsi_store_release(&waiter->claim, ticket); /* pairs with the acquires in fire and cancel */
    return ticket;
}

/*
 * Sleep until the ticket is claimed. Returns the claimer's result, -ETIMEDOUT or -ECANCELED. If the deadline
 * has passed, a waker that claimed first still wins. Always lets other threads run first.
 */
int rsi_park_commit(struct rouse_thread *self, uint64_t ticket);

/*
 * rsi_park_commit for a kernel or foreign thread that waits for descriptors. Also returns 0 when ppoll reports
 * an event or an error on one of them (see their revents), or ppoll's own error. After any return the ticket
 * can no longer be claimed.
 */
struct pollfd;
int rsi_park_commit_ppoll(struct rouse_thread *self, uint64_t ticket, struct pollfd *fds,
                          size_t count);

/* Take back a prepared wait. False: it was already claimed and must be committed to get the result. */
bool rsi_park_abandon(struct rouse_thread *self, uint64_t ticket);

struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site);

/*
 * The deciding step of a claim. The winner then calls rsi_park_claimed and continues with the t that it
 * returns; so the compiler need not keep t over a call that is rarely made.
 */
RSI_INLINE bool rsi_park_claim_bare(struct rouse_thread *t, uint64_t ticket, int result)
{
    struct rsi_waiter *waiter = rsi_waiter(t);
    uint64_t expected = ticket;
    /*
     * The three lines from sp up are what t touches first when it runs: its frame in the library, and its caller's.
     * (rsi_queue_fetch fetches two: more gained nothing there.) sp is arbitrary if the claim is late.
     */
    uintptr_t sp = (uintptr_t)rsi_load_relaxed(&waiter->ctx.sp);
    __builtin_prefetch((const void *)sp);
    __builtin_prefetch((const void *)(sp + RSI_CACHE_LINE));
    __builtin_prefetch((const void *)(sp + 2 * RSI_CACHE_LINE));
    rsi_test_delay();
    if (rsi_unlikely(!rsi_cas_acq_rel(&waiter->claim, &expected, ticket & ~UINT64_C(3))))
        return false;
    waiter->result = result;
    return true;
}

RSI_INLINE struct rouse_thread *rsi_park_claimed(struct rouse_thread *t, int result,
                                                 const void *site)
{
    return rsi_unlikely(rsi_obs_is_on()) ? rsi_account_wake(t, result, site) : t;
}

/*
 * Try to end t's wait.
 *
 * result   0 or positive for the waiter's own use, or -errno
 * site     the wake site
 * Returns  true if the caller won. It must then call rsi_park_publish(t) exactly once, soon. It may hold guards
 *          while it claims and publish after it releases them.
 */
RSI_INLINE bool rsi_park_claim(struct rouse_thread *t, uint64_t ticket, int result,
                               const void *site)
{
    if (!rsi_park_claim_bare(t, ticket, result))
        return false;
    (void)rsi_park_claimed(t, result, site);
    return true;
}
void rsi_park_publish(struct rouse_thread *t);

/* Publish many threads, linked through rsi_waiter.next up to NULL. Other workers are woken only once. */
void rsi_park_publish_list(struct rouse_thread *first);

/*
 * Record a debt of self (RSI_PARK_OWES): self was woken for an event that other threads wait for too, and must
 * wake the next of them before it parks or ends, unless it handles the event first. what identifies the waiters.
 * settle(what) passes the event on; park.c calls it when self is about to end or to park (between prepare and commit).
 * settle may take guards, claim and publish, but must not block. Every call passes the same function.
 */
void rsi_park_owe(struct rouse_thread *self, uint32_t what, void (*settle)(uint32_t what));

RSI_INLINE bool rsi_park_owes(struct rouse_thread *self)
{
    return (rsi_load_relaxed(&rsi_waiter(self)->cancel) & RSI_PARK_OWES) != 0;
}

/* Returns the debt of self. clear: also clear it. */
uint32_t rsi_park_debt(struct rouse_thread *self, bool clear);

#endif
