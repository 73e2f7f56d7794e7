/* SPDX-License-Identifier: MIT */
/*
 * impl.h - the calls that every implementation under test provides.
 *
 * Cases are compiled once for each: against the public API of rouse, whose kinds user and kernel differ
 * by an attribute only; with BENCH_CLONE against the bare clone() library; with BENCH_PEER, which names
 * a header, against another library (see peers/). Everything is inline, so that no table of
 * functions stands between a case and the code it measures.
 */
#ifndef BENCH_IMPL_H
#define BENCH_IMPL_H

#include "bench.h"
#include "raw.h"

#define BENCH_STACK_BYTES 65536u

#ifdef BENCH_CLONE
#include "impl_clone.h"
#define BENCH_NAME(name) name##_clone
#elif defined(BENCH_PEER)
#include BENCH_PEER
#define BENCH_NAME(name) name##_peer
#else
#include "impl_rouse.h"
#define BENCH_NAME(name) name##_rouse
#endif

static inline bool bench_is_user(const struct bench_run *run)
{
    return run->user;
}

/* Each thread except a spawned one-shot calls this first. With --pin, it binds kernel threads to processors. */
static inline void bench_thread_entered(const struct bench_run *run, unsigned index)
{
    if (run->options.pin && !bench_is_user(run))
        raw_pin(run->cpus[index % run->cpu_count]);
}

/*
 * Credit the caller's worker or processor with ops operations. This costs some ns and, on kernel threads,
 * a system call, so call it once for many operations.
 */
static inline void bench_count(struct bench_run *run, uint64_t ops)
{
    unsigned index = bench_where(run);
    if (index >= BENCH_TALLIES)
        index = BENCH_TALLIES - 1;
    atomic_fetch_add_explicit(&run->tally[index].ops, ops, memory_order_relaxed);
}

/* Loops count every so many operations, rings every so many hops of a thread. */
#define BENCH_COUNT_EVERY 256u
#define BENCH_COUNT_HOPS 16u

/* Count from a loop. done is the number of operations before this one, of total. */
static inline void bench_count_some(struct bench_run *run, uint64_t done, uint64_t total)
{
    if (done % BENCH_COUNT_EVERY == 0)
        bench_count(run, total - done < BENCH_COUNT_EVERY ? total - done : BENCH_COUNT_EVERY);
}

/*
 * Count in a thread that does not know which operation is its last. It counts its operations every
 * BENCH_COUNT_HOPS operations, and the rest when it ends. Until a sample is recorded, sample changes trial
 * before each one, which discards calibration operations that are not counted yet.
 */
struct bench_hops {
    unsigned trial;
    unsigned uncounted;
    unsigned due; /* operations per batch; the first batch differs for each thread */
};

static inline void bench_count_hop(struct bench_run *run, struct bench_hops *hops, unsigned trial)
{
    if (hops->trial != trial) {
        hops->trial = trial;
        hops->uncounted = 0;
    }
    if (++hops->uncounted >= hops->due) {
        bench_count(run, hops->uncounted);
        hops->uncounted = 0;
        hops->due = BENCH_COUNT_HOPS;
    }
}

/* Begin and end the measured part of a sample. The measuring thread calls them. Defined in measure.c. */
void BENCH_NAME(bench_start)(struct bench_run *run);
void BENCH_NAME(bench_stop)(struct bench_run *run);
#define bench_start BENCH_NAME(bench_start)
#define bench_stop BENCH_NAME(bench_stop)

static inline int bench_fail(struct bench_run *run, int error, const char *what)
{
    if (run->error == 0) {
        run->error = error;
        run->error_what = what;
    }
    return error;
}

#endif
