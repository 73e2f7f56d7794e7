/* SPDX-License-Identifier: MIT */
/* cpu_time.h - the kernel's figures of a kernel thread: how long it ran, and how long it waited in the run queue. */
#ifndef RSI_OBS_CPU_TIME_H
#define RSI_OBS_CPU_TIME_H

#include "base/base.h"

/* Since the thread began. */
struct rsi_cpu_time {
    uint64_t cpu_ns;
    uint64_t queue_ns; /* runnable, but not running */
};

/*
 * These calls make system calls only, and leave errno alone. The time in the run queue costs 20 times as much as the
 * CPU time: it is in /proc, where the kernel makes a folder for each new thread that is looked at. Reading it takes a
 * descriptor for a moment.
 */

/* CPU time of a kernel thread of this process; 0: it has ended. */
uint64_t rsi_cpu_time_ran(int32_t tid);

/*
 * The figures of a kernel thread that is recorded from now on. Where it has hardly run, queue_ns is left 0: then it
 * includes no more than what passed until the thread first ran.
 */
struct rsi_cpu_time rsi_cpu_time_begin(int32_t tid);

/*
 * Read how long a kernel thread that was outside of waits for usr_ticks, and ran for cpu_ns, was in the run queue since
 * it began. Not read, and 0, where both agree: it was there for no more than their difference. False: not known.
 */
bool rsi_cpu_time_queued(int32_t tid, uint64_t usr_ticks, uint64_t cpu_ns, uint64_t *queue_ns);

/* Of all threads of the process, those that have ended too. */
struct rsi_process_time {
    uint64_t cpu_ns;
    uint64_t system_ns; /* the part of it in the kernel */
};

struct rsi_process_time rsi_process_time(void);

/* The process ends: write the figures of all live kernel threads, and of the process, into the file. */
void rsi_cpu_time_note(void);

#endif
