/* SPDX-License-Identifier: MIT */
/*
 * trace.h - records single events in rings of the shared file, in the mode ROUSE_OBS_TRACE. Functions with a writer
 * parameter are called only in that mode, by the kernel thread of the writer.
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
 * Record the events that store.h defines. rsi_trace_switch: from self (NULL: the idle loop) to `to` (NULL: the idle
 * loop; for a kernel thread, sleep). It creates the ring if there is none, which takes milliseconds: do not call it
 * under a guard or in a critical section. The others drop their event if there is no ring yet.
 */
void rsi_trace_switch(struct rsi_writer *writer, const struct rouse_thread *self,
                      const struct rouse_thread *to, enum rsi_leave why, uint64_t now);
void rsi_trace_wake(struct rsi_writer *writer, const struct rouse_thread *t, uint32_t verdict,
                    uint64_t site, uint64_t waker_id);
void rsi_trace_verdict(struct rsi_writer *writer, const struct rouse_thread *t, uint32_t kind,
                       uint32_t verdict);
void rsi_trace_steal(struct rsi_writer *writer, unsigned count);
/* The events LOCK and GOT; now is the time of GOT. */
void rsi_trace_lock(struct rsi_writer *writer, const struct rouse_thread *self,
                    const struct rsi_contest *contest, const struct rsi_lock_key *key,
                    uint32_t verdict, uint64_t now);
void rsi_trace_new(struct rsi_writer *writer, const struct rouse_thread *t, uint64_t maker_id,
                   uint64_t now);
void rsi_trace_end(struct rsi_writer *writer, const struct rouse_thread *self);

/*
 * Check whether another process (`rouse record`) requests events, or no longer does. To be called now and then
 * while recording is on.
 */
void rsi_trace_look(uint64_t now_ns);

/* The program sets the mode. If another process still requests events, the next look begins a trace again. */
void rsi_trace_set_mode(uint32_t mode);

/* Write the mode to the file, which has just been created. */
void rsi_trace_publish_mode(void);

void rsi_trace_fork_prepare(void);
void rsi_trace_fork_parent(void);

/* Reset, in a child after fork: no process requests its events, and it has no rings. */
void rsi_trace_child(void);

#endif
