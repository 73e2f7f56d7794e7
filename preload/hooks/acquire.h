/* SPDX-License-Identifier: MIT */
/* acquire.h - sleep until a lock is acquired whose futex word we understand. */
#ifndef RPI_HOOKS_ACQUIRE_H
#define RPI_HOOKS_ACQUIRE_H

#include "record/contest.h"

#include <rouse/obs.h>
#include <time.h>

struct rpi_acquire {
    enum rouse_wait_kind kind;
    const void *object, *site;
    const struct timespec *until; /* NULL: no limit */
    bool is_realtime;             /* the clock of until; else CLOCK_MONOTONIC */
    bool is_shared;               /* between processes */
    bool ends_with_signal;        /* a signal handler ends the call */
    const int32_t *owner;         /* the word with the thread ID of the holder, or NULL */
    bool was_woken; /* a wake-up ended a sleep of this call; other threads may still sleep */

    /* One attempt. Returns 0 or an error number; EBUSY: the lock is held. */
    int (*try)(struct rpi_acquire *a);
    /* Sleep by rpi_acquire_sleep, unless the lock is free: then -EAGAIN. Returns what that does. */
    int (*sleep)(struct rpi_acquire *a);
};

/*
 * Acquire a lock that was held on arrival, with one record per sleep. contest: counted at the end; NULL: none.
 * Returns   an error number: 0, ETIMEDOUT, EINTR if a handler ends the call, or another one of try. EBUSY: it is not
 *           acquired, and the kernel refuses to wait.
 * Blocks    the calling thread. A cancellation point if sleep is one.
 */
int rpi_acquire(struct rpi_acquire *a, struct rpi_contest *contest);

/* Sleep while *word == value. Returns 0 (woken), -EAGAIN, -EINTR, -ETIMEDOUT, or why the kernel refuses to wait. */
int rpi_acquire_sleep(const struct rpi_acquire *a, uint32_t *word, uint32_t value);

#endif
