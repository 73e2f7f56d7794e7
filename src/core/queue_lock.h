/* SPDX-License-Identifier: MIT */
/*
 * queue_lock.h - the lock on a worker's queue, next slot and timers. It is biased to the worker's own kernel thread
 * (os/biased.h), which enters millions of times per second. Thieves enter only when they are idle. Only one thief at a
 * time may try: steal_guard.
 */
#ifndef RSI_CORE_QUEUE_LOCK_H
#define RSI_CORE_QUEUE_LOCK_H

#include "core/core.h"
#include "os/biased.h"

RSI_INLINE void rsi_queue_lock_enter(struct rsi_worker *w)
{
    rsi_biased_enter(&w->owner_in, &w->thief_in);
}

RSI_INLINE void rsi_queue_lock_leave(struct rsi_worker *w)
{
    rsi_biased_leave(&w->owner_in);
}

/* False: another thief tries, or the owner stays inside. */
bool rsi_queue_lock_enter_thief(struct rsi_worker *w);
void rsi_queue_lock_leave_thief(struct rsi_worker *w);

#endif
