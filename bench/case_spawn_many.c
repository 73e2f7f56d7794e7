/* SPDX-License-Identifier: MIT */
/*
 * case_spawn_many.c - create T threads, then join them all. An operation is one thread.
 *
 * The first sample uses stacks that were never touched. It is reported as cold_ns_per_op only. The median of
 * the other samples is warm_ns_per_op and ns_per_op.
 */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One child in this many reports its worker, on behalf of the batch. */
#define COUNT_CHILDREN 64u

struct state {
    uint64_t capacity;
    struct bench_thread *threads;
    uint64_t create_ns, cold_create_ns;
    bool warm; /* a sample was taken before */
    struct bench_run *run;
};

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->run = run;
    s->capacity = run->threads;
    s->threads = malloc(s->capacity * sizeof *s->threads);
    if (!s->threads)
        return -ENOMEM;
    memset(s->threads, 0xff, s->capacity * sizeof *s->threads); /* page it in now */
    return 0;
}

static void *counted_child(void *arg)
{
    struct state *s = arg;
    bench_count(s->run, COUNT_CHILDREN);
    return NULL;
}

/* The last batch may be smaller, so that the sum is the number of threads. */
static void *last_counted_child(void *arg)
{
    struct state *s = arg;
    bench_count(s->run, (s->capacity - 1) % COUNT_CHILDREN + 1);
    return NULL;
}

static void *child(void *arg)
{
    return arg;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    uint64_t made = 0;
    int error = 0;

    bench_start(run);
    for (; made < ops && error == 0; made++) {
        void *(*fn)(void *) = child;
        if (made % COUNT_CHILDREN == 0)
            fn = ops - made > COUNT_CHILDREN ? counted_child : last_counted_child;
        error = bench_thread_create(run, &s->threads[made], fn, s);
    }
    if (error)
        made--;
    const uint64_t created_ns = raw_clock_ns(CLOCK_MONOTONIC) - run->started.wall_ns;
    for (uint64_t i = 0; i < made; i++)
        bench_thread_join(&s->threads[i]);
    bench_stop(run);
    if (error)
        return bench_fail(run, error, "creating a thread");
    run->sample_ops = ops;
    if (s->warm)
        s->create_ns += created_ns;
    else
        s->cold_create_ns = created_ns;
    s->warm = true;
    return 0;
}

static void report(struct bench_run *run)
{
    const struct state *s = run->state;
    bench_figure(run, "cold_ns_per_op", run->first_ns_per_op);
    bench_figure(run, "cold_create_ns_per_op", (double)s->cold_create_ns / run->threads);
    bench_figure(run, "warm_ns_per_op", bench_median(run));
    bench_figure(run, "warm_create_ns_per_op", (double)s->create_ns / (double)run->total_ops);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    free(s->threads);
    free(s);
}

const struct bench_case BENCH_NAME(case_spawn_many) = {
    .name = "spawn_many",
    .summary = "create T threads, then join them; cold and warm",
    .threads = 10000,
    .flags = BENCH_FIXED_OPS | BENCH_COLD_FIRST,
    .prepare = prepare,
    .sample = sample,
    .report = report,
    .release = release,
};
