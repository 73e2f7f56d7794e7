/* SPDX-License-Identifier: MIT */
/*
 * clusters.c - two groups of workers: long computations do not delay the threads that answer.
 *
 * usage: clusters
 */
#include <stdio.h>
#include <stdlib.h>

#include <rouse/rouse.h>

/* Move to the cluster for computations, compute there, and come back. */
static void *answer(void *arg)
{
    struct rouse_cluster *computations = arg, *home = rouse_thread_cluster(rouse_thread_self());
    uint64_t sum = 0;

    if (!home) /* with ROUSE_THREADS=kernel a thread belongs to no cluster */
        return NULL;
    if (rouse_thread_move(rouse_thread_self(), computations) < 0)
        abort();
    for (uint64_t i = 0; i < 1000000; i++)
        sum += i % 7;
    if (rouse_worker_index() < 0 || rouse_thread_move(rouse_thread_self(), home) < 0)
        abort();
    return sum ? rouse_cluster_default() : NULL;
}

int main(void)
{
    struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
    struct rouse_cluster *computations;
    struct rouse_cluster_stats stats;
    struct rouse_thread *t;
    void *result;
    int worker;

    attr.name = "computations";
    attr.workers = 1;
    if (rouse_cluster_create(&computations, &attr) < 0)
        return 1;
    worker = rouse_cluster_worker_add(computations);
    if (worker < 0 || rouse_cluster_worker_pin(computations, worker, NULL) < 0)
        return 1;
    if (rouse_thread_create(&t, NULL, answer, computations) < 0)
        return 1;
    rouse_thread_join(t, &result);
    rouse_cluster_stats_read(computations, &stats);
    printf("computations: %u workers, %s\n", stats.workers,
           result ? "the thread came back to the default cluster" : "no user thread");
    if (rouse_cluster_worker_remove(computations, worker) != worker)
        return 1;
    return rouse_cluster_destroy(computations) < 0;
}
