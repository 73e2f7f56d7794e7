/* SPDX-License-Identifier: MIT */
/*
 * trace.h - events, one by one, into rings of the shared file: the mode ROUSE_OBS_TRACE.
 *
 * Those that take a writer are called in that mode only, by the writer's own kernel thread.
 */
#ifndef RSI_OBS_TRACE_H
#define RSI_OBS_TRACE_H

#include "core/account.h"
#include "obs/ledger.h"

RSI_INLINE bool rsi_trace_is_on(void)
{
    return rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) == ROUSE_OBS_TRACE);
}

/*
 * Events as store.h has them. switch: from self (NULL: its idle loop) to to (NULL: to that); of a kernel thread, to
 * sleep. Makes the ring if there is none, which takes milliseconds: not under a guard, nor in a section. The
 * others leave their event out where there is none yet.
 */
void rsi_trace_switch(struct rsi_writer *writer, const struct rouse_thread *self,
                      const struct rouse_thread *to, enum rsi_leave why, uint64_t now);
void rsi_trace_wake(struct rsi_writer *writer, const struct rouse_thread *t, uint32_t verdict,
                    uint64_t site, uint64_t waker_id);
void rsi_trace_verdict(struct rsi_writer *writer, const struct rouse_thread *t, uint32_t kind,
                       uint32_t verdict);
void rsi_trace_steal(struct rsi_writer *writer, unsigned count);
/* LOCK and GOT; now: of the latter. */
void rsi_trace_lock(struct rsi_writer *writer, const struct rouse_thread *self,
                    const struct rsi_contest *contest, const struct rsi_lock_key *key,
                    uint32_t verdict, uint64_t now);
void rsi_trace_new(struct rsi_writer *writer, const struct rouse_thread *t, uint64_t maker_id,
                   uint64_t now);
void rsi_trace_end(struct rsi_writer *writer, const struct rouse_thread *self);

/* Whether another process asks for events, or no longer: to be called now and then while recording is on. */
void rsi_trace_look(uint64_t now_ns);

/* The program itself has set the mode. */
void rsi_trace_settled(void);

/* In a child after fork: nobody asks it, and it has no rings. */
void rsi_trace_child(void);

#endif
