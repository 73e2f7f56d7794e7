/* SPDX-License-Identifier: MIT */
/* biased.c - the slow paths of biased.h. */
#include "os/biased.h"

/* The other thread stays inside for a short time, unless it is preempted there. */
void rsi_biased_enter_slow(uint32_t *owner_in, const uint32_t *other_in)
{
    for (;;) {
        rsi_store_release(owner_in, 0u);
        for (unsigned spins = 0; rsi_load_acquire(other_in); spins++) {
            if (spins < 256)
                rsi_cpu_relax();
            else
                rsi_syscall0(SYS_sched_yield);
        }
        rsi_store_relaxed(owner_in, 1u);
        rsi_fence_light();
        if (!rsi_load_acquire(other_in))
            return;
    }
}

bool rsi_biased_enter_other(const uint32_t *owner_in, uint32_t *other_in)
{
    rsi_store_relaxed(other_in, 1u);                                /* T1 */
    rsi_fence_heavy();                                              /* F2 */
    for (unsigned spins = 0; rsi_load_acquire(owner_in); spins++) { /* T2 */
        if (spins == 200) {
            rsi_biased_leave_other(other_in);
            return false;
        }
        rsi_cpu_relax();
    }
    return true;
}
