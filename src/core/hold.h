/* SPDX-License-Identifier: MIT */
/*
 * hold.h - how long locks are held, while every acquisition is recorded (ROUSE_OBS_LOCKS).
 *
 * Public within librouse: sync/ may include it.
 *
 * A lock's fast path is open to states below rsi_lock_limit. The limit is usually RSI_LOCK_HELD, which a state
 * reaches when newcomers must not enter. While holds are timed it is 0, so that every thread takes the slow path.
 * There the thread that acquires the lock calls rsi_hold_begin and, if that returns true, sets a bit of the
 * lock's own. The unlock that sees the bit calls rsi_hold_end, and rsi_hold_count once the lock is released.
 */
#ifndef RSI_CORE_HOLD_H
#define RSI_CORE_HOLD_H

#include "core/contest.h"

#define RSI_LOCK_HELD (UINT32_C(1) << 29)
extern uint32_t rsi_lock_limit;

struct rsi_hold {
    uint64_t ticks, site;
    const void *lock, *holder_site;
    /* ROUSE_WAIT_NONE: there was no timed hold, or it continues because it was begun more than once. */
    uint32_t kind;
};

/* state < rsi_lock_limit. In assembly, because compilers do not compare an atomic variable in memory. */
RSI_INLINE bool rsi_lock_is_open(uint32_t state)
{
#if defined(__x86_64__)
    bool is_open;
    __asm__ volatile("cmpl %2, %1" : "=@ccb"(is_open) : "r"(state), "m"(rsi_lock_limit));
    return is_open;
#else
    return state < rsi_load_relaxed(&rsi_lock_limit);
#endif
}

RSI_INLINE bool rsi_holds_are_timed(void)
{
    return rsi_load_relaxed(&rsi_lock_limit) == 0;
}

/*
 * The calling thread has acquired a lock: after contest, or at once (NULL). A reader may begin again; its hold
 * counts once.
 */
bool rsi_hold_begin(enum rouse_wait_kind kind, const void *lock, const char *const *name,
                    const void *site, const struct rsi_contest *contest);
void rsi_hold_end(const void *lock, struct rsi_hold *past);
void rsi_hold_count(const struct rsi_hold *past, const char *const *name);

/* Start or stop timing holds. Returns 0, or -ENOMEM with nothing changed. */
int rsi_holds_setup(bool is_on);
void rsi_holds_child(void);

#endif
