/* SPDX-License-Identifier: MIT */
/*
 * once.c - runs a function once: the first caller runs it, and the others wait.
 *
 * state goes NEW -> RUNNING -> DONE, under the guard. DONE is read without the guard: that acquire pairs with the
 * release in finish, so a thread that sees DONE sees everything the function did.
 */
#include "core/turn.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

enum { NEW, RUNNING, DONE };

struct wait {
    struct rouse_once *o;
    struct rouse_thread *self;
    const void *site;
    uint64_t deadline_ns;
    unsigned flags;
};

static void finish(struct wait *w)
{
    struct rouse_once *o = w->o;
    struct rsi_claimed claimed = { 0 };
    rsi_guard_lock(&o->guard);
    rsi_store_relaxed(&o->owner, NULL);
    rsi_store_release(&o->state, DONE); /* pairs with is_done */
    for (struct rouse_thread *t; (t = rsi_waitlist_claim_first(&o->waiters, 0, w->site));)
        rsi_claimed_add(&claimed, t);
    rsi_guard_unlock(&o->guard);
    rsi_claimed_publish(&claimed);
}

RSI_INLINE bool is_done(struct rouse_once *o)
{
    return rsi_load_acquire(&o->state) == DONE; /* pairs with finish */
}

/*
 * Whether the caller is the first and runs the function. Fatal if called from within the function.
 */
static bool begin_locked(struct wait *w)
{
    struct rouse_once *o = w->o;
    if (o->state == NEW) {
        rsi_store_relaxed(&o->state, RUNNING);
        rsi_store_relaxed(&o->owner, w->self);
        return true;
    }
    if (o->owner == w->self)
        rsi_misuse("once", o, o->name, "called from within its own function", w->site, NULL);
    return false;
}

static int wait_done_locked(struct wait *w)
{
    struct rouse_once *o = w->o;
    uint64_t ticket =
        rsi_park_prepare(w->self, ROUSE_WAIT_ONCE, o, w->site, w->deadline_ns, w->flags);
    rsi_waitlist_push_back(&o->waiters, w->self);
    rsi_guard_unlock(&o->guard);
    rsi_test_delay();
    int result = rsi_park_commit(w->self, ticket);
    if (result < 0) {
        rsi_guard_lock(&o->guard);
        (void)rsi_waitlist_leave(&o->waiters, w->self);
        rsi_guard_unlock(&o->guard);
    }
    return result;
}

static RSI_NOINLINE int call_slow(struct wait *w, void (*fn)(void *), void *arg, bool may_wait)
{
    struct rouse_once *o = w->o;
    rsi_turn_spend(w->self, 1);
    rsi_guard_lock(&o->guard);
    if (begin_locked(w)) {
        rsi_guard_unlock(&o->guard);
        fn(arg);
        finish(w);
        return 0;
    }
    if (may_wait && o->state != DONE)
        return wait_done_locked(w);
    int result = o->state == DONE ? 0 : -EBUSY;
    rsi_guard_unlock(&o->guard);
    return result;
}

RSI_NOINLINE void rouse_once_call(struct rouse_once *o, void (*fn)(void *), void *arg)
{
    if (rsi_likely(is_done(o)))
        return;
    struct wait w = { o, rsi_self(), RSI_CALLER(), ROUSE_FOREVER, 0 };
    (void)call_slow(&w, fn, arg, true);
}

RSI_NOINLINE int rouse_once_call_try(struct rouse_once *o, void (*fn)(void *), void *arg)
{
    if (rsi_likely(is_done(o)))
        return 0;
    struct wait w = { o, rsi_self(), RSI_CALLER(), ROUSE_FOREVER, 0 };
    return call_slow(&w, fn, arg, false);
}

RSI_NOINLINE int rouse_once_call_until(struct rouse_once *o, void (*fn)(void *), void *arg,
                                       uint64_t deadline_ns)
{
    if (rsi_likely(is_done(o)))
        return 0;
    struct wait w = { o, rsi_self(), RSI_CALLER(), deadline_ns, RSI_PARK_CANCELLABLE };
    return call_slow(&w, fn, arg, true);
}
