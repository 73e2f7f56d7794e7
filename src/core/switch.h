/* SPDX-License-Identifier: MIT */
/*
 * switch.h - the switch: picks the next thread and steps from one stack to the other.
 *
 * The steps of a switch: rsi_switch_out takes the next thread off the queue, rsi_switch_to records the switch
 * and checks that the next thread's stack is free, rsi_switch_step changes stacks, and rsi_switch_finish, on
 * the new stack, releases the old one. worker.c has the order in which threads run; ctx/ctx.h changes the
 * registers.
 *
 * These functions are inline, so that a call that parks has one frame and saves the callee-saved registers
 * only once: the switch clobbers them all.
 */
#ifndef RSI_CORE_SWITCH_H
#define RSI_CORE_SWITCH_H

#include "core/queue_lock.h"

#define RSI_FETCH_LINES 2u  /* of a stack */
#define RSI_FETCH_LEAST 16u /* length of a queue whose stacks may have left the caches */

RSI_INLINE void rsi_queue_push(struct rsi_worker *w, struct rouse_thread *t)
{
    t->queue_link = NULL;
    if (w->queue_first)
        w->queue_last->queue_link = t;
    else
        w->queue_first = t;
    w->queue_last = t;
    rsi_store_relaxed(&w->queue_length, w->queue_length + 1);
}

RSI_INLINE struct rouse_thread *rsi_queue_pop(struct rsi_worker *w)
{
    struct rouse_thread *t = w->queue_first;
    if (t) {
        w->queue_first = t->queue_link;
        rsi_store_relaxed(&w->queue_length, w->queue_length - 1);
    }
    return t;
}

/*
 * t runs after the turn that begins now: prefetch what its turn touches first, the top of its stack. In a short queue
 * that is still in the caches. t may still be on its stack: then the address is an old one, which does no harm.
 */
RSI_INLINE void rsi_queue_fetch(const struct rouse_thread *t)
{
    uintptr_t sp = (uintptr_t)rsi_load_relaxed(&t->waiter.ctx.sp);
    for (unsigned line = 0; line < RSI_FETCH_LINES; line++)
        /* Arithmetic on integers: sp may be NULL. NOLINTNEXTLINE(performance-no-int-to-ptr) */
        __builtin_prefetch((const void *)(sp + line * RSI_CACHE_LINE), 1);
}

/* Remove and return the thread that runs next, or NULL. Under the queue lock. */
RSI_INLINE struct rouse_thread *rsi_take_locked(struct rsi_worker *w)
{
    if (rsi_unlikely(rsi_load_relaxed(&w->inbox) != NULL) && !rsi_inbox_drain(w))
        return NULL;
    struct rouse_thread *t = w->next;
    if (t && (w->next_run < RSI_NEXT_RUN_MAX || !w->queue_first)) {
        w->next_run++;
        rsi_store_relaxed(&w->next, NULL);
    } else if (w->queue_first) {
        t = rsi_queue_pop(w);
        w->next_run = 0;
        if (rsi_unlikely(w->queue_length >= RSI_FETCH_LEAST))
            rsi_queue_fetch(w->queue_first);
    }
    return t;
}

/* Begin a turn. Every look_every turns, a busy worker also looks at timers and finished I/O. */
RSI_INLINE void rsi_turn_begin(struct rsi_worker *w)
{
    if (rsi_unlikely(--w->look_left == 0))
        rsi_worker_look(w);
    w->exec.turn_units = RSI_TURN_UNITS;
    rsi_store_relaxed(&w->turns, w->turns + 1);
}

RSI_INLINE void rsi_worker_enter(struct rsi_worker *w, struct rouse_thread *t)
{
    rsi_store_relaxed(&t->waiter.on_cpu, RSI_CPU_RUNS);
    rsi_store_relaxed(&t->waiter.worker_index, w->index);
    rsi_store_relaxed(&w->exec.current, t); /* place.c looks */
}

/*
 * On the new stack: release the stack just left. value is what the switch passed on. Returns the worker. This
 * also writes the idle loop's own on_cpu, which nothing reads.
 */
RSI_INLINE struct rsi_worker *rsi_switch_finish(void *value, struct rsi_ctx *ctx)
{
    struct rsi_waiter *left = rsi_container_of(ctx, struct rsi_waiter, ctx);
    if (rsi_unlikely((uintptr_t)value & RSI_SWITCH_END))
        return rsi_thread_left((struct rsi_worker *)((uintptr_t)value - RSI_SWITCH_END),
                               (struct rouse_thread *)left);
    rsi_test_delay();
    rsi_store_release(&left->on_cpu, 0u); /* pairs with the acquires before a thread is run */
    return value;
}

