/* SPDX-License-Identifier: MIT */
/* cases.c - the list of cases of one family of implementations, in the order of `rouse-bench list`. */
#include "impl.h"

extern const struct bench_case BENCH_NAME(case_nop), BENCH_NAME(case_yield), BENCH_NAME(case_spawn),
    BENCH_NAME(case_spawn_many), BENCH_NAME(case_ring), BENCH_NAME(case_cascade_mutex),
    BENCH_NAME(case_mutex), BENCH_NAME(case_pingpong), BENCH_NAME(case_sleepherd),
    BENCH_NAME(case_memory);
#ifndef BENCH_PEER /* not every library supports arbitrary descriptors */
extern const struct bench_case BENCH_NAME(case_echo);
#ifndef BENCH_CLONE /* these cases use libc in their threads */
extern const struct bench_case BENCH_NAME(case_selectherd), BENCH_NAME(case_acceptherd),
    BENCH_NAME(case_fdtable), BENCH_NAME(case_shared_writes), BENCH_NAME(case_idle_memory),
    BENCH_NAME(case_steal);
/* libMicro's, besides mutex and cascade_mutex */
extern const struct bench_case BENCH_NAME(case_cascade_cond), BENCH_NAME(case_cascade_fcntl),
    BENCH_NAME(case_cascade_flock), BENCH_NAME(case_cascade_lockf), BENCH_NAME(case_poll),
    BENCH_NAME(case_select), BENCH_NAME(case_pipe), BENCH_NAME(case_socketpair),
    BENCH_NAME(case_connection), BENCH_NAME(case_close_tcp), BENCH_NAME(case_pthread_create),
    BENCH_NAME(case_fork), BENCH_NAME(case_exec), BENCH_NAME(case_system), BENCH_NAME(case_semop),
    BENCH_NAME(case_sched_yield), BENCH_NAME(case_nanosleep), BENCH_NAME(case_clock_nanosleep),
    BENCH_NAME(case_getpid), BENCH_NAME(case_gettimeofday), BENCH_NAME(case_clock_gettime),
    BENCH_NAME(case_read), BENCH_NAME(case_write);
#endif
#endif

const struct bench_case *const BENCH_NAME(bench_cases)[] = {
    &BENCH_NAME(case_nop),
    &BENCH_NAME(case_yield),
    &BENCH_NAME(case_spawn),
    &BENCH_NAME(case_spawn_many),
    &BENCH_NAME(case_ring),
    &BENCH_NAME(case_cascade_mutex),
    &BENCH_NAME(case_mutex),
    &BENCH_NAME(case_pingpong),
    &BENCH_NAME(case_sleepherd),
    &BENCH_NAME(case_memory),
#ifndef BENCH_PEER
    &BENCH_NAME(case_echo),
#ifndef BENCH_CLONE
    &BENCH_NAME(case_selectherd),
    &BENCH_NAME(case_acceptherd),
    &BENCH_NAME(case_fdtable),
    &BENCH_NAME(case_shared_writes),
    &BENCH_NAME(case_idle_memory),
    &BENCH_NAME(case_steal),
    &BENCH_NAME(case_cascade_cond),
    &BENCH_NAME(case_cascade_fcntl),
    &BENCH_NAME(case_cascade_flock),
    &BENCH_NAME(case_cascade_lockf),
    &BENCH_NAME(case_poll),
    &BENCH_NAME(case_select),
    &BENCH_NAME(case_pipe),
    &BENCH_NAME(case_socketpair),
    &BENCH_NAME(case_connection),
    &BENCH_NAME(case_close_tcp),
    &BENCH_NAME(case_pthread_create),
    &BENCH_NAME(case_fork),
    &BENCH_NAME(case_exec),
    &BENCH_NAME(case_system),
    &BENCH_NAME(case_semop),
    &BENCH_NAME(case_sched_yield),
    &BENCH_NAME(case_nanosleep),
    &BENCH_NAME(case_clock_nanosleep),
    &BENCH_NAME(case_getpid),
    &BENCH_NAME(case_gettimeofday),
    &BENCH_NAME(case_clock_gettime),
    &BENCH_NAME(case_read),
    &BENCH_NAME(case_write),
#endif
#endif
    NULL,
};
