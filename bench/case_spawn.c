/* SPDX-License-Identifier: MIT */
/* case_spawn.c - create a thread and join it, one at a time. */
#include "impl.h"

struct child {
    struct bench_run *run;
    uint64_t done, total;
};

static void *child_main(void *arg)
{
    struct child *child = arg;
    bench_count_some(child->run, child->done, child->total);
    return NULL;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct child child = { .run = run, .total = ops };
    struct bench_thread t;

    bench_start(run);
    for (uint64_t i = 0; i < ops; i++) {
        child.done = i;
        int error = bench_thread_create(run, &t, child_main, &child);
        if (error)
            return bench_fail(run, error, "creating a thread");
        bench_thread_join(&t);
    }
    bench_stop(run);
    run->sample_ops = ops;
    return 0;
}

const struct bench_case BENCH_NAME(case_spawn) = {
    .name = "spawn",
    .summary = "create a thread and join it, one at a time",
    .threads = 1,
    .sample = sample,
};
