/* SPDX-License-Identifier: MIT */
/* runtime.h - the one runtime of a process: its workers and clusters, its start, its lock. */
#ifndef RSI_CORE_RUNTIME_H
#define RSI_CORE_RUNTIME_H

#include "core/worker.h"

struct rsi_runtime {
    uint32_t is_started; /* start releases it; every caller's first look acquires it */
    uint32_t worker_count;
    struct rsi_worker *workers[RSI_WORKERS_MAX];        /* by index; none is ever freed */
    struct rouse_cluster *clusters[ROUSE_CLUSTERS_MAX]; /* by home - 1; none is ever freed */
    uint32_t cluster_count;                             /* of clusters[] used so far */
    enum rouse_kind default_kind;
    bool is_tls_own;                 /* each user thread has thread-local storage of its own */
    const struct rsi_poller *poller; /* register releases it; idle workers acquire it */

    /* idle.c describes the protocol of these. */
    _Alignas(RSI_CACHE_LINE) uint32_t watching;
    /* share.h: twice what it costs to wake a worker and to steal, and the parts */
    uint32_t share_ns, wake_cost_ns, search_cost_ns;
    _Alignas(RSI_CACHE_LINE) uint32_t idle_count; /* in all clusters */
    uint32_t live_count;                          /* workers in all clusters */
    uint32_t polling;
    uint32_t poll_count; /* written by the worker that holds polling */

    _Alignas(RSI_CACHE_LINE) uint64_t ids;
    uint32_t kernel_known;  /* kernel and foreign threads */
    uint32_t kernel_parked; /* those of them in a wait without a deadline and not yet woken */
    uint32_t helpers_busy;
    /* In a child that a user thread forked: the child's first kernel thread is a worker. */
    bool is_main_worker;
};

extern struct rsi_runtime rsi_rt;
extern struct rouse_cluster rsi_cluster_default;
extern struct rouse_cluster rsi_cluster_retired; /* no thread belongs to it: workers.c */
extern struct rsi_exec rsi_exec_none;

void rsi_runtime_start_slow(void);
int rsi_runtime_try_start_slow(void);
void rsi_runtime_child(struct rsi_worker *survivor);
uint64_t rsi_id_next(struct rsi_worker *w);
void rsi_runtime_lock(void); /* a pthread mutex; held over a fork */
void rsi_runtime_unlock(void);

RSI_INLINE void rsi_runtime_start(void)
{
    /* Pairs with the release in rsi_runtime_try_start_slow. */
    if (rsi_unlikely(!rsi_load_acquire(&rsi_rt.is_started)))
        rsi_runtime_start_slow();
}

/* Returns 0, or -EAGAIN or -ENOMEM: there is no worker, and a later call may start the runtime. */
RSI_INLINE int rsi_runtime_try_start(void)
{
    /* Pairs with the release in rsi_runtime_try_start_slow. */
    return rsi_likely(rsi_load_acquire(&rsi_rt.is_started)) ? 0 : rsi_runtime_try_start_slow();
}

/*
 * The number of entries in rsi_rt.workers, including workers that have ended. Acquire pairs with the release in
 * rsi_workers_add_locked.
 */
RSI_INLINE uint32_t rsi_worker_count(void)
{
    return rsi_load_acquire(&rsi_rt.worker_count);
}

/* Workers whose kernel threads run. */
RSI_INLINE uint32_t rsi_worker_live_count(void)
{
    return rsi_load_seq_cst(&rsi_rt.live_count);
}

RSI_INLINE struct rouse_cluster *rsi_cluster_of(uint16_t home)
{
    return rsi_rt.clusters[home - 1];
}

/* cluster.c */
void rsi_clusters_from_environment(void);
int rsi_cluster_enter(struct rouse_thread *t, struct rouse_cluster *cluster);
void rsi_clusters_child(void);

#endif
