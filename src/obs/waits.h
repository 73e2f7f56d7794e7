/* SPDX-License-Identifier: MIT */
/*
 * waits.h - layout of the file in which the threads of a run note their latest waits.
 *
 * rouse-switches (kernel/) reads it: that program learns of a context switch some time afterwards, and finds by its
 * time which wait the thread was in. rouse creates the file, $ROUSE_OBS_DIR/waits; all processes of a run share it.
 * Its size never changes.
 */
#ifndef RSI_OBS_WAITS_H
#define RSI_OBS_WAITS_H

#include "base/base.h"

#define RSI_WAITS_RINGS 1024u /* threads at once; the waits of any further threads are not noted */
#define RSI_WAITS_KEPT 256u   /* the latest waits kept per thread */

/* One wait, written by its thread. Times are CLOCK_MONOTONIC. */
struct rsi_waits_entry {
    uint64_t begin_ns;
    uint64_t end_ns; /* 0: it has not ended */
    uint64_t site;   /* as in struct rsi_store_thread */
    uint32_t kind;   /* enum rouse_wait_kind */
    uint32_t spare;
};

/*
 * One thread's waits. Wait n is in entry n modulo RSI_WAITS_KEPT. A copy of wait n is valid if count is less than n
 * + RSI_WAITS_KEPT after copying.
 */
struct rsi_waits_ring {
    uint64_t count; /* release */
    /*
     * Time of the thread's whole life in the run queue. Written by the thread, or by the thread that ends the
     * process.
     */
    uint64_t queue_ns;
    uint32_t has_queue_ns; /* 1: queue_ns is written. Release. 0 for each new owner. */
    uint32_t spare32;
    uint64_t spare[5];
    struct rsi_waits_entry entries[RSI_WAITS_KEPT];
};

struct rsi_waits {
    /* PID namespace of owners; written by the reader before there are any */
    uint64_t pid_namespace;
    uint64_t taken; /* how often a ring was claimed; release, after its owner is written */
    /* The run's first thread, and its time in the run queue before its program began. */
    uint64_t first_tid, first_queue_ns;
    uint64_t refused; /* threads that found no free ring, counted once each; any thread adds */
    uint64_t spare[3];
    /*
     * Thread ids (tid); 0: free. A thread claims a free ring, and count continues from the previous owner's. The
     * reader frees a ring once it knows that the thread has ended and has read all of its waits.
     */
    uint32_t owners[RSI_WAITS_RINGS];
    struct rsi_waits_ring rings[RSI_WAITS_RINGS];
};
_Static_assert(sizeof(struct rsi_waits) == 8458304, "rouse/sched/switches.py makes the file");

#endif
