/* SPDX-License-Identifier: MIT */
/*
 * park.c - how a thread stops running and is made runnable again.
 *
 * Problem: a waker may come before the sleeper has left its stack. A waker, the timer and a cancel may all
 * come at once, and only one may end the wait.
 *
 * The claim word holds 4 * wait number + {0: no wait, 1: waits, 2: waits and may be cancelled}.
 *   prepare  stores number + 1 with 1 or 2: the ticket. A plain store is enough, since nobody else may
 *            write while the low bits are 0.
 *   claim    compare-and-swap from the ticket to the same number with 0. One succeeds. Its caller then
 *            owns the block's result and record until it publishes.
 *   publish  makes the thread runnable. A worker may pick it before it has left its old stack, so that
 *            worker first waits for on_cpu == 0 (worker.c).
 * So a thread that has prepared always goes through the switch, unless it wins its own claim back.
 *
 * Rejected: a fourth state "parked", set by compare-and-swap once the stack is left, so that an early waker
 * leaves a token instead of queueing the thread. It costs one more locked instruction per wait (2.5 ns of 15)
 * for a rare case. Rejected: a lock held over the switch, on which wakers spin. Locks: none held here. Models:
 * tests/model/park.pml, weak_park.pml.
 */
#include "core/switch.h"

#include <errno.h>

uint32_t rsi_obs_mode;

/* t belongs to another cluster, or the caller is not a worker. */
static RSI_NOINLINE void publish_elsewhere(struct rouse_thread *t)
{
    if (t->waiter.origin == RSI_ORIGIN_USER)
        rsi_run_elsewhere(t);
    else
        rsi_kernel_thread_publish(t);
}

void rsi_park_publish(struct rouse_thread *t)
{
    rsi_test_delay();
    struct rsi_exec *exec = rsi_exec_self();
    if (rsi_unlikely(rsi_load_relaxed(&t->waiter.home) != exec->home))
        publish_elsewhere(t);
    else if (rsi_likely(exec->current != NULL))
        rsi_run_soon(exec->worker, t);
    else if (rsi_likely(!exec->worker->cluster->is_shortest))
        rsi_run_later(exec->worker, t);
    else
        rsi_run_elsewhere(t);
}

void rsi_park_publish_list(struct rouse_thread *first)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rsi_worker *w = exec->worker;
    struct rouse_thread *mine = NULL, **last = &mine;
    while (first) {
        struct rouse_thread *t = first;
        first = t->waiter.next;
        if (rsi_load_relaxed(&t->waiter.home) != exec->home || w->cluster->is_shortest) {
            publish_elsewhere(t);
        } else {
            *last = t;
            last = &t->queue_link;
        }
    }
    *last = NULL;
    if (mine)
        rsi_run_later_list(w, mine);
}

/* Take one request to cancel, if there is one. */
static bool cancel_take(struct rouse_thread *t)
{
    uint32_t requests = rsi_load_relaxed(&t->waiter.cancel);
    while ((requests & ~RSI_PARK_OWES) != 0)
        if (rsi_cas_seq_cst(&t->waiter.cancel, &requests, requests - 1))
            return true;
    return false;
}

/* End the caller's own prepared wait, if a request to cancel came before others could see the wait. */
bool rsi_park_cancel_self(struct rouse_thread *self, uint64_t ticket)
{
    if ((ticket & 3) != 2)
        return false;
    /*
     * Pairs with the heavy fence in rouse_thread_cancel: either that sees the ticket, or this sees the
     * request.
     */
    rsi_fence_light();
    if (rsi_likely((rsi_load_relaxed(&self->waiter.cancel) & ~RSI_PARK_OWES) == 0) ||
        !cancel_take(self))
        return false;
    if (rsi_park_claim(self, ticket, -ECANCELED, NULL))
        return true;
    /* Woken in the meantime: keep the request for the next blocking call. */
    rsi_fetch_add_seq_cst(&self->waiter.cancel, 1u);
    return false;
}

/* Passes on an event that a thread owes to other waiters (its debt: rsi_park_owe). Stored before the first debt. */
static void (*settle_debt)(uint32_t what);

void rsi_park_owe(struct rouse_thread *self, uint32_t what, void (*settle)(uint32_t what))
{
    rsi_store_relaxed(&settle_debt, settle);
    self->waiter.record.owed = what;
    rsi_fetch_or_relaxed(&self->waiter.cancel, RSI_PARK_OWES);
}

