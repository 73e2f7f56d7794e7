/* SPDX-License-Identifier: MIT */
/*
 * case_memory.c - resident memory of a parked thread. An operation is the creation of one thread.
 *
 * Each thread runs until it waits for its own semaphore. The figure is the growth of the process's
 * resident pages. It excludes kernel memory, such as a kernel thread's stack of 16 KiB.
 * There is one sample only, because the threads of a second sample would reuse stacks that are already resident.
 */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct parked {
    struct bench_sem sem;
    struct bench_thread thread;
    struct state *state;
};

struct state {
    struct bench_sem ready;
    struct parked *parked;
    uint64_t capacity, created;
    uint64_t pages_before, pages_after;
};

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    bench_sem_init(&s->ready);
    s->capacity = run->threads;
    const size_t bytes = s->capacity * sizeof *s->parked;
    s->parked = malloc(bytes);
    if (!s->parked)
        return -ENOMEM;
    memset(s->parked, 0xff, bytes); /* touched, so that it is not counted as the threads' */
    memset(s->parked, 0, bytes);
    for (uint64_t i = 0; i < s->capacity; i++)
        bench_sem_init(&s->parked[i].sem);
    return 0;
}

static void *park(void *arg)
{
    struct parked *p = arg;
    bench_sem_post(&p->state->ready);
    bench_sem_wait(&p->sem);
    return NULL;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    int error = 0;

    s->pages_before = raw_resident_pages();
    bench_start(run);
    for (s->created = 0; s->created < ops; s->created++) {
        struct parked *p = &s->parked[s->created];
        p->state = s;
        error = bench_thread_create(run, &p->thread, park, p);
        if (error)
            break;
        bench_sem_wait(&s->ready);
    }
    bench_stop(run);
    s->pages_after = raw_resident_pages();
    for (uint64_t i = 0; i < s->created; i++)
        bench_sem_post(&s->parked[i].sem);
    for (uint64_t i = 0; i < s->created; i++)
        bench_thread_join(&s->parked[i].thread);
    bench_count(run, s->created);
    run->sample_ops = s->created;
    return error ? bench_fail(run, error, "creating a thread") : 0;
}

static void report(struct bench_run *run)
{
    const struct state *s = run->state;
    const double pages = (double)s->pages_after - (double)s->pages_before;
    bench_figure(run, "rss_bytes_per_thread",
                 pages * run->page_bytes / (double)(s->created ? s->created : 1));
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    free(s->parked);
    free(s);
}

const struct bench_case BENCH_NAME(case_memory) = {
    .name = "memory",
    .summary = "resident bytes of a parked thread, of T; creating one and waiting until it parks",
    .threads = 10000,
    .samples = 1,
    .flags = BENCH_FIXED_OPS | BENCH_ONE_SAMPLE,
    .prepare = prepare,
    .sample = sample,
    .report = report,
    .release = release,
};
