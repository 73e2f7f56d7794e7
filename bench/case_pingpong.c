/* SPDX-License-Identifier: MIT */
/* case_pingpong.c - two threads, two semaphores; an operation is one round trip. */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct court {
    _Alignas(64) struct bench_sem ping;
    _Alignas(64) struct bench_sem pong;
    struct bench_run *run;
    struct bench_thread partner;
    bool stop; /* written before the last ping */
};

static int prepare(struct bench_run *run)
{
    run->state = aligned_alloc(64, sizeof(struct court));
    if (!run->state)
        return -ENOMEM;
    memset(run->state, 0, sizeof(struct court));
    return 0;
}

static void *partner_main(void *arg)
{
    struct court *court = arg;
    bench_thread_entered(court->run, 1);
    for (;;) {
        bench_sem_wait(&court->ping);
        if (court->stop)
            return NULL;
        bench_sem_post(&court->pong);
    }
}

static int begin(struct bench_run *run)
{
    struct court *court = run->state;
    court->run = run;
    int error = bench_thread_create(run, &court->partner, partner_main, court);
    return error ? bench_fail(run, error, "creating a thread") : 0;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct court *court = run->state;
    bench_start(run);
    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(run, i, ops);
        bench_sem_post(&court->ping);
        bench_sem_wait(&court->pong);
    }
    bench_stop(run);
    run->sample_ops = ops;
    return 0;
}

static void end(struct bench_run *run)
{
    struct court *court = run->state;
    court->stop = true;
    bench_sem_post(&court->ping);
    bench_thread_join(&court->partner);
}

static void release(struct bench_run *run)
{
    free(run->state);
}

const struct bench_case BENCH_NAME(case_pingpong) = {
    .name = "pingpong",
    .summary = "two threads wake each other by two semaphores; a round trip",
    .threads = 2,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .release = release,
};
