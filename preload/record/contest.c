/* SPDX-License-Identifier: MIT */
/* contest.c - counts contested acquisitions in the row of the lock. */
#include "record/contest.h"

#include "record/hold.h"

void rpi_contest_end(struct rpi_thread *self, const struct rpi_contest *contest, bool is_acquired,
                     uint64_t now, bool is_spun)
{
    struct rsi_store_lock *lock = rsi_writer_lock(self->writer, &contest->key, NULL);
    uint64_t ticks = now - contest->since;
    rpi_hold_admit((const void *)(uintptr_t)contest->key.lock);
    if (is_acquired)
        rpi_hold_contested(self, &contest->key, lock);
    if (!lock) {
        rsi_count(self->writer->shared->lost_locks, 1);
        return;
    }
    rsi_count(lock->contested, 1);
    rsi_count(lock->acquired, is_acquired);
    rsi_count(lock->given_up, !is_acquired);
    rsi_count(lock->wait_ticks, ticks);
    rsi_count_most(lock->wait_most, ticks);
    rsi_count(lock->spun, is_spun);
    rsi_count(lock->spin_ticks, is_spun ? ticks : contest->spin_ticks);
    if (rsi_load_relaxed(&lock->first_tsc) == 0)
        rsi_store_relaxed(&lock->first_tsc, contest->since);
    rsi_store_relaxed(&lock->last_tsc, now);
}
