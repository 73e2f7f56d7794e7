/* SPDX-License-Identifier: MIT */
/* rings.h - what the kernel writes of a program's threads, for any user of what is his: perf_event_open(2). */
#ifndef RSI_KERNEL_RINGS_H
#define RSI_KERNEL_RINGS_H

#include <linux/perf_event.h>
#include <linux/types.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "shared.h"

struct rsi_record {
    __u64 time_ns; /* CLOCK_MONOTONIC */
    __u64 lost;    /* of PERF_RECORD_LOST: records before it that found no room */
    __u32 type;    /* PERF_RECORD_... */
    __u32 misc;
    __u32 pid, tid;
    __u32 parent;            /* of PERF_RECORD_FORK: the thread that made it */
    char name[RSI_BPF_NAME]; /* of PERF_RECORD_COMM */
};

/*
 * A ring for each processor, for all that comes of the next process that thread makes, from its exec on. Returns 0 or
 * -errno.
 */
int rsi_rings_open(pid_t thread);

/* To be waited for: count of them in *polls, which lie there from then on. */
size_t rsi_rings_polls(const struct pollfd **polls);

/* Nothing is written any more. */
void rsi_rings_stop(void);

/*
 * Take what has been written so far; is_all: the newest too, after rsi_rings_stop. They are told in the order of their
 * time, and lie there until the next call. Returns false if there is no memory for them.
 */
struct rsi_records {
    const struct rsi_record *all;
    size_t count;
};
bool rsi_rings_take(bool is_all, struct rsi_records *records);

#endif
