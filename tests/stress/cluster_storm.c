/* SPDX-License-Identifier: MIT */
/*
 * cluster_storm.c - clusters under load: threads that move and are moved, workers that are added
 * and removed, and all the while steals, deadlines, and conversations on sockets.
 *
 * Each pair passes a byte to and fro a known number of times, and each sleeper sleeps a known
 * number of times. A lost thread is a hang, which the watchdog reports. No sleep ends early. At the
 * end no queue and no inbox holds a thread. The environment sets ROUSE_SEED and ROUSE_SCALE (rounds
 * in percent).
 */
#include "unit/core/core_test.h"

#include <pthread.h>
#include <sys/socket.h>

#define CLUSTERS 4
#define PAIRS 12
#define SLEEPERS 24
#define WORKERS_MOST 3

static struct rouse_cluster *clusters[CLUSTERS];
static unsigned passes;
static uint32_t stop, done;

struct member {
    uint64_t random;
    struct rouse_thread *thread;
    int fd;
    bool begins;
};
static struct member players[2 * PAIRS], sleepers[SLEEPERS];

static uint64_t draw(uint64_t *random, uint64_t below)
{
    return rsi_random_next(random) % below;
}

static struct rouse_cluster *some_cluster(uint64_t *random)
{
    return clusters[draw(random, CLUSTERS)];
}

static void wander(struct member *member)
{
    if (draw(&member->random, 8) == 0)
        CHECK_EQUAL(rouse_thread_move(rouse_thread_self(), some_cluster(&member->random)), 0);
    if (draw(&member->random, 8) == 0)
        rouse_thread_yield();
}

/* A deadline that is seldom reached: it stays among the timers of the worker that armed it. */
static void receive(struct member *member)
{
    char byte;
    ssize_t got;
    do
        got = rouse_read_until(member->fd, &byte, 1,
                               rouse_now_ns() + draw(&member->random, 2 * MS) + 50 * US);
    while (got == -ETIMEDOUT);
    CHECK_EQUAL(got, 1);
}

static void *play(void *arg)
{
    struct member *member = arg;
    for (unsigned i = 0; i < passes; i++) {
        if (member->begins)
            CHECK_EQUAL(rouse_write(member->fd, "x", 1), 1);
        receive(member);
        if (!member->begins)
            CHECK_EQUAL(rouse_write(member->fd, "x", 1), 1);
        wander(member);
    }
    rsi_fetch_add_seq_cst(&done, 1u);
    return NULL;
}

static void *child(void *arg)
{
    rouse_thread_yield();
    return arg;
}

