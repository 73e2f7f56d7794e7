/* SPDX-License-Identifier: MIT */
/* cluster_test.h - helpers of the cluster tests. */
#ifndef CLUSTER_TEST_H
#define CLUSTER_TEST_H

#include "core_test.h"

static MAYBE_UNUSED struct rouse_cluster *make(unsigned workers, enum rouse_place place)
{
    struct rouse_cluster *cluster = NULL;
    struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
    attr.name = "test";
    attr.workers = workers;
    attr.place = place;
    CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), 0);
    return cluster;
}

static MAYBE_UNUSED struct rouse_thread *start_in(struct rouse_cluster *cluster,
                                                  void *(*fn)(void *), void *arg)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.cluster = cluster;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, fn, arg), 0);
    return t;
}

/* Its workers end after it does. */
static MAYBE_UNUSED void unmake(struct rouse_cluster *cluster)
{
    CHECK_EQUAL(rouse_cluster_destroy(cluster), 0);
    UNTIL(rsi_load_acquire(&cluster->state) == RSI_CLUSTER_FREE);
}

/* The cluster of the worker that runs the caller. */
static struct rouse_cluster *here(void)
{
    return rsi_exec_self()->worker->cluster;
}

static bool is_there(void *cluster)
{
    return here() == cluster && rouse_thread_cluster(rouse_thread_self()) == cluster;
}

static void *stay_here(void *cluster)
{
    CHECK(is_there(cluster));
    for (int i = 0; i < 100; i++) {
        rouse_thread_yield();
        CHECK(is_there(cluster));
        CHECK_EQUAL(rouse_sleep(i % 10 == 0 ? 10 * US : 0), 0);
        CHECK(is_there(cluster));
    }
    return cluster;
}

static MAYBE_UNUSED void *start_many(void *cluster)
{
    struct rouse_thread *threads[50];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start_in(cluster, stay_here, cluster);
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(join(threads[i]) == cluster);
    return NULL;
}

static MAYBE_UNUSED void *sleep_for_a_while(void *cluster)
{
    CHECK_EQUAL(rouse_sleep(20 * MS), 0);
    CHECK(is_there(cluster));
    return NULL;
}

static MAYBE_UNUSED uint32_t has_moved;

/* The thread is moved during one of its sleeps, which then ends in the new cluster. */
static MAYBE_UNUSED void *sleep_until_moved(void *cluster)
{
    do
        CHECK_EQUAL(rouse_sleep(5 * MS), 0);
    while (!rsi_load_acquire(&has_moved));
    CHECK(is_there(cluster));
    return NULL;
}

#endif
