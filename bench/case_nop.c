/* SPDX-License-Identifier: MIT */
/* case_nop.c - an empty operation: what the harness itself costs. */
#include "impl.h"

static int sample(struct bench_run *run, uint64_t ops)
{
    bench_start(run);
    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(run, i, ops);
        __asm__ volatile("");
    }
    bench_stop(run);
    run->sample_ops = ops;
    return 0;
}

const struct bench_case BENCH_NAME(case_nop) = {
    .name = "nop",
    .summary = "an empty operation: what the harness itself costs",
    .threads = 1,
    .sample = sample,
};
