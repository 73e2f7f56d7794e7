/* SPDX-License-Identifier: MIT */
/* queue_lock.c - the slow paths of queue_lock.h. */
#include "core/queue_lock.h"

/* A thief stays inside for about ten instructions per thread that it takes, unless it is preempted there. */
void rsi_queue_lock_enter_slow(struct rsi_worker *w)
{
    for (;;) {
        rsi_store_release(&w->owner_in, 0u);
        for (unsigned spins = 0; rsi_load_acquire(&w->thief_in); spins++) {
            if (spins < 256)
                rsi_cpu_relax();
            else
                rsi_syscall0(SYS_sched_yield);
        }
        rsi_store_relaxed(&w->owner_in, 1u);
        rsi_fence_light();
        if (!rsi_load_acquire(&w->thief_in))
            return;
    }
}

bool rsi_queue_lock_enter_thief(struct rsi_worker *w)
{
    if (!rsi_guard_try(&w->steal_guard))
        return false;
    rsi_store_relaxed(&w->thief_in, 1u);                                /* T1 */
    rsi_fence_heavy();                                                  /* F2 */
    for (unsigned spins = 0; rsi_load_acquire(&w->owner_in); spins++) { /* T2 */
        if (spins == 200) {
            rsi_queue_lock_leave_thief(w);
            return false;
        }
        rsi_cpu_relax();
    }
    return true;
}

void rsi_queue_lock_leave_thief(struct rsi_worker *w)
{
    rsi_store_release(&w->thief_in, 0u);
    rsi_guard_unlock(&w->steal_guard);
}
