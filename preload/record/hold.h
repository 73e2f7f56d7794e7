/* SPDX-License-Identifier: MIT */
/*
 * hold.h - counts acquisitions of locks, and times how long they are held: every contended one, and of the others a
 * random choice (sample.h), or all of them where ROUSE_OBS=locks asks for it.
 */
#ifndef RPI_RECORD_HOLD_H
#define RPI_RECORD_HOLD_H

#include "process/linkage.h"
#include "record/thread.h"

#include <rouse/obs.h>

extern RPI_HIDDEN bool rpi_hold_takes_all; /* every acquisition is counted and timed */
void rpi_hold_setup(void);
void rpi_hold_clear(struct rpi_holds *holds); /* NULL: no effect */

/* self has slept and may acquire locks soon: prefetch its list. */
void rpi_hold_warm(const struct rpi_thread *self);

/* From now on, acquisitions of the free lock are sampled: some thread has found it held. */
void rpi_hold_admit(const void *lock);

/* The caller has acquired a free lock, and this acquisition is chosen. */
void rpi_hold_begin(struct rpi_thread *self, struct rpi_held *held, const void *lock,
                    enum rouse_wait_kind kind, const void *site);

/* The caller has acquired a free lock, which it did not hold before. held: the thread's place for the lock. */
RSI_INLINE void rpi_hold_acquired(struct rpi_thread *self, struct rpi_held *held, const void *lock,
                                  enum rouse_wait_kind kind, const void *site)
{
    if (rsi_unlikely(--held->gap <= 0))
        rpi_hold_begin(self, held, lock, kind, site);
}

/* Likewise after a contest, which has counted the acquisition in row. self is busy. */
void rpi_hold_contested(struct rpi_thread *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row);

/* Whether the caller holds the lock already, and the hold is timed: it goes on until as many unlocks. */
bool rpi_hold_nest(struct rpi_thread *self, const void *lock);

/* A hold that has ended. */
struct rpi_hold_ended {
    struct rsi_store_lock *row; /* NULL: no hold has ended */
    uint64_t ticks, inside[RSI_INSIDE_COUNT];
    uint32_t weight;
};

/* Whether the caller holds a lock whose hold is timed. self may be NULL. */
RSI_INLINE bool rpi_hold_is_timed(const struct rpi_thread *self)
{
    return self && self->timed != 0;
}

/*
 * End the hold before the unlock, and count it after the unlock, so that counting does not lengthen it. Only if
 * rpi_hold_is_timed.
 */
struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock);
void rpi_hold_count(const struct rpi_hold_ended *ended);

/* Both at once, for a lock that libc is about to unlock inside another call. self is busy. */
void rpi_hold_pause(struct rpi_thread *self, const void *lock);

#endif
