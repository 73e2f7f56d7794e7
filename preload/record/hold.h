/* SPDX-License-Identifier: MIT */
/*
 * hold.h - counts every acquisition of a lock and times how long it is held, where ROUSE_OBS=locks asks for it.
 *
 * Nothing here but setup, warm and clear may be called unless rpi_hold_is_on.
 */
#ifndef RPI_RECORD_HOLD_H
#define RPI_RECORD_HOLD_H

#include "process/linkage.h"
#include "record/thread.h"

#include <rouse/obs.h>

extern RPI_HIDDEN bool rpi_hold_is_on;
void rpi_hold_setup(void);
void rpi_hold_clear(struct rpi_holds *holds); /* NULL: no effect */

/* self has slept and may acquire locks soon: prefetch its list. */
void rpi_hold_warm(const struct rpi_thread *self);

/* The caller has acquired a free lock. is_nesting: it may have held the lock already, and then the hold goes on. */
void rpi_hold_begin(const void *lock, enum rouse_wait_kind kind, bool is_nesting, const void *site);

/* Likewise after a contest, which has counted the acquisition in row. self is busy. */
void rpi_hold_contested(struct rpi_thread *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row);

/* A hold that has ended. */
struct rpi_hold_ended {
    struct rsi_store_lock *row; /* NULL: no hold has ended */
    uint64_t ticks;
};

/* End the hold before the unlock, and count it after the unlock, so that counting does not lengthen it. */
struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock);
void rpi_hold_count(const struct rpi_hold_ended *ended);

/* Both at once, for a lock that libc is about to unlock inside another call. self is busy. */
void rpi_hold_pause(struct rpi_thread *self, const void *lock);

#endif
