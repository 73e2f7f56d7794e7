/* SPDX-License-Identifier: MIT */
/*
 * turn.h - how long a thread may run before the others get their turn.
 *
 * Public within librouse: sync/ and io/ may include it.
 */
#ifndef RSI_CORE_TURN_H
#define RSI_CORE_TURN_H

#include "core/exec.h"

#define RSI_TURN_UNITS 1024 /* of one turn */

/*
 * Spend cost units of the current turn. A blocking call that did not have to block calls this. When the units
 * are spent a user thread yields, so that a loop of calls that succeed at once still lets other threads run.
 * Call it while nothing is held.
 */
void rsi_turn_spent(struct rouse_thread *self);

RSI_INLINE void rsi_turn_spend(struct rouse_thread *self, unsigned cost)
{
    struct rsi_exec *exec = rsi_exec_self();
    if (rsi_likely(exec->turn_units > cost))
        exec->turn_units -= cost;
    else
        rsi_turn_spent(self);
}

/* The current time; on a busy worker it may be up to about 40 us old. Costs next to nothing. */
uint64_t rsi_now_coarse_ns(void);

/* How many other threads the calling worker has to run. */
uint32_t rsi_worker_others(void);

#endif
