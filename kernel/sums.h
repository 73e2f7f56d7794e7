/* SPDX-License-Identifier: MIT */
/* sums.h - what the records of switches come to, by thread: the sums that rouse-kernel has from the kernel. */
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
    __u64 all_queued_ns;             /* if is_told: also after it was woken */
    bool is_told;
    struct rsi_joins_place place;
    struct rsi_joins_wait wait; /* that it was in when it last went to sleep */
    __u32 next;                 /* of those alive whose numbers have one hash; 0: none */
    char name[RSI_BPF_NAME];
};

/* Sleeps of one thread in one wait, or in none that is known. */
struct rsi_sums_sleep {
    __u32 thread; /* its id; 0: there is none here */
    struct rsi_joins_wait wait;
    __u64 count, ns, most_ns; /* of those that have ended; each until the thread ran again */
};

struct rsi_sums {
    struct rsi_sums_thread threads[2 * RSI_BPF_THREADS]; /* also those that have ended */
    __u32 count;
    struct rsi_sums_sleep sleeps[RSI_BPF_SLEEPS]; /* by hash */
    __u64 lost_threads, lost_sleeps;              /* that found no room */
    __u64 lost_records;                           /* that the kernel had no room for */
};
extern struct rsi_sums rsi_sums;

void rsi_sums_add(const struct rsi_record *record);

#endif
