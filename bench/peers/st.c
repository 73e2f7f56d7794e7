/* SPDX-License-Identifier: MIT */
/* st.c - the program bench-st: the cases on State Threads. */
#include "impl.h"

const char bench_program[] = "bench-st";

static int set_up(struct bench_run *run)
{
    run->workers = 1;
    if (run->options.pin && raw_pin(run->cpus[0]) == 0)
        run->pinned = 1;
    return st_set_eventsys(ST_EVENTSYS_ALT) == 0 && st_init() == 0 ? 0 : -errno;
}

const struct bench_kind bench_kinds[] = {
    {
        .name = "st",
        .summary = "State Threads: one kernel thread",
        .user = true,
        .workers_max = 1,
        .cases = bench_cases_peer,
        .set_up = set_up,
        .measure = bench_measure_peer,
    },
    { .name = NULL },
};
