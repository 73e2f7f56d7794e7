/* SPDX-License-Identifier: MIT */
/* queue_lock.c - a thief's side of queue_lock.h. */
#include "core/queue_lock.h"

bool rsi_queue_lock_enter_thief(struct rsi_worker *w)
{
    if (!rsi_guard_try(&w->steal_guard))
        return false;
    bool is_in = rsi_biased_enter_other(&w->owner_in, &w->thief_in);
    if (!is_in)
        rsi_guard_unlock(&w->steal_guard);
    return is_in;
}

void rsi_queue_lock_leave_thief(struct rsi_worker *w)
{
    rsi_biased_leave_other(&w->thief_in);
    rsi_guard_unlock(&w->steal_guard);
}
