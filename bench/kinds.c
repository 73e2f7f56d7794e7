/* SPDX-License-Identifier: MIT */
/* kinds.c - the kinds of threads that rouse-bench measures. */
#include "bench.h"

#include <rouse/rouse.h>

const char bench_program[] = "rouse-bench";

static int set_up_recording(const struct bench_run *run)
{
    return rouse_obs_set_mode((enum rouse_obs_mode)run->options.obs);
}

static int set_up_user(struct bench_run *run)
{
    const struct rouse_config config = { .workers = run->options.workers };
    int error = rouse_configure(&config);
    if (error)
        return error;
    run->workers = rouse_worker_count();
    if (run->options.pin)
        run->pinned = bench_pin_workers(run);
    return set_up_recording(run);
}

static int set_up_kernel(struct bench_run *run)
{
    int error = set_up_recording(run);
    return error ? error : bench_keep_to_cpus(run);
}

const struct bench_kind bench_kinds[] = {
    {
        .name = "user",
        .summary = "many threads on few workers",
        .user = true,
        .recorded = true,
        .workers_max = BENCH_TALLIES,
        .cases = bench_cases_rouse,
        .set_up = set_up_user,
        .measure = bench_measure_rouse,
    },
    {
        .name = "kernel",
        .summary = "one pthread each",
        .recorded = true,
        .workers_max = BENCH_TALLIES,
        .cases = bench_cases_rouse,
        .set_up = set_up_kernel,
        .measure = bench_measure_rouse,
    },
    {
        .name = "clone",
        .summary = "one bare clone() each, a library of the benchmark's own",
        .workers_max = BENCH_TALLIES,
        .cases = bench_cases_clone,
        .set_up = bench_keep_to_cpus,
        .measure = bench_measure_clone,
    },
    { .name = NULL },
};
