/* SPDX-License-Identifier: MIT */
/*
 * observe.h - whether recording is on, and what the folders above core report to it.
 *
 * Public within librouse: sync/ and io/ may include it. account.c implements these calls. Waits and wake-ups
 * record themselves (park.h); contended locks have contest.h and hold times hold.h.
 */
#ifndef RSI_CORE_OBSERVE_H
#define RSI_CORE_OBSERVE_H

#include "base/base.h"

#include <rouse/obs.h>
#include <rouse/thread.h>

extern uint32_t rsi_obs_mode; /* enum rouse_obs_mode */

/* In assembly, because compilers do not compare an atomic variable in memory. Every wake-up runs this. */
RSI_INLINE bool rsi_obs_is_on(void)
{
#if defined(__x86_64__)
    bool is_on;
    __asm__ volatile("cmpl $0, %1" : "=@ccne"(is_on) : "m"(rsi_obs_mode));
    return is_on;
#else
    return rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF;
#endif
}

/* Whether recording is on or word is not 0: one test for both, on every switch. */
RSI_INLINE bool rsi_obs_is_on_or(uint32_t word)
{
#if defined(__x86_64__)
    bool is_any;
    __asm__ volatile("orl %2, %1" : "=@ccne"(is_any), "+r"(word) : "m"(rsi_obs_mode));
    return is_any;
#else
    return (rsi_load_relaxed(&rsi_obs_mode) | word) != 0;
#endif
}

/*
 * Format the call that returns to site as "function+0x1c (module+0x11fc)", for a program's last line. Returns
 * the number of bytes.
 */
size_t rsi_obs_site_format(const void *site, char *buffer, size_t bytes);

/* Set the verdict of the calling thread's last wait, if recording is on. */
void rsi_park_verdict(struct rouse_thread *self, enum rouse_verdict verdict);

/*
 * For a verdict that is known only after a later wait: rsi_park_past saves the last wait in *past, and returns
 * false if that wait was not recorded. rsi_park_past_verdict then sets the verdict of the saved wait.
 */
struct rsi_past {
    uint64_t wait_site, wake_site, object, waits;
    uint32_t kind, verdict;
};
bool rsi_park_past(struct rouse_thread *self, struct rsi_past *past);
void rsi_park_past_verdict(struct rouse_thread *self, const struct rsi_past *past,
                           enum rouse_verdict verdict);

/* Count a signal or broadcast of a condition that has no waiters. */
void rsi_account_unheard_slow(bool is_broadcast);

RSI_INLINE void rsi_account_unheard(bool is_broadcast)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_unheard_slow(is_broadcast);
}

/* Count a finished blocking call, of I/O or a sleep, with its result. */
void rsi_account_call_slow(enum rouse_wait_kind kind, long result);

RSI_INLINE void rsi_account_call(enum rouse_wait_kind kind, long result)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_call_slow(kind, result);
}

/* Count a herd: count threads, more than one, were woken at once. */
void rsi_account_herd(size_t count);

#endif
