/* SPDX-License-Identifier: MIT */
/* deadline.h - deadlines that libc refuses. */
#ifndef RPI_HOOKS_DEADLINE_H
#define RPI_HOOKS_DEADLINE_H

#include "base/base.h"

#include <time.h>

/* libc accepts no other clock, and refuses one before it tries the lock. */
RSI_INLINE bool rpi_deadline_clock_is_wrong(clockid_t clock)
{
    return clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC;
}

RSI_INLINE bool rpi_deadline_is_wrong(clockid_t clock, const struct timespec *until)
{
    return rpi_deadline_clock_is_wrong(clock) || until->tv_nsec < 0 || until->tv_nsec > 999999999;
}

#endif
