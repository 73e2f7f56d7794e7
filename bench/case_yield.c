/* SPDX-License-Identifier: MIT */
/* case_yield.c - T threads that only yield. An operation is one yield. */
#include "team.h"

static void yield(struct bench_member *member, uint64_t ops)
{
    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(member->team->run, i, ops);
        bench_thread_yield();
    }
}

static int prepare(struct bench_run *run)
{
    return bench_plain_prepare(run, yield);
}

const struct bench_case BENCH_NAME(case_yield) = {
    .name = "yield",
    .summary = "T threads that only yield",
    .threads = 2,
    .prepare = prepare,
    .begin = bench_plain_begin,
    .sample = bench_plain_sample,
    .end = bench_plain_end,
    .release = bench_plain_release,
};
