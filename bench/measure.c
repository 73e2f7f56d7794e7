/* SPDX-License-Identifier: MIT */
/*
 * measure.c - the measuring thread: it finds how many operations fill a sample, and takes the samples.
 *
 * It is a thread of the kind under test, since main() is a foreign thread, whose waits have other costs.
 * First it measures itself: it runs loops of empty operations and reports the fastest.
 */
#include "impl.h"

static struct bench_reading read_now(void)
{
    struct rusage usage = { 0 };
    struct bench_reading r;
    raw6(SYS_getrusage, RUSAGE_SELF, (long)&usage, 0, 0, 0, 0);
    r.voluntary = (uint64_t)usage.ru_nvcsw;
    r.involuntary = (uint64_t)usage.ru_nivcsw;
    r.cpu_ns = raw_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    r.wall_ns = raw_clock_ns(CLOCK_MONOTONIC);
    return r;
}

void bench_start(struct bench_run *run)
{
    run->started = read_now();
}

void bench_stop(struct bench_run *run)
{
    const uint64_t wall_ns = raw_clock_ns(CLOCK_MONOTONIC);
    const struct bench_reading now = read_now();
    run->taken.wall_ns = wall_ns - run->started.wall_ns;
    run->taken.cpu_ns = now.cpu_ns - run->started.cpu_ns;
    run->taken.voluntary = now.voluntary - run->started.voluntary;
    run->taken.involuntary = now.involuntary - run->started.involuntary;
}

static double taken_ns_per_op(const struct bench_run *run)
{
    return run->sample_ops ? (double)run->taken.wall_ns / (double)run->sample_ops : 0;
}

#define HARNESS_OPS 100000u
#define HARNESS_LOOPS 5u

static void measure_harness(struct bench_run *run)
{
    uint64_t least_ns = UINT64_MAX;
    for (unsigned loop = 0; loop < HARNESS_LOOPS; loop++) {
        bench_start(run);
        for (uint64_t i = 0; i < HARNESS_OPS; i++) {
            bench_count_some(run, i, HARNESS_OPS);
            __asm__ volatile("");
        }
        bench_stop(run);
        if (run->taken.wall_ns < least_ns)
            least_ns = run->taken.wall_ns;
    }
    run->harness_ns_per_op = (double)least_ns / HARNESS_OPS;
}

/* Find by trial how many operations last BENCH_SAMPLE_NS and a fifth more. Returns 0 on failure. */
static uint64_t calibrate(struct bench_run *run)
{
    uint64_t ops = run->threads;
    for (;;) {
        if (run->test->sample(run, ops) != 0)
            return 0;
        if (run->taken.wall_ns >= BENCH_SAMPLE_NS)
            return ops;
        if (run->taken.wall_ns < BENCH_SAMPLE_NS / 10)
            ops *= 10;
        else
            ops = (uint64_t)(1.2 * BENCH_SAMPLE_NS * (double)ops / (double)run->taken.wall_ns) + 1;
    }
}

static void record(struct bench_run *run)
{
    run->sample_ns_per_op[run->sample_count++] = taken_ns_per_op(run);
    run->ops = run->sample_ops;
    run->total_ops += run->sample_ops;
    run->total.wall_ns += run->taken.wall_ns;
    run->total.cpu_ns += run->taken.cpu_ns;
    run->total.voluntary += run->taken.voluntary;
    run->total.involuntary += run->taken.involuntary;
}

static void take_samples(struct bench_run *run, uint64_t ops)
{
    const uint64_t limit_ns = (uint64_t)(run->options.seconds * 1e9);
    const uint64_t begin_ns = raw_clock_ns(CLOCK_MONOTONIC);

    if (run->test->flags & BENCH_COLD_FIRST) {
        if (run->test->sample(run, ops) != 0)
            return;
        run->first_ns_per_op = taken_ns_per_op(run);
    }
    for (unsigned i = 0; i < BENCH_TALLIES; i++)
        atomic_store_explicit(&run->tally[i].ops, 0, memory_order_relaxed);
    while (run->sample_count < run->options.samples) {
        if (run->test->sample(run, ops) != 0)
            return;
        record(run);
        if (raw_clock_ns(CLOCK_MONOTONIC) - begin_ns >= limit_ns)
            return;
    }
}

static void *measure(void *arg)
{
    struct bench_run *run = arg;
    uint64_t ops = run->options.ops;

    bench_thread_entered(run, 0);
    measure_harness(run);
    if (run->test->begin && run->test->begin(run) != 0)
        return NULL;
    if (run->test->flags & BENCH_TIMED)
        run->sample_ns = (uint64_t)(run->options.seconds * 1e9 / run->options.samples);
    if (run->sample_ns < BENCH_SAMPLE_NS)
        run->sample_ns = BENCH_SAMPLE_NS;
    if (run->test->flags & BENCH_FIXED_OPS)
        ops = run->threads;
    if (ops == 0 && !(run->test->flags & BENCH_TIMED))
        ops = calibrate(run);
    if (run->error == 0)
        take_samples(run, ops);
    if (run->test->end)
        run->test->end(run);
    return NULL;
}

int BENCH_NAME(bench_measure)(struct bench_run *run)
{
    struct bench_thread t;
    int error = bench_thread_create(run, &t, measure, run);
    if (error)
        return bench_fail(run, error, "starting the measuring thread");
    bench_thread_join(&t);
    return run->error;
}