/* All on one worker: the others steal. */
static void burst(void)
{
    struct rouse_thread *threads[16];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, child, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static void *sleep_often(void *arg)
{
    struct member *member = arg;
    for (unsigned i = 0; i < passes; i++) {
        uint64_t until = rouse_now_ns() + draw(&member->random, 200 * US);
        CHECK_EQUAL(rouse_sleep_until(until), 0);
        CHECK(rouse_now_ns() >= until);
        wander(member);
        if (draw(&member->random, 64) == 0)
            burst();
    }
    rsi_fetch_add_seq_cst(&done, 1u);
    return NULL;
}

static void move_some(uint64_t *random)
{
    struct member *member = draw(random, 2) ? &players[draw(random, LENGTH(players))]
                                            : &sleepers[draw(random, LENGTH(sleepers))];
    int result = rouse_thread_move(member->thread, some_cluster(random));
    CHECK(result == 0 || result == -ESRCH);
}

static void change_workers(uint64_t *random, unsigned *workers)
{
    size_t which = draw(random, CLUSTERS);
    if (workers[which] < WORKERS_MOST && draw(random, 2)) {
        CHECK(rouse_cluster_worker_add(clusters[which]) >= 0);
        workers[which]++;
    } else { /* the monitor may have lent it one more */
        int result = rouse_cluster_worker_remove(clusters[which], -1);
        CHECK(result >= 0 || (workers[which] == 1 && result == -EBUSY));
        if (result >= 0 && workers[which] > 1)
            workers[which]--;
    }
}

static void *interfere(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    unsigned workers[CLUSTERS];
    for (size_t i = 0; i < CLUSTERS; i++) {
        struct rouse_cluster_stats stats;
        rouse_cluster_stats_read(clusters[i], &stats);
        workers[i] = stats.workers;
    }
    while (!rsi_load_acquire(&stop)) {
        for (unsigned i = 0; i < 4; i++)
            move_some(&random);
        change_workers(&random, workers);
        struct rouse_cluster *brief = NULL;
        if (draw(&random, 16) == 0 && rouse_cluster_create(&brief, NULL) == 0)
            CHECK_EQUAL(rouse_cluster_destroy(brief), 0);
        usleep((useconds_t)draw(&random, 300));
    }
    return NULL;
}

static void start_all(uint64_t *random)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    for (size_t i = 0; i < PAIRS; i++) {
        int ends[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        for (size_t side = 0; side < 2; side++)
            players[2 * i + side] =
                (struct member){ rsi_random_next(random) | 1, NULL, ends[side], side == 0 };
    }
    for (size_t i = 0; i < LENGTH(sleepers); i++)
        sleepers[i] = (struct member){ .random = rsi_random_next(random) | 1 };
    for (size_t i = 0; i < LENGTH(players); i++) {
        attr.cluster = some_cluster(random);
        CHECK_EQUAL(rouse_thread_create(&players[i].thread, &attr, play, &players[i]), 0);
    }
    for (size_t i = 0; i < LENGTH(sleepers); i++) {
        attr.cluster = some_cluster(random);
        CHECK_EQUAL(rouse_thread_create(&sleepers[i].thread, &attr, sleep_often, &sleepers[i]), 0);
    }
}

static void all_is_at_rest(void)
{
    UNTIL(rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_live_count());
    for (uint32_t i = 0; i < rsi_worker_count(); i++) {
        const struct rsi_worker *w = rsi_rt.workers[i];
        CHECK_EQUAL(rsi_load_relaxed(&w->queue_length), 0);
        CHECK(rsi_load_relaxed(&w->next) == NULL);
        /* Read once: a spare worker that starts now opens its inbox. */
        const struct rouse_thread *inbox = rsi_load_relaxed(&w->inbox);
        CHECK(inbox == NULL || inbox == RSI_INBOX_CLOSED);
    }
}

static void make_clusters(void)
{
    static const enum rouse_place places[] = { ROUSE_PLACE_STEAL, ROUSE_PLACE_SHORTEST };
    clusters[0] = rouse_cluster_default();
    for (size_t i = 1; i < CLUSTERS; i++) {
        struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
        attr.workers = 1 + i % 2;
        attr.place = places[i % 2];
        attr.steal_affinity = i == 2 ? ROUSE_STEAL_AFFINITY_MIN : 0;
        CHECK_EQUAL(rouse_cluster_create(&clusters[i], &attr), 0);
    }
}

static void nothing_is_lost_in_the_storm(void **state)
{
    (void)state;
    uint64_t random = seed_of_run();
    pthread_t interferer;
    passes = rounds_of(600);
    rsi_store_relaxed(&stop, 0u);
    make_clusters();
    start_all(&random);
    CHECK(pthread_create(&interferer, NULL, interfere, (void *)(uintptr_t)random) == 0);
    UNTIL(rsi_load_acquire(&done) == LENGTH(players) + LENGTH(sleepers));
    rsi_store_release(&stop, 1u);
    CHECK(pthread_join(interferer, NULL) == 0);
    for (size_t i = 0; i < LENGTH(players); i++) {
        join(players[i].thread);
        CHECK_EQUAL(rouse_close(players[i].fd), 0);
    }
    for (size_t i = 0; i < LENGTH(sleepers); i++)
        join(sleepers[i].thread);
    for (size_t i = 1; i < CLUSTERS; i++)
        CHECK_EQUAL(rouse_cluster_destroy(clusters[i]), 0);
    all_is_at_rest();
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_in_the_storm),
    };
    static const struct program program = { 200, true, tests, LENGTH(tests), NULL, 0 };
    stress_set_up();
    return program_run(&program, argc, argv);
}
