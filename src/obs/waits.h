/* SPDX-License-Identifier: MIT */
/*
 * waits.h - which waits the threads of a run were in of late: for rouse-switches, which learns of a switch some time after
 * it, and tells by its time which wait it was in.
 *
 * A file that the command makes, $ROUSE_OBS_DIR/waits, which all processes of a run share. Its size never changes.
 */
#ifndef RSI_OBS_WAITS_H
#define RSI_OBS_WAITS_H

#include "base/base.h"

#define RSI_WAITS_RINGS 1024u /* threads at once; of more it is not told which waits they were in */
#define RSI_WAITS_KEPT 256u   /* of one thread, the newest */

/* A wait. Written by its thread. Times are CLOCK_MONOTONIC. */
struct rsi_waits_entry {
    uint64_t begin_ns;
    uint64_t end_ns; /* 0: it goes on */
    uint64_t site;   /* as in struct rsi_store_thread */
    uint32_t kind;   /* enum rouse_wait_kind */
    uint32_t spare;
};

/*
 * Of one thread: wait n lies in entry n modulo RSI_WAITS_KEPT. What has been read of wait n is good if count is
 * less than n + RSI_WAITS_KEPT after that.
 */
struct rsi_waits_ring {
    uint64_t count; /* release */
    uint64_t
        queue_ns; /* of its whole life, in the run queue: by the thread, or who ends the process */
    uint32_t is_told; /* queue_ns is; release. 0 with each new owner */
    uint32_t spare32;
    uint64_t spare[5];
    struct rsi_waits_entry entries[RSI_WAITS_KEPT];
};

struct rsi_waits {
    uint64_t pid_namespace; /* that owners are of: written by the reader before there is any */
    uint64_t taken;         /* times that a ring was taken; release, after its owner */
    /* The run's first thread, and how much it was in the run queue before its program began. */
    uint64_t first_tid, first_queue_ns;
    uint64_t refused; /* threads that found no free ring, each once; any of them adds */
    uint64_t spare[3];
    /*
     * Numbers of threads; 0: free. A thread takes a free one; its count goes on from the last owner's. The reader frees
     * it, when it has read that the thread has ended, and all before that.
     */
    uint32_t owners[RSI_WAITS_RINGS];
    struct rsi_waits_ring rings[RSI_WAITS_RINGS];
};
_Static_assert(sizeof(struct rsi_waits) == 8458304, "rouse/sched/switches.py makes the file");

#endif