uint32_t rsi_park_debt(struct rouse_thread *self, bool clear)
{
    if (clear)
        rsi_fetch_and_relaxed(&self->waiter.cancel, ~RSI_PARK_OWES);
    return self->waiter.record.owed;
}

void rsi_park_settle(struct rouse_thread *self)
{
    void (*settle)(uint32_t) = rsi_load_relaxed(&settle_debt);
    if (rsi_unlikely(rsi_park_owes(self)))
        settle(rsi_park_debt(self, true));
}

/* The deadline passed before the wait began: self is runnable and never enters the timers. */
static int commit_late(struct rsi_worker *w, struct rouse_thread *self, uint64_t ticket)
{
    if (rsi_park_claim(self, ticket, -ETIMEDOUT, NULL))
        rsi_switch_yield(w, self, RSI_LEAVES_WAITING);
    else
        rsi_switch_out(w, self, RSI_LEAVES_WAITING);
    return self->waiter.result;
}

/* The rare cases of a wait: kernel threads, deadlines, requests to cancel, debts. */
static RSI_NOINLINE int commit_slow(struct rouse_thread *self, uint64_t ticket)
{
    rsi_park_settle(self);
    if (rsi_park_cancel_self(self, ticket))
        return -ECANCELED;
    if (self->waiter.origin != RSI_ORIGIN_USER)
        return rsi_kernel_thread_commit(self, ticket);
    struct rsi_worker *w = rsi_exec_self()->worker;
    if (self->waiter.deadline_ns <= w->look_ns)
        return commit_late(w, self, ticket);
    if (self->waiter.deadline_ns != ROUSE_FOREVER) {
        rsi_queue_lock_enter(w);
        rsi_timer_arm(w, self, self->waiter.deadline_ns);
        rsi_queue_lock_leave(w);
    }
    rsi_switch_out(w, self, RSI_LEAVES_WAITING);
    return self->waiter.result;
}

int rsi_park_commit(struct rouse_thread *self, uint64_t ticket)
{
    rsi_fence_light(); /* as in rsi_park_cancel_self */
    if (rsi_unlikely(rsi_load_relaxed(&self->waiter.cancel) != 0) ||
        rsi_unlikely(self->waiter.origin != RSI_ORIGIN_USER) ||
        self->waiter.deadline_ns != ROUSE_FOREVER)
        return commit_slow(self, ticket);
    rsi_switch_out(rsi_exec_self()->worker, self, RSI_LEAVES_WAITING);
    return self->waiter.result;
}

bool rsi_park_abandon(struct rouse_thread *self, uint64_t ticket)
{
    return rsi_cas_relaxed(&self->waiter.claim, &ticket, ticket & ~UINT64_C(3));
}

void rsi_turn_spent(struct rouse_thread *self)
{
    if (self->waiter.origin == RSI_ORIGIN_USER)
        rsi_switch_yield(rsi_exec_self()->worker, self, RSI_LEAVES_QUEUED);
    else
        self->exec.turn_units = UINT32_MAX; /* the kernel schedules kernel threads */
}

uint64_t rsi_now_coarse_ns(void)
{
    const struct rsi_worker *w = rsi_exec_self()->worker;
    return w ? w->look_ns : rsi_now_ns();
}

/*
 * The request is counted before the wait is looked up. The waiter stores its ticket before it looks for
 * requests (rsi_park_cancel_self). The fences make one of the two see the other. The side that delivers a
 * request takes it first, so that it is delivered once.
 */
RSI_NOINLINE int rouse_thread_cancel(struct rouse_thread *t)
{
    if (rsi_load_relaxed(&t->waiter.life) != RSI_LIFE_LIVE)
        return -ESRCH;
    rsi_fetch_add_seq_cst(&t->waiter.cancel, 1u);
    for (;;) {
        rsi_fence_heavy();
        uint64_t claim = rsi_load_acquire(&t->waiter.claim);
        if ((claim & 3) != 2 || !cancel_take(t))
            return 0;
        if (rsi_park_claim(t, claim, -ECANCELED, RSI_CALLER())) {
            rsi_park_publish(t);
            return 0;
        }
        rsi_fetch_add_seq_cst(&t->waiter.cancel, 1u);
    }
}

bool rouse_thread_cancel_pending(void)
{
    return (rsi_load_relaxed(&rsi_self()->waiter.cancel) & ~RSI_PARK_OWES) != 0;
}
