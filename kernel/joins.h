/* SPDX-License-Identifier: MIT */
/*
 * joins.h - finds the recorded wait that a thread was in when it was switched away, by reading
 * src/obs/waits.h.
 */
#ifndef RSI_KERNEL_JOINS_H
#define RSI_KERNEL_JOINS_H

#include <linux/types.h>
#include <stdbool.h>

#include "shared.h"

/* Known facts about a thread's waits. All 0 at the beginning. */
struct rsi_joins_place {
    __u64 taken; /* number of rings at a time when it had none */
    __u64 last;  /* number of the last wait found */
    __u32 ring;  /* counted from 1; 0: none found yet */
};

struct rsi_joins_wait {
    __u64 site;
    __u32 kind;
    enum rsi_bpf_join join;
};

/* Returns 0 or -errno. Without this call nothing is known about waits. */
int rsi_joins_open(const char *path);

/* Threads that wait but had no room to record what for. */
__u64 rsi_joins_refused(void);

/* The wait of thread tid at at_ns, which must not be before that of the last call with this place. */
struct rsi_joins_wait rsi_joins_find(struct rsi_joins_place *place, __u32 tid, __u64 at_ns);

/* Get the total time that a thread was in the run queue since the program began. False: unknown. */
bool rsi_joins_end(struct rsi_joins_place *place, __u32 tid,
                   __u64 *queue_ns);                         /* the thread has ended */
bool rsi_joins_queue(__u32 pid, __u32 tid, __u64 *queue_ns); /* the thread still exists */

#endif
