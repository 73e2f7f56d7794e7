/* SPDX-License-Identifier: MIT */
/*
 * case_ring.c - a token goes round T threads with one semaphore each. An operation is one hop.
 *
 * Member 0 is the measuring thread. It holds the token between samples.
 */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ring;

struct member {
    _Alignas(64) struct bench_sem sem;
    struct bench_thread thread;
    struct ring *ring;
    struct member *next;
    struct bench_hops hops;
    unsigned index;
};

struct ring {
    struct bench_run *run;
    struct member *member;
    bool stop;      /* accessed only by the thread that holds the token */
    unsigned trial; /* likewise; see bench_count_hop */
};

static int prepare(struct bench_run *run)
{
    const unsigned n = run->threads;
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return -ENOMEM;
    run->state = ring;
    ring->run = run;
    ring->member = aligned_alloc(64, n * sizeof *ring->member);
    if (!ring->member)
        return -ENOMEM;
    memset(ring->member, 0, n * sizeof *ring->member);
    for (unsigned i = 0; i < n; i++) {
        bench_sem_init(&ring->member[i].sem);
        ring->member[i].ring = ring;
        ring->member[i].next = &ring->member[(i + 1) % n];
        ring->member[i].index = i;
        ring->member[i].hops.due = i % BENCH_COUNT_HOPS + 1;
    }
    return 0;
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct ring *ring = member->ring;

    bench_thread_entered(ring->run, member->index);
    for (;;) {
        bench_sem_wait(&member->sem);
        if (ring->stop)
            break;
        bench_count_hop(ring->run, &member->hops, ring->trial);
        bench_sem_post(&member->next->sem);
    }
    bench_count(ring->run, member->hops.uncounted);
    bench_sem_post(&member->next->sem);
    return NULL;
}

static void stop(struct ring *ring, unsigned created)
{
    ring->stop = true;
    for (unsigned i = 1; i <= created; i++)
        bench_sem_post(&ring->member[i].sem);
    for (unsigned i = 1; i <= created; i++)
        bench_thread_join(&ring->member[i].thread);
}

static int begin(struct bench_run *run)
{
    struct ring *ring = run->state;
    for (unsigned i = 1; i < run->threads; i++) {
        int error =
            bench_thread_create(run, &ring->member[i].thread, member_main, &ring->member[i]);
        if (error) {
            stop(ring, i - 1);
            return bench_fail(run, error, "creating a thread");
        }
    }
    return 0;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct ring *ring = run->state;
    struct member *self = &ring->member[0];
    const uint64_t laps = (ops + run->threads - 1) / run->threads;

    if (run->sample_count == 0)
        ring->trial++;
    bench_start(run);
    for (uint64_t i = 0; i < laps; i++) {
        bench_count_some(run, i, laps);
        bench_sem_post(&self->next->sem);
        bench_sem_wait(&self->sem);
    }
    bench_stop(run);
    run->sample_ops = laps * run->threads;
    return 0;
}

static void end(struct bench_run *run)
{
    stop(run->state, run->threads - 1);
}

static void release(struct bench_run *run)
{
    struct ring *ring = run->state;
    free(ring->member);
    free(ring);
}

const struct bench_case BENCH_NAME(case_ring) = {
    .name = "ring",
    .summary = "a token passed round T threads by a semaphore each",
    .threads = 16,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .release = release,
};
