/* SPDX-License-Identifier: MIT */
/*
 * cond.c - condition variables. A signal wakes the longest waiter, a broadcast all waiters.
 *
 * A waiter enters the list while it holds the mutex, so a thread that later changes the condition under the mutex
 * finds it there. waiting counts the threads in the list, and those that left it by time-out or cancellation and
 * still have to take the guard. It is incremented before the mutex is released. So a thread that has changed the
 * condition under the mutex and reads waiting 0 has no thread to wake, and needs no guard.
 *
 * Lifetime: signal and broadcast do not touch the object after publishing. A woken waiter does not touch it any
 * more. A waiter that timed out does, so destroy waits until waiting is 0.
 *
 * Rejected: moving the waiters of a broadcast to the mutex's list instead of waking them (wait morphing). It avoids
 * a thundering herd of kernel threads. But woken user threads run one after the other on their worker, and the
 * first has usually unlocked when the second runs. A moved waiter's record would also name the wrong object, waker
 * and time.
 */
#include "sync/misuse.h"
#include "sync/mutex.h"
#include "sync/waitlist.h"

#include <errno.h>

struct wait {
    struct rouse_cond *c;
    struct rouse_mutex *m;
    struct rouse_thread *self;
    const void *site;
    uint64_t deadline_ns;
};

static _Noreturn RSI_COLD void misuse(const struct rouse_cond *c, const char *what,
                                      const void *site)
{
    rsi_misuse("condition variable", c, c->name, what, site, NULL);
}

/* Relaxed: a thread that must see it has held the mutex since. */
RSI_INLINE void count_waiting_locked(struct rouse_cond *c, uint32_t by)
{
    rsi_store_relaxed(&c->waiting, c->waiting + by);
}

static uint64_t enter(struct wait *w)
{
    struct rouse_cond *c = w->c;
    rsi_guard_lock(&c->guard);
    if (c->waiting == 0)
        c->mutex = w->m;
    else if (c->mutex != w->m)
        misuse(c, "waited for with two mutexes at once", w->site);
    count_waiting_locked(c, 1);
    uint64_t ticket = rsi_park_prepare(w->self, ROUSE_WAIT_COND, c, w->site, w->deadline_ns,
                                       RSI_PARK_CANCELLABLE);
    rsi_waitlist_push_back(&c->waiters, w->self);
    rsi_guard_unlock(&c->guard);
    return ticket;
}

static RSI_COLD void leave(struct wait *w)
{
    rsi_test_delay();
    rsi_guard_lock(&w->c->guard);
    (void)rsi_waitlist_leave(&w->c->waiters, w->self);
    count_waiting_locked(w->c, -1u);
    rsi_guard_unlock(&w->c->guard);
}

/*
 * Wait once. The verdict is known only when the predicate has been evaluated; until then a wake-up counts as
 * useful. past remembers this wait, since the wait for the mutex may follow it. Returns the result of
 * rsi_park_commit.
 */
static int wait_once(struct wait *w, struct rsi_past *past)
{
    uint64_t ticket = enter(w);
    rsi_mutex_unlock(w->m, w->self, w->site);
    rsi_test_delay();
    int result = rsi_park_commit(w->self, ticket);
    past->kind = ROUSE_WAIT_NONE;
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        (void)rsi_park_past(w->self, past);
    if (result < 0)
        leave(w);
    (void)rsi_mutex_lock(w->m, w->self, w->site);
    return result;
}

static void check_held(const struct wait *w)
{
    if (rsi_load_relaxed(&w->m->owner) != w->self)
        misuse(w->c, "waited for by a thread that does not hold the mutex", w->site);
}

static int wait_plain(struct wait *w)
{
    struct rsi_past past;
    check_held(w);
    return wait_once(w, &past);
}

static int wait_while(struct wait *w, bool (*predicate)(void *), void *arg)
{
    struct rsi_past past = { .kind = ROUSE_WAIT_NONE };
    check_held(w);
    while (predicate(arg)) {
        if (past.kind != ROUSE_WAIT_NONE)
            rsi_park_past_verdict(w->self, &past, ROUSE_VERDICT_FALSE);
        int result = wait_once(w, &past);
        if (result == -ETIMEDOUT)
            return predicate(arg) ? -ETIMEDOUT : 0;
        if (result < 0)
            return result;
    }
    return 0;
}

void rouse_cond_init(struct rouse_cond *c, const char *name)
{
    *c = (struct rouse_cond)ROUSE_COND_INIT_NAMED(name);
}

RSI_NOINLINE int rouse_cond_wait(struct rouse_cond *c, struct rouse_mutex *m)
{
    struct wait w = { c, m, rsi_self(), RSI_CALLER(), ROUSE_FOREVER };
    return wait_plain(&w);
}

RSI_NOINLINE int rouse_cond_wait_until(struct rouse_cond *c, struct rouse_mutex *m,
                                       uint64_t deadline_ns)
{
    struct wait w = { c, m, rsi_self(), RSI_CALLER(), deadline_ns };
    return wait_plain(&w);
}

RSI_NOINLINE int rouse_cond_wait_while(struct rouse_cond *c, struct rouse_mutex *m,
                                       bool (*predicate)(void *), void *arg)
{
    struct wait w = { c, m, rsi_self(), RSI_CALLER(), ROUSE_FOREVER };
    return wait_while(&w, predicate, arg);
}

RSI_NOINLINE int rouse_cond_wait_while_until(struct rouse_cond *c, struct rouse_mutex *m,
                                             bool (*predicate)(void *), void *arg,
                                             uint64_t deadline_ns)
{
    struct wait w = { c, m, rsi_self(), RSI_CALLER(), deadline_ns };
    return wait_while(&w, predicate, arg);
}

RSI_NOINLINE void rouse_cond_signal(struct rouse_cond *c)
{
    if (rsi_load_relaxed(&c->waiting) == 0) {
        rsi_account_unheard(false);
        return;
    }
    rsi_guard_lock(&c->guard);
    struct rouse_thread *t = rsi_waitlist_claim_first(&c->waiters, 0, RSI_CALLER());
    if (t)
        count_waiting_locked(c, -1u);
    rsi_guard_unlock(&c->guard);
    rsi_test_delay();
    if (t)
        rsi_park_publish(t);
}

RSI_NOINLINE void rouse_cond_broadcast(struct rouse_cond *c)
{
    if (rsi_load_relaxed(&c->waiting) == 0) {
        rsi_account_unheard(true);
        return;
    }
    struct rsi_claimed claimed = { 0 };
    rsi_guard_lock(&c->guard);
    for (struct rouse_thread *t; (t = rsi_waitlist_claim_first(&c->waiters, 0, RSI_CALLER()));)
        rsi_claimed_add(&claimed, t);
    count_waiting_locked(c, -claimed.count);
    rsi_guard_unlock(&c->guard);
    rsi_test_delay();
    rsi_claimed_publish(&claimed);
}

RSI_NOINLINE void rouse_cond_destroy(struct rouse_cond *c)
{
    for (;;) {
        rsi_guard_lock(&c->guard);
        if (c->waiters.first)
            misuse(c, "destroyed while waited for", RSI_CALLER());
        uint32_t waiting = c->waiting;
        rsi_guard_unlock(&c->guard);
        if (waiting == 0)
            return;
        rouse_thread_yield(); /* the remaining threads have been woken, and are leaving */
    }
}
