/* SPDX-License-Identifier: MIT */
/* joins.h - which recorded wait a thread was in when it was taken off its processor: src/obs/waits.h, read. */
#ifndef RSI_KERNEL_JOINS_H
#define RSI_KERNEL_JOINS_H

#include <linux/types.h>
#include <stdbool.h>

#include "shared.h"

/* What is known of a thread's waits; all 0 in the beginning. */
struct rsi_joins_place {
    __u64 taken; /* rings so far, when it had none */
    __u64 last;  /* number of the wait that was found last */
    __u32 ring;  /* from 1 on; 0: none was found yet */
};

struct rsi_joins_wait {
    __u64 site;
    __u32 kind;
    enum rsi_bpf_join join;
};

/* Returns 0 or -errno; without it nothing is known of waits. */
int rsi_joins_open(const char *path);

/* Threads that wait, and found no room to tell in what. */
__u64 rsi_joins_refused(void);

/* Of the thread tid at that time, which is not before that of the last call for this place. */
struct rsi_joins_wait rsi_joins_find(struct rsi_joins_place *place, __u32 tid, __u64 at_ns);

/* How long a thread was in the run queue in all, since the program began; false: it is not known. */
bool rsi_joins_end(struct rsi_joins_place *place, __u32 tid, __u64 *queue_ns); /* it has ended */
bool rsi_joins_queue(__u32 pid, __u32 tid, __u64 *queue_ns);                   /* it is there */

#endif
