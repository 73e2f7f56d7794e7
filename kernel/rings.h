/* SPDX-License-Identifier: MIT */
/*
 * rings.h - reads the kernel's records of a program's threads by perf_event_open(2), which any user may do
 * for their own processes.
 */
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
    __u64 lost;    /* PERF_RECORD_LOST: how many records before it had no room */
    __u32 type;    /* PERF_RECORD_... */
    __u32 misc;
    __u32 pid, tid;
    __u32 parent;            /* PERF_RECORD_FORK: the thread that created it */
    char name[RSI_BPF_NAME]; /* PERF_RECORD_COMM */
};

/*
 * Open a ring for each processor. It records the next process that thread creates, from its exec on, and all
 * its descendants. Returns 0 or -errno.
 */
int rsi_rings_open(pid_t thread);

/* Store the descriptors to wait for in *polls, where they stay valid. Returns their number. */
size_t rsi_rings_polls(const struct pollfd **polls);

/* Stop recording. */
void rsi_rings_stop(void);

/*
 * Take the records written so far. is_all: including the newest ones, after rsi_rings_stop. They are in order
 * of time and stay valid until the next call. False: out of memory.
 */
struct rsi_records {
    const struct rsi_record *all;
    size_t count;
};
bool rsi_rings_take(bool is_all, struct rsi_records *records);

#endif
