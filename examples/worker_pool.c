/* SPDX-License-Identifier: MIT */
/*
 * worker_pool.c - a bounded queue between one thread that produces jobs and several that do them.
 *
 * usage: worker_pool [THREADS [JOBS]]    (defaults: 4 threads, 1,000 jobs)
 *
 * The waits name their condition (rouse_cond_wait_while), so the runtime knows which wake-ups were false. The
 * depth of the queue bounds the memory: a producer that is too fast waits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rouse/rouse.h>

#define DEPTH 16

struct queue {
    struct rouse_mutex lock;
    struct rouse_cond not_empty, not_full;
    /* Protected by the lock: */
    uint64_t jobs[DEPTH];
    size_t first, count;
    bool closed; /* no more jobs will come */
};

static struct queue queue = {
    .lock = ROUSE_MUTEX_INIT_NAMED("queue"),
    .not_empty = ROUSE_COND_INIT_NAMED("queue not empty"),
    .not_full = ROUSE_COND_INIT_NAMED("queue not full"),
};

static bool nothing_to_take(void *arg)
{
    const struct queue *q = arg;

    return q->count == 0 && !q->closed;
}

static bool full(void *arg)
{
    const struct queue *q = arg;

    return q->count == DEPTH;
}

static void put(struct queue *q, uint64_t job)
{
    rouse_mutex_lock(&q->lock);
    rouse_cond_wait_while(&q->not_full, &q->lock, full, q);
    q->jobs[(q->first + q->count++) % DEPTH] = job;
    rouse_cond_signal(&q->not_empty);
    rouse_mutex_unlock(&q->lock);
}

/* Returns false if the queue is closed and empty. */
static bool take(struct queue *q, uint64_t *job)
{
    bool taken;

    rouse_mutex_lock(&q->lock);
    rouse_cond_wait_while(&q->not_empty, &q->lock, nothing_to_take, q);
    taken = q->count > 0;
    if (taken) {
        *job = q->jobs[q->first];
        q->first = (q->first + 1) % DEPTH;
        q->count--;
        rouse_cond_signal(&q->not_full);
    }
    rouse_mutex_unlock(&q->lock);
    return taken;
}

static void close_queue(struct queue *q)
{
    rouse_mutex_lock(&q->lock);
    q->closed = true;
    rouse_cond_broadcast(&q->not_empty);
    rouse_mutex_unlock(&q->lock);
}

/* The number of steps of the Collatz sequence from start to 1: work of uneven length. */
static uint64_t steps(uint64_t start)
{
    uint64_t count = 0;

    for (uint64_t n = start; n != 1; count++)
        n = n % 2 ? 3 * n + 1 : n / 2;
    return count;
}

static void *work(void *arg)
{
    uint64_t job, *sum = arg;

    while (take(&queue, &job))
        *sum += steps(job);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 4, started = 0;
    uint64_t jobs = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000, total = 0;
    struct rouse_thread **thread = calloc(threads + 1, sizeof(*thread));
    uint64_t *sums = calloc(threads + 1, sizeof(*sums));

    if (threads == 0 || !thread || !sums) {
        fprintf(stderr, "usage: worker_pool [THREADS [JOBS]]\n");
        return 2;
    }
    for (; started < threads; started++) {
        int error = rouse_thread_create(&thread[started], NULL, work, &sums[started]);

        if (error) {
            fprintf(stderr, "worker_pool: thread %zu: %s\n", started, strerror(-error));
            return 1;
        }
    }
    for (uint64_t job = 1; job <= jobs; job++)
        put(&queue, job);
    close_queue(&queue);
    for (size_t i = 0; i < started; i++) {
        rouse_thread_join(thread[i], NULL);
        total += sums[i];
    }
    printf("%" PRIu64 " jobs, %" PRIu64 " steps\n", jobs, total);
    free(sums);
    free(thread);
    return 0;
}
