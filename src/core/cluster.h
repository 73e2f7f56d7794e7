/* SPDX-License-Identifier: MIT */
/*
 * cluster.h - struct rouse_cluster. The thread that makes a cluster writes its settings. Its list of workers
 * changes under the runtime's lock, and any thread may read it. The fields of idle.c change under its
 * idle_guard.
 */
#ifndef RSI_CORE_CLUSTER_H
#define RSI_CORE_CLUSTER_H

#include "core/park.h"

#include <rouse/cluster.h>

#define RSI_CPUS_MAX 4096

struct rsi_worker;

struct rsi_cpus {
    unsigned long bits[RSI_CPUS_MAX / (8 * sizeof(unsigned long))];
};

enum rsi_cluster_state {
    RSI_CLUSTER_FREE,
    RSI_CLUSTER_LIVE,
    RSI_CLUSTER_CLOSING,
    RSI_CLUSTER_ENDING
};

struct rouse_cluster {
    uint16_t home;           /* its number, from 1; stored in its threads' blocks */
    uint8_t state;           /* enum rsi_cluster_state */
    bool is_shortest;        /* placement goes to the shortest queue */
    uint32_t affinity;       /* 1 to 6; determines the next two */
    uint32_t steal_eighths;  /* share of a queue that a thief takes, rounded up; 0: one thread */
    uint64_t steal_pause_ns; /* least time between two steals of an idle worker */
    uint32_t slot_count;     /* entries of workers[] in use so far, including NULLs */
    uint32_t worker_count;   /* workers whose kernel threads run */
    uint32_t staying_count;  /* those in its list that are not leaving */
    uint32_t wanted;         /* how many are started again after a fork */
    uint64_t past_turns, past_steals, past_stolen; /* sums over workers that have ended */
    char name[ROUSE_NAME_BYTES];
    bool is_pinned;
    struct rsi_cpus cpus;

    /* idle.c describes the protocol of these. */
    /* Idle workers that may steal; 0 where no worker steals. */
    _Alignas(RSI_CACHE_LINE) uint32_t stealers;
    uint32_t searching;
    uint32_t idle_count;
    uint32_t idle_guard;
    struct rsi_worker *idle_first;
    uint64_t idle_timer_ns; /* the first deadline of idle workers, approximately: idle_timers.c */

    _Alignas(RSI_CACHE_LINE) struct rsi_worker *workers[RSI_WORKERS_MAX];
};

#endif
