/* SPDX-License-Identifier: MIT */
/* fiber.c - the program bench-fiber: the cases on Boost.Fiber. */
#include "impl.h"

const char bench_program[] = "bench-fiber";

static int set_up(struct bench_run *run)
{
    run->workers = run->options.workers ? run->options.workers : run->cpu_count;
    run->pinned = run->options.pin ? run->workers : 0;
    return bench_fiber_start(run->workers, run->options.pin, run->cpus, run->cpu_count);
}

static void tear_down(struct bench_run *run)
{
    (void)run;
    bench_fiber_stop();
}

const struct bench_kind bench_kinds[] = {
    {
        .name = "fiber",
        .summary = "Boost.Fiber: round robin on one worker, work stealing on more",
        .user = true,
        .cases = bench_cases_peer,
        .set_up = set_up,
        .measure = bench_measure_peer,
        .tear_down = tear_down,
    },
    { .name = NULL },
};
