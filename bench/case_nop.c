/* SPDX-License-Identifier: MIT */
/* case_nop.c - an empty operation, which measures the harness itself. */
#include "team.h"

static void nop(struct bench_member *member, uint64_t ops)
{
    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(member->team->run, i, ops);
        __asm__ volatile("");
    }
}

static int prepare(struct bench_run *run)
{
    return bench_plain_prepare(run, nop);
}

const struct bench_case BENCH_NAME(case_nop) = {
    .name = "nop",
    .summary = "an empty operation, which measures the harness itself",
    .threads = 1,
    .prepare = prepare,
    .begin = bench_plain_begin,
    .sample = bench_plain_sample,
    .end = bench_plain_end,
    .release = bench_plain_release,
};
