/* SPDX-License-Identifier: MIT */
/*
 * waitlist.h - the list of threads that wait for one object, linked through their control blocks.
 *
 * Every call here is made under the object's guard. A thread is in at most one list, since it waits for one object
 * at a time; is_listed says whether it is. It does not begin another wait before it has left the list, so the wait
 * in which a waker finds it is the one that it is listed for.
 *
 * Ending a wait: a waker removes the waiter from the list, claims it, releases the guard and publishes it. A waiter
 * that timed out or was cancelled has been claimed elsewhere: it takes the guard and removes itself, unless a waker
 * has removed it already and, when its claim failed, gone on to the next waiter.
 *
 * Lifetime: a waker that has claimed a waiter and not yet published it may use the object, since that waiter is
 * still inside its call. After publishing, or after releasing the guard if nothing was claimed, the object may be
 * gone.
 */
#ifndef RSI_SYNC_WAITLIST_H
#define RSI_SYNC_WAITLIST_H

#include "base/base.h"
#include "core/park.h"

#include <rouse/sync.h>

RSI_INLINE void rsi_waitlist_push_back(struct rouse_waiters *list, struct rouse_thread *t)
{
    struct rsi_waiter *w = rsi_waiter(t);
    w->next = NULL;
    w->prev = list->last;
    w->is_listed = true;
    if (list->last)
        rsi_waiter(list->last)->next = t;
    else
        list->first = t;
    list->last = t;
}

RSI_INLINE void rsi_waitlist_push_front(struct rouse_waiters *list, struct rouse_thread *t)
{
    struct rsi_waiter *w = rsi_waiter(t);
    w->next = list->first;
    w->prev = NULL;
    w->is_listed = true;
    if (list->first)
        rsi_waiter(list->first)->prev = t;
    else
        list->last = t;
    list->first = t;
}

RSI_INLINE void rsi_waitlist_remove(struct rouse_waiters *list, struct rouse_thread *t)
{
    struct rsi_waiter *w = rsi_waiter(t);
    if (w->prev)
        rsi_waiter(w->prev)->next = w->next;
    else
        list->first = w->next;
    if (w->next)
        rsi_waiter(w->next)->prev = w->prev;
    else
        list->last = w->prev;
    w->is_listed = false;
}

RSI_INLINE struct rouse_thread *rsi_waitlist_pop_front(struct rouse_waiters *list)
{
    struct rouse_thread *t = list->first;
    if (t) {
        struct rsi_waiter *w = rsi_waiter(t);
        list->first = w->next;
        if (w->next)
            rsi_waiter(w->next)->prev = NULL;
        else
            list->last = NULL;
        w->is_listed = false;
    }
    return t;
}

/* End the wait that t is listed for, unless it has timed out or been cancelled. */
RSI_INLINE bool rsi_waitlist_end(struct rouse_thread *t, int result, const void *site)
{
    uint64_t ticket = rsi_load_relaxed(&rsi_waiter(t)->claim);
    return (ticket & 3) != 0 && rsi_park_claim(t, ticket, result, site);
}

/* Remove t from the list. True: its wait is now for the caller to end. */
RSI_INLINE bool rsi_waitlist_claim(struct rouse_waiters *list, struct rouse_thread *t, int result,
                                   const void *site)
{
    rsi_waitlist_remove(list, t);
    return rsi_waitlist_end(t, result, site);
}

/* Remove and claim the first waiter that can still be claimed; NULL: the list is empty. */
RSI_INLINE struct rouse_thread *rsi_waitlist_claim_first(struct rouse_waiters *list, int result,
                                                         const void *site)
{
    struct rouse_thread *t;
    bool is_won;
    do {
        t = rsi_waitlist_pop_front(list);
        if (!t)
            return NULL;
        uint64_t ticket = rsi_load_relaxed(&rsi_waiter(t)->claim);
        is_won = (ticket & 3) != 0 && rsi_park_claim_bare(t, ticket, result);
    } while (!is_won);
    return rsi_park_claimed(t, result, site);
}

/*
 * Threads that were claimed and will be published together, in the order of rsi_park_publish_list. They are in no
 * list any more, so their links are reused here.
 */
struct rsi_claimed {
    struct rouse_thread *first, *last;
    uint32_t count;
};

RSI_INLINE void rsi_claimed_add(struct rsi_claimed *claimed, struct rouse_thread *t)
{
    rsi_waiter(t)->next = NULL;
    if (claimed->last)
        rsi_waiter(claimed->last)->next = t;
    else
        claimed->first = t;
    claimed->last = t;
    claimed->count++;
}

RSI_INLINE void rsi_claimed_publish(struct rsi_claimed *claimed)
{
    if (claimed->count > 1 && rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_herd(claimed->count);
    if (claimed->first)
        rsi_park_publish_list(claimed->first);
}

/* Remove a waiter that timed out or was cancelled. False: a waker had removed it. */
RSI_INLINE bool rsi_waitlist_leave(struct rouse_waiters *list, struct rouse_thread *self)
{
    if (!rsi_waiter(self)->is_listed)
        return false;
    rsi_waitlist_remove(list, self);
    return true;
}

/* Correct the verdict: a claim writes "useful". Costs one load while recording is off. */
RSI_INLINE void rsi_waitlist_verdict(struct rouse_thread *self, enum rouse_verdict verdict)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_park_verdict(self, verdict);
}

#endif