/*
 * Change stacks. ctx: the next thread's, which was already entered, or the idle loop's. errno belongs to self, not to
 * the kernel thread.
 */
RSI_INLINE void rsi_switch_step(struct rsi_worker *w, struct rouse_thread *self,
                                struct rsi_ctx *ctx, uintptr_t bits)
{
    void *value = (char *)w + bits;
    int error = *w->errno_at;
    struct rsi_ctx *left = rsi_ctx_switch(&self->waiter.ctx, ctx, &value);
    *rsi_switch_finish(value, left)->errno_at = error;
}

/* Whether a worker goes directly from self to to, without its idle loop in between. on_cpu: that of to. */
RSI_INLINE bool rsi_enters(const struct rouse_thread *self, const struct rouse_thread *to,
                           uint32_t on_cpu)
{
    return on_cpu == 0 || on_cpu == RSI_CPU_NEW || (on_cpu == RSI_CPU_RUNS && to == self);
}

/*
 * Leave self, which runs on w, for to, or for the idle loop if to is NULL. to was just taken off w's queues.
 * Returns when self runs again, possibly on another worker. to may be self: it was woken, or its own yield
 * queued it, before it left.
 */
RSI_INLINE void rsi_switch_to(struct rsi_worker *w, struct rouse_thread *self,
                              struct rouse_thread *to, enum rsi_leave why)
{
    struct rsi_ctx *ctx = &w->idle.ctx;
    uintptr_t bits = why == RSI_LEAVES_ENDED ? RSI_SWITCH_END : 0;
    uint32_t on_cpu = RSI_CPU_ELSEWHERE;
    bool is_entered = true;
    if (rsi_likely(to != NULL) && rsi_likely(rsi_load_relaxed(&to->waiter.home) == w->exec.home))
        /* Pairs with the releases in rsi_switch_finish and trim.c. */
        on_cpu = rsi_load_acquire(&to->waiter.on_cpu);
    if (rsi_unlikely(rsi_obs_is_on_or(on_cpu))) {
        if (rsi_obs_is_on())
            rsi_account_switch(w, self, rsi_enters(self, to, on_cpu) ? to : NULL, why);
        if (on_cpu == RSI_CPU_RUNS && to == self)
            return;
        if (on_cpu == RSI_CPU_NEW)
            rsi_thread_bind(w, to);
        is_entered = on_cpu == 0 || on_cpu == RSI_CPU_NEW;
    }
    if (rsi_likely(is_entered)) {
        rsi_test_delay();
        rsi_worker_enter(w, to);
        ctx = &to->waiter.ctx;
    } else { /* its stack is in use, or it belongs to another cluster: handled from the idle loop's stack */
        w->handoff = to;
        rsi_store_relaxed(&w->exec.current, NULL);
    }
    if (rsi_unlikely(w->eh_globals != NULL) &&
        rsi_unlikely((w->eh_globals[0] | w->eh_globals[1]) != 0))
        rsi_switch_in_catch(w, self, ctx, bits);
    else
        rsi_switch_step(w, self, ctx, bits);
}

/* Leave self for the next thread. why: self waits (it may have been woken already), or it has ended. */
RSI_INLINE void rsi_switch_out(struct rsi_worker *w, struct rouse_thread *self, enum rsi_leave why)
{
    rsi_turn_begin(w);
    rsi_queue_lock_enter(w);
    struct rouse_thread *to = rsi_take_locked(w);
    rsi_queue_lock_leave(w);
    rsi_switch_to(w, self, to, why);
}

/*
 * Let other threads run first. self is queued before it leaves its stack, like a thread that was woken early.
 * The worker that dequeues it waits for on_cpu.
 */
RSI_INLINE void rsi_switch_yield(struct rsi_worker *w, struct rouse_thread *self,
                                 enum rsi_leave why)
{
    rsi_turn_begin(w);
    rsi_queue_lock_enter(w);
    rsi_queue_push(w, self);
    struct rouse_thread *to = rsi_take_locked(w);
    rsi_queue_lock_leave(w);
    rsi_idle_wake_if_useful(w);
    rsi_switch_to(w, self, to, why);
}

#endif
