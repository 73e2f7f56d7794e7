/* SPDX-License-Identifier: MIT */
/*
 * cluster.h - what a cluster is. Settings are whoever makes it's; its list of workers changes under the
 * runtime's lock and is read by anyone; what idle.c names changes under its idle_guard.
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
    uint16_t home;           /* its number, from 1; in its threads' blocks */
    uint8_t state;           /* enum rsi_cluster_state */
    bool is_shortest;        /* placement: to the shortest queue */
    uint32_t affinity;       /* 1 to 6; the next two follow from it */
    uint32_t steal_eighths;  /* of a queue that a thief takes, rounded up; 0: one thread */
    uint64_t steal_pause_ns; /* between two steals of an idle worker */
    uint32_t slot_count;     /* of workers[] in use so far; NULLs among them */
    uint32_t worker_count;   /* whose kernel threads run */
    uint32_t staying_count;  /* of its list, those that are not leaving */
    uint32_t wanted;         /* after a fork so many are started again */
    uint64_t past_turns, past_steals, past_stolen; /* of workers that have ended */
    char name[ROUSE_NAME_BYTES];
    bool is_pinned;
    struct rsi_cpus cpus;

    /* idle.c has the protocol of these */
    _Alignas(RSI_CACHE_LINE) uint32_t takers; /* idle workers, if they take from each other; or 0 */
    uint32_t searching;
    uint32_t idle_count;
    uint32_t idle_guard;
    struct rsi_worker *idle_first;

    _Alignas(RSI_CACHE_LINE) struct rsi_worker *workers[RSI_WORKERS_MAX];
};

#endif
