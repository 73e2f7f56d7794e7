/* SPDX-License-Identifier: MIT */
/*
 * contest.h - how long a thread waits for a held lock, from its arrival until it acquires the lock or gives up.
 *
 * Public within librouse: sync/ may include it. Counted while recording is on; contest.c writes the lock table.
 * Use: begin when the lock is found held; sleep before each sleep, so that a wait that never ends shows both its
 * sides; end with the outcome.
 */
#ifndef RSI_CORE_CONTEST_H
#define RSI_CORE_CONTEST_H

#include "core/observe.h"

struct rsi_contest {
    uint64_t since_tsc;      /* 0: not recorded */
    uint64_t spin_ticks;     /* how much of it the thread spun; the caller adds */
    const void *holder_site; /* where the holder acquired the lock */
    bool has_slept;
    bool is_shown; /* in the thread's slot */
};

RSI_INLINE void rsi_contest_begin(struct rsi_contest *contest, const void *holder_site)
{
    bool is_on = rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF;
    *contest =
        (struct rsi_contest){ .since_tsc = is_on ? rsi_tsc() : 0, .holder_site = holder_site };
}

/* name: where the pointer to the lock's name is stored. May be called repeatedly; not under a guard. */
void rsi_contest_sleep_slow(struct rsi_contest *contest, enum rouse_wait_kind kind,
                            const void *lock, const char *const *name, const void *site);

RSI_INLINE void rsi_contest_sleep(struct rsi_contest *contest, enum rouse_wait_kind kind,
                                  const void *lock, const char *const *name, const void *site)
{
    if (rsi_unlikely(contest->since_tsc != 0))
        rsi_contest_sleep_slow(contest, kind, lock, name, site);
}

void rsi_contest_end_slow(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                          const void *lock, const char *const *name, const void *site,
                          bool is_acquired);

RSI_INLINE void rsi_contest_end(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                                const void *lock, const char *const *name, const void *site,
                                bool is_acquired)
{
    if (rsi_unlikely(contest->since_tsc != 0))
        rsi_contest_end_slow(contest, kind, lock, name, site, is_acquired);
}

#endif
