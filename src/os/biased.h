/* SPDX-License-Identifier: MIT */
/*
 * biased.h - a lock biased to one kernel thread, its owner. It is nearly free for the owner.
 *
 * The owner enters and leaves with two plain stores and a load. Another thread pays a membarrier.
 *
 *   owner: E1 owner_in = 1;  F1 light;  E2 read other_in; if set: owner_in = 0, wait, try again
 *   other: T1 other_in = 1;  F2 heavy;  T2 read owner_in; if set for long: other_in = 0, give up
 * F1 and F2 order store and load on both sides, so that at least one sees the other: both are never inside. The owner
 * goes first on a tie. The other thread gives up if the owner stays inside, because it was preempted there, for
 * example. An owner that meets a preempted thread yields its CPU to it. Only one other thread at a time may try. The
 * release when one side leaves pairs with the acquires at E2 and T2, so each side sees what the other did. Source:
 * asymmetric Dekker, as in Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001). Rejected: a lock-prefixed
 * instruction on each side. It costs 2.5 ns (Zen 4) to 6 ns (older CPUs) where this costs 0.5, and a yield of 8 ns has
 * two. Models: tests/model/queue_lock.pml, weak_queue_lock.pml.
 */
#ifndef RSI_OS_BIASED_H
#define RSI_OS_BIASED_H

#include "os/os.h"

void rsi_biased_enter_slow(uint32_t *owner_in, const uint32_t *other_in);

RSI_INLINE void rsi_biased_enter(uint32_t *owner_in, const uint32_t *other_in)
{
    rsi_store_relaxed(owner_in, 1u); /* E1 */
    rsi_fence_light();               /* F1 */
    if (rsi_unlikely(rsi_load_acquire(other_in)))
        rsi_biased_enter_slow(owner_in, other_in); /* E2 */
}

RSI_INLINE void rsi_biased_leave(uint32_t *owner_in)
{
    rsi_store_release(owner_in, 0u);
}

/* For one other thread at a time. False: the owner stays inside. */
bool rsi_biased_enter_other(const uint32_t *owner_in, uint32_t *other_in);

RSI_INLINE void rsi_biased_leave_other(uint32_t *other_in)
{
    rsi_store_release(other_in, 0u);
}

#endif
