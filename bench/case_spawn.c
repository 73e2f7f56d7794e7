/* SPDX-License-Identifier: MIT */
/* case_spawn.c - T threads, each of which creates a thread and joins it, again and again. */
#include "team.h"

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

static void spawn(struct bench_member *member, uint64_t ops)
{
    struct bench_run *run = member->team->run;
    struct child child = { .run = run, .total = ops };
    struct bench_thread t;

    for (; child.done < ops; child.done++) {
        int error = bench_thread_create(run, &t, child_main, &child);
        if (error) {
            bench_fail(run, error, "creating a thread");
            return;
        }
        bench_thread_join(&t);
    }
}

static int prepare(struct bench_run *run)
{
    return bench_plain_prepare(run, spawn);
}

const struct bench_case BENCH_NAME(case_spawn) = {
    .name = "spawn",
    .summary = "create a thread and join it, one at a time",
    .threads = 1,
    .prepare = prepare,
    .begin = bench_plain_begin,
    .sample = bench_plain_sample,
    .end = bench_plain_end,
    .release = bench_plain_release,
};
