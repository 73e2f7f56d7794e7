/* SPDX-License-Identifier: MIT */
/* pthread.c - the program bench-pthread: the cases on plain pthreads. */
#include "impl.h"

const char bench_program[] = "bench-pthread";

pthread_attr_t bench_pthread_attr;

static int set_up(struct bench_run *run)
{
    pthread_attr_init(&bench_pthread_attr);
    pthread_attr_setstacksize(&bench_pthread_attr, BENCH_STACK_BYTES);
    return bench_keep_to_cpus(run);
}

const struct bench_kind bench_kinds[] = {
    {
        .name = "pthread",
        .summary = "pthreads, POSIX semaphores",
        .cases = bench_cases_peer,
        .set_up = set_up,
        .measure = bench_measure_peer,
    },
    { .name = NULL },
};
