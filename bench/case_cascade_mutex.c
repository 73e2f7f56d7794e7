/* SPDX-License-Identifier: MIT */
/*
 * case_cascade_mutex.c - a token passed round T threads by mutexes alone; an operation is one hop.
 *
 * Problem: mutexes have owners, so a thread can be stopped only by a lock that its predecessor holds.
 * Each thread has two locks, which it uses alternately. In its pass p a thread, holding its own lock p%2 and its
 * successor's lock q = (p + last) % 2, where last is 1 for the thread before the ring's first, does
 *   1 locks its successor's other lock  (free: the successor left it in its own step 2, a pass ago)
 *   2 unlocks its own lock p%2          (so that its predecessor can lock it in the next pass)
 *   3 unlocks its successor's lock q    (the successor, which waits there, continues)
 *   4 locks its own lock (p+1)%2        (held by its predecessor since the predecessor's step 1: waits)
 * One thread is runnable at a time, except between 3 and 4. `last` exists because the
 * ring's first thread is one pass ahead of its predecessor.
 * Source: the idea is libMicro's case of this name; the protocol and the code are ours.
 */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ring;

struct member {
    struct {
        _Alignas(64) struct bench_mutex mutex;
    } own[2];
    struct bench_thread thread;
    struct ring *ring;
    struct member *next;
    unsigned index, last;
    unsigned phase; /* p % 2 */
    struct bench_hops hops;
};

struct ring {
    struct bench_run *run;
    struct member *member;
    struct bench_sem ready;
    bool stop;      /* accessed only by the thread whose turn it is */
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
    bench_sem_init(&ring->ready);
    ring->member = aligned_alloc(64, n * sizeof *ring->member);
    if (!ring->member)
        return -ENOMEM;
    memset(ring->member, 0, n * sizeof *ring->member);
    for (unsigned i = 0; i < n; i++) {
        struct member *member = &ring->member[i];
        bench_mutex_init(&member->own[0].mutex);
        bench_mutex_init(&member->own[1].mutex);
        member->ring = ring;
        member->next = &ring->member[(i + 1) % n];
        member->index = i;
        member->hops.due = i % BENCH_COUNT_HOPS + 1;
        member->last = i + 1 == n;
    }
    return 0;
}

/* Make one pass. Returns when it is this thread's turn again. */
static void pass(struct member *member)
{
    struct member *next = member->next;
    const unsigned p = member->phase;
    const unsigned q = p ^ member->last;

    bench_mutex_lock(&next->own[q ^ 1].mutex);
    bench_mutex_unlock(&member->own[p].mutex);
    bench_mutex_unlock(&next->own[q].mutex);
    bench_mutex_lock(&member->own[p ^ 1].mutex);
    member->phase = p ^ 1;
}

/* Make the last pass. It releases this thread's two locks and acquires none, so every lock ends up free. */
static void last_pass(struct member *member)
{
    const unsigned p = member->phase;
    bench_mutex_unlock(&member->own[p].mutex);
    bench_mutex_unlock(&member->next->own[p ^ member->last].mutex);
}

/* Acquire the locks that a thread holds before its first pass, so that its successor waits. */
static void take_first(struct member *member)
{
    bench_mutex_lock(&member->next->own[member->last].mutex);
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct ring *ring = member->ring;

    bench_thread_entered(ring->run, member->index);
    take_first(member);
    bench_sem_post(&ring->ready);
    bench_mutex_lock(&member->own[0].mutex);
    while (!ring->stop) {
        bench_count_hop(ring->run, &member->hops, ring->trial);
        pass(member);
    }
    bench_count(ring->run, member->hops.uncounted);
    last_pass(member);
    return NULL;
}

static void stop(struct ring *ring, unsigned created)
{
    ring->stop = true;
    last_pass(&ring->member[0]);
    for (unsigned i = 1; i <= created; i++)
        bench_thread_join(&ring->member[i].thread);
}

static int begin(struct bench_run *run)
{
    struct ring *ring = run->state;
    struct member *first = &ring->member[0];

    bench_mutex_lock(&first->own[0].mutex);
    if (run->threads == 1)
        return 0;
    take_first(first);
    for (unsigned i = 1; i < run->threads; i++) {
        struct member *member = &ring->member[i];
        int error = bench_thread_create(run, &member->thread, member_main, member);
        if (error) {
            stop(ring, i - 1);
            return bench_fail(run, error, "creating a thread");
        }
        bench_sem_wait(&ring->ready);
    }
    return 0;
}

/* A ring of one: the same two locks, never contended. */
static void pass_alone(struct member *member)
{
    const unsigned p = member->phase;
    bench_mutex_lock(&member->own[p ^ 1].mutex);
    bench_mutex_unlock(&member->own[p].mutex);
    member->phase = p ^ 1;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct ring *ring = run->state;
    struct member *first = &ring->member[0];
    const uint64_t laps = (ops + run->threads - 1) / run->threads;

    if (run->sample_count == 0)
        ring->trial++;
    bench_start(run);
    for (uint64_t i = 0; i < laps; i++) {
        bench_count_some(run, i, laps);
        if (run->threads > 1)
            pass(first);
        else
            pass_alone(first);
    }
    bench_stop(run);
    run->sample_ops = laps * run->threads;
    return 0;
}

static void end(struct bench_run *run)
{
    struct ring *ring = run->state;
    if (run->threads > 1)
        stop(ring, run->threads - 1);
    else
        bench_mutex_unlock(&ring->member[0].own[ring->member[0].phase].mutex);
}

static void report(struct bench_run *run)
{
    double least = run->sample_ns_per_op[0];
    for (unsigned i = 1; i < run->sample_count; i++)
        if (run->sample_ns_per_op[i] < least)
            least = run->sample_ns_per_op[i];
    bench_figure(run, "best_loop_us", least * run->threads / 1000);
}

static void release(struct bench_run *run)
{
    struct ring *ring = run->state;
    free(ring->member);
    free(ring);
}

#if !defined(BENCH_CLONE) && !defined(BENCH_PEER)
extern const struct bench_case BENCH_NAME(case_cascade_mutex_shared);
#define SHARED &BENCH_NAME(case_cascade_mutex_shared)
#else
#define SHARED NULL
#endif

const struct bench_case BENCH_NAME(case_cascade_mutex) = {
    .name = "cascade_mutex",
    .summary = "a token passed round T threads by two mutexes each",
    .threads = 16,
    .flags = BENCH_CALLS,
    .shared = SHARED,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
