/* SPDX-License-Identifier: MIT */
/* sums.h - adds up the records of switches by thread, as rouse-kernel gets the sums from the kernel. */
#ifndef RSI_KERNEL_SUMS_H
#define RSI_KERNEL_SUMS_H

#include "joins.h"
#include "rings.h"

struct rsi_sums_thread {
    __u32 id; /* counted from 1 */
    __u32 tid, pid;
    __u32 state; /* enum rsi_bpf_state */
    __u64 first_ns, since_ns;
    __u64 voluntary, involuntary;
    __u64 cpu_ns;
    __u64 queued_ns, queued_most_ns; /* after an involuntary switch, or when it was new */
    __u64 all_queued_ns;             /* if has_all_queued: including the time after wake-ups */
    bool has_all_queued;
    struct rsi_joins_place place;
    struct rsi_joins_wait wait; /* the wait in which it last went to sleep */
    __u32 next;                 /* the next live thread with the same hash; 0: none */
    char name[RSI_BPF_NAME];
};

/* Sleeps of one thread in one wait, or outside any known wait. */
struct rsi_sums_sleep {
    __u32 thread; /* its id; 0: this entry is free */
    struct rsi_joins_wait wait;
    __u64 count, ns, most_ns; /* of sleeps that have ended, each until the thread ran again */
};

struct rsi_sums {
    struct rsi_sums_thread threads[2 * RSI_BPF_THREADS]; /* including ended threads */
    __u32 count;
    struct rsi_sums_sleep sleeps[RSI_BPF_SLEEPS]; /* by hash */
    __u64 lost_threads, lost_sleeps;              /* for which there was no room */
    __u64 lost_records;                           /* for which the kernel had no room */
};
extern struct rsi_sums rsi_sums;

void rsi_sums_add(const struct rsi_record *record);

#endif
