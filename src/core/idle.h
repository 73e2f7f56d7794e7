/* SPDX-License-Identifier: MIT */
/*
 * idle.h - how an idle worker sleeps and who wakes it. idle.c has the protocol; watch.c, monitor.c and spares.c
 * handle stuck workers; sleep_lead.c shortens the sleep before a deadline.
 */
#ifndef RSI_CORE_IDLE_H
#define RSI_CORE_IDLE_H

#include "core/share.h"
#include "os/os.h"

#include <signal.h>

/* idle.c */
void rsi_idle_wake_one(struct rouse_cluster *cluster, struct rsi_worker *preferred);
void rsi_idle_wake_for(struct rsi_worker *w);
void rsi_idle_wake_any(void);
struct rsi_worker *rsi_idle_peek(struct rouse_cluster *cluster);
void rsi_idle_wait(struct rsi_worker *w);
void rsi_idle_found(struct rsi_worker *w);
void rsi_idle_look_again(void);
void rsi_idle_wake_worker(struct rsi_worker *w);
void rsi_idle_child(void);

/* Whether every worker of every cluster sleeps. */
RSI_INLINE bool rsi_idle_all_sleep(void)
{
    return rsi_load_relaxed(&rsi_rt.idle_count) == rsi_load_relaxed(&rsi_rt.live_count);
}

/*
 * Whether so many workers search that nobody else needs to be woken: more than one for every SEARCHERS_EACH workers of the
 * cluster. With fewer workers one is enough. On many, one at a time would wake the others too slowly: docs/scale.md.
 */
#define SEARCHERS_EACH 8u

RSI_INLINE bool rsi_idle_is_searched(const struct rouse_cluster *cluster)
{
    uint32_t searching = rsi_load_relaxed(&cluster->searching);
    return searching != 0 && searching > rsi_load_relaxed(&cluster->worker_count) / SEARCHERS_EACH;
}

/* w has a new runnable thread: wake another worker of the cluster if that helps (idle.c has the protocol). */
RSI_INLINE void rsi_idle_wake_if_useful(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = w->cluster;
    rsi_fence_light(); /* F1 */
    if (rsi_likely(rsi_load_relaxed(&cluster->stealers) == 0) || rsi_idle_is_searched(cluster) ||
        rsi_share_not(w))
        return;
    rsi_idle_wake_one(cluster, NULL);
}

/* sleep_lead.c */
bool rsi_sleep_lead_spin(struct rsi_worker *w, uint64_t next);
uint64_t rsi_sleep_lead_deadline(const struct rsi_worker *w, uint64_t deadline_ns);
void rsi_sleep_lead_ended(struct rsi_worker *w, uint64_t asked_ns);

/* watch.c */
void rsi_watch_begin(struct rsi_worker *w);
void rsi_watch_end(struct rsi_worker *w);
bool rsi_watch_if_due(struct rsi_worker *w); /* true: w has work now */

/* monitor.c */
void rsi_monitor_start(uint32_t bound, uint32_t computing_most);
void rsi_monitor_wake(void);
unsigned rsi_monitor_threads(void); /* 0 to 2 */
void rsi_monitor_child(void);

/*
 * spares.c, for the monitor only. rsi_spares_prepare gives the calling kernel thread a descriptor table of its own.
 * False: it did not, since no spare could be added afterwards.
 */
bool rsi_spares_prepare(void);
/* After rsi_spares_prepare: add a worker with this signal mask and wait until it exists. Returns as rsi_workers_add. */
int rsi_spares_add(struct rouse_cluster *cluster, const sigset_t *mask);
/* Likewise: remove the spare of the cluster with that number. Returns as rsi_workers_remove. */
int rsi_spares_remove(struct rouse_cluster *cluster, uint32_t number);
/* Likewise: end the waits that have finished on a stuck worker's ring, and move the threads queued there. */
void rsi_spares_relieve(struct rsi_worker *stuck, struct rsi_worker *to);
unsigned rsi_spares_threads(void); /* 0 or 1 */
void rsi_spares_child(void);

/*
 * Asked before a sleep without a limit (obs/): the time until which to sleep instead, so that a run in which every
 * thread waits for another is reported; or UINT64_MAX. quiet is zero when the caller becomes idle.
 */
struct rsi_quiet {
    uint64_t look_ns;
    unsigned looks;
};
uint64_t rsi_obs_all_wait(struct rsi_quiet *quiet);

#endif
