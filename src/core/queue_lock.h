/* SPDX-License-Identifier: MIT */
/*
 * queue_lock.h - the lock on a worker's queue, next slot and timers. It is nearly free for the worker itself.
 *
 * The owner, the worker's own kernel thread, enters and leaves with two plain stores and a load. A thief pays
 * a membarrier. Owners enter millions of times per second, thieves only when they are idle.
 *
 *   owner: E1 owner_in = 1;  F1 light;  E2 read thief_in; if set: owner_in = 0, wait, try again
 *   thief: T1 thief_in = 1;  F2 heavy;  T2 read owner_in; if set for long: thief_in = 0, give up
 * F1 and F2 order store and load on both sides, so that at least one sees the other: both are never inside.
 * The owner goes first on a tie. A thief gives up if the owner was preempted inside. An owner that meets a
 * preempted thief yields its CPU to it. Only one thief at a time may try: steal_guard. The release when one
 * side leaves pairs with the acquires at E2 and T2, so each side sees what the other did. Source: asymmetric
 * Dekker, as in Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001). Rejected: a lock-prefixed
 * instruction on each side. It costs 2.5 ns (Zen 4) to 6 ns (older CPUs) per queue operation where this costs
 * 0.5, and a yield of 8 ns has two. Model: tests/model/queue_lock.pml.
 */
#ifndef RSI_CORE_QUEUE_LOCK_H
#define RSI_CORE_QUEUE_LOCK_H

#include "core/core.h"

void rsi_queue_lock_enter_slow(struct rsi_worker *w);

RSI_INLINE void rsi_queue_lock_enter(struct rsi_worker *w)
{
    rsi_store_relaxed(&w->owner_in, 1u); /* E1 */
    rsi_fence_light();                   /* F1 */
    if (rsi_unlikely(rsi_load_acquire(&w->thief_in)))
        rsi_queue_lock_enter_slow(w); /* E2 */
}

RSI_INLINE void rsi_queue_lock_leave(struct rsi_worker *w)
{
    rsi_store_release(&w->owner_in, 0u);
}

bool rsi_queue_lock_enter_thief(struct rsi_worker *w);
void rsi_queue_lock_leave_thief(struct rsi_worker *w);

#endif
