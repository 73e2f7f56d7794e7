/* SPDX-License-Identifier: MIT */
/* guard.h - a guard that is held with all signals blocked, since a signal handler may ask for the same guard. */
#ifndef RPI_PROCESS_GUARD_H
#define RPI_PROCESS_GUARD_H

#include "base/base.h"

#include <pthread.h>
#include <signal.h>

static inline void rpi_guard_enter(uint32_t *guard, sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, before);
    rsi_guard_lock(guard);
}

static inline void rpi_guard_exit(uint32_t *guard, const sigset_t *before)
{
    rsi_guard_unlock(guard);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
