/* SPDX-License-Identifier: MIT */
/*
 * place_test.c - which worker gets a thread: the one with the shortest queue; and how many threads
 * a thief takes at each steal affinity. The workers are made up and have no kernel threads, for the
 * test only checks which queue a thread is put in.
 */
#include "cluster_test.h"

#include <sys/socket.h>

static uint32_t gate, inside;

/* Keep the worker busy until all threads are in. */
static void *hold_worker(void *arg)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    rsi_fetch_add_seq_cst(&inside, 1u);
    while (!rsi_load_acquire(&gate))
        CHECK(rouse_now_ns() < end);
    return arg;
}

static void *nothing(void *arg)
{
    return arg;
}

static uint32_t length_of(const struct rsi_worker *w)
{
    return rsi_load_relaxed(&w->queue_length) + (uint32_t)rsi_load_relaxed(&w->inbox_length);
}

/* One thread keeps each worker busy, so that each placed thread stays where it was put. */
static void threads_go_to_the_shortest_queue(void **state)
{
    (void)state;
    enum { WORKERS = 3, THREADS = 30 };
    struct rouse_cluster *cluster = make(WORKERS, ROUSE_PLACE_SHORTEST);
    struct rouse_thread *holders[WORKERS], *threads[THREADS];
    rsi_store_relaxed(&gate, 0u);
    rsi_store_relaxed(&inside, 0u);
    for (size_t i = 0; i < WORKERS; i++)
        holders[i] = start_in(cluster, hold_worker, NULL);
    UNTIL(rsi_load_acquire(&inside) == WORKERS); /* one each: none was queued behind another */
    for (size_t i = 0; i < THREADS; i++)
        threads[i] = start_in(cluster, nothing, NULL);
    for (size_t i = 0; i < WORKERS; i++)
        CHECK_EQUAL(length_of(cluster->workers[i]), THREADS / WORKERS);
    rsi_store_release(&gate, 1u);
    for (size_t i = 0; i < WORKERS; i++)
        join(holders[i]);
    for (size_t i = 0; i < THREADS; i++)
        join(threads[i]);
    unmake(cluster);
}

/* How many threads a thief takes from a queue of 16 at each affinity. */
static void a_thief_takes_less_at_each_step(void **state)
{
    (void)state;
    static const unsigned shares[] = { 16, 12, 8, 4, 2, 1 };
    for (unsigned affinity = 1; affinity <= ROUSE_STEAL_AFFINITY_MAX; affinity++) {
        struct rouse_cluster_attr attr = { .steal_affinity = affinity };
        struct rouse_cluster *cluster = NULL;
        CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), 0);
        static struct rsi_worker victim, thief;
        static struct rouse_thread threads[16];
        victim.cluster = thief.cluster = cluster;
        victim.queue_length = 0;
        victim.queue_first = thief.queue_first = NULL;
        thief.queue_length = 0;
        for (size_t i = 0; i < LENGTH(threads); i++) {
            threads[i].queue_link = i + 1 < LENGTH(threads) ? &threads[i + 1] : NULL;
            victim.queue_length++;
        }
        victim.queue_first = &threads[0];
        victim.queue_last = &threads[LENGTH(threads) - 1];
        CHECK_EQUAL(rsi_steal(&thief, &victim, false), shares[affinity - 1]);
        CHECK(thief.queue_first == &threads[0]); /* it has waited longest */
        CHECK(affinity == 1 || cluster->steal_pause_ns == UINT64_C(5000) << (affinity - 1));
        CHECK(affinity != 1 || cluster->steal_pause_ns == 0);
        unmake(cluster);
    }
}

/*
 * Two idle clusters: the poller soon moves to the one whose threads receive the events. An event
 * that a worker of the other cluster takes would cost a second wake-up.
 */
static void *echo(void *arg)
{
    const int *ends = arg;
    char byte;
    while (rouse_read(ends[0], &byte, 1) == 1)
        CHECK_EQUAL(rouse_write(ends[0], &byte, 1), 1);
    return NULL;
}

static void the_poller_goes_where_the_events_go(void **state)
{
    (void)state;
    int ends[2];
    char byte = 'x';
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct rouse_thread *t = start_in(cluster, echo, ends);
    const struct rsi_worker *w = cluster->workers[0];
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    for (int i = 0; i < 20; i++) /* another worker may take the poller; it comes back */
        for (bool is_there = false; !is_there;) {
            CHECK(rouse_now_ns() < end);
            CHECK(write(ends[1], &byte, 1) == 1 && read(ends[1], &byte, 1) == 1);
            UNTIL(rsi_load_relaxed(&rsi_rt.idle_count) == rsi_worker_live_count());
            is_there = rsi_load_relaxed(&w->is_polling);
        }
    CHECK(close(ends[1]) == 0);
    join(t);
    CHECK_EQUAL(rouse_close(ends[0]), 0);
    unmake(cluster);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_go_to_the_shortest_queue),
        cmocka_unit_test(a_thief_takes_less_at_each_step),
        cmocka_unit_test(the_poller_goes_where_the_events_go),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    /* With rings all workers sleep alike, and the test cannot see which one polls. */
    setenv("ROUSE_IO", "epoll", 1);
    setenv("ROUSE_SPARES", "0", 0); /* the monitor lends no worker meanwhile */
    return program_run(&program, argc, argv);
}
