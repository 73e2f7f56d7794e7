/* SPDX-License-Identifier: MIT */
/*
 * cluster_test.c - the threads of a cluster run on its own workers only, and a moved thread runs
 * where it was moved to.
 */
#include "cluster_test.h"

static void threads_of_a_cluster_run_on_its_workers_only(void **state)
{
    (void)state;
    struct rouse_cluster *clusters[3] = { rouse_cluster_default(), make(1, ROUSE_PLACE_STEAL),
                                          make(3, ROUSE_PLACE_SHORTEST) };
    struct rouse_thread *makers[9];
    for (size_t i = 0; i < LENGTH(makers); i++)
        makers[i] = start_in(clusters[i % 3], start_many, clusters[i / 3]);
    for (size_t i = 0; i < LENGTH(clusters); i++)
        start_many(clusters[i]);
    for (size_t i = 0; i < LENGTH(makers); i++)
        join(makers[i]);
    unmake(clusters[1]);
    unmake(clusters[2]);
}

static void *start_without_a_word(void *cluster)
{
    return join(start(ROUSE_KIND_USER, stay_here, cluster));
}

static void a_thread_begins_in_its_creators_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_DEFAULT);
    CHECK(join(start_in(cluster, start_without_a_word, cluster)) == cluster);
    CHECK(start_without_a_word(rouse_cluster_default()) == rouse_cluster_default());
    unmake(cluster);
}

/* Two threads in different clusters wake each other. */
struct pair {
    struct rouse_sem ball[2];
    struct rouse_cluster *cluster[2];
    int rounds;
};

static void *play(struct pair *pair, int side)
{
    for (int i = 0; i < pair->rounds; i++) {
        CHECK_EQUAL(rouse_sem_wait(&pair->ball[side]), 0);
        CHECK(is_there(pair->cluster[side]));
        rouse_sem_post(&pair->ball[1 - side]);
    }
    return NULL;
}

static void *play_0(void *pair)
{
    return play(pair, 0);
}

static void *play_1(void *pair)
{
    return play(pair, 1);
}

static void threads_of_two_clusters_wake_each_other(void **state)
{
    (void)state;
    static const enum rouse_place places[] = { ROUSE_PLACE_STEAL, ROUSE_PLACE_SHORTEST };
    for (size_t i = 0; i < LENGTH(places); i++) {
        struct pair pair = { { ROUSE_SEM_INIT(1), ROUSE_SEM_INIT(0) },
                             { rouse_cluster_default(), make(2, places[i]) },
                             2000 / SLOWER };
        struct rouse_thread *a = start_in(pair.cluster[0], play_0, &pair);
        struct rouse_thread *b = start_in(pair.cluster[1], play_1, &pair);
        join(a);
        join(b);
        unmake(pair.cluster[1]);
    }
}

static void *wander(void *value)
{
    struct rouse_cluster **clusters = value;
    for (int i = 0; i < 300; i++) {
        CHECK_EQUAL(rouse_thread_move(rouse_thread_self(), clusters[i % 3]), 0);
        CHECK(is_there(clusters[i % 3]));
        if (i % 7 == 0)
            rouse_sleep(US);
        CHECK(is_there(clusters[i % 3]));
    }
    return NULL;
}

static void a_moved_thread_goes_on_in_its_new_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *clusters[3] = { rouse_cluster_default(), make(1, ROUSE_PLACE_STEAL),
                                          make(2, ROUSE_PLACE_SHORTEST) };
    struct rouse_thread *threads[10];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, wander, clusters);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    unmake(clusters[1]);
    unmake(clusters[2]);
}

static struct rouse_sem bell = ROUSE_SEM_INIT(0);

static void *wait_for_bell(void *cluster)
{
    CHECK_EQUAL(rouse_sem_wait(&bell), 0);
    CHECK(is_there(cluster));
    return NULL;
}

static void a_thread_moved_while_it_waits_wakes_up_in_its_new_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    for (int i = 0; i < 20; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_bell, cluster);
        rsi_store_relaxed(&has_moved, 0u);
        struct rouse_thread *sleeper = start(ROUSE_KIND_USER, sleep_until_moved, cluster);
        UNTIL(waits(t) && waits(sleeper));
        CHECK_EQUAL(rouse_thread_move(t, cluster), 0);
        CHECK_EQUAL(rouse_thread_move(sleeper, cluster), 0);
        rsi_store_release(&has_moved, 1u);
        CHECK(rouse_thread_cluster(t) == cluster);
        CHECK_EQUAL(rouse_cluster_destroy(cluster), -EBUSY);
        rouse_sem_post(&bell);
        join(t);
        join(sleeper);
    }
    unmake(cluster);
}

static uint32_t computing, stop;

static void *compute(void *unused)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    rsi_fetch_add_seq_cst(&computing, 1u);
    while (!rsi_load_acquire(&stop))
        CHECK(rouse_now_ns() < end);
    return unused;
}

static void *yield_until_there(void *cluster)
{
    while (here() != cluster)
        rouse_thread_yield();
    return NULL;
}

static void a_runnable_thread_that_is_moved_runs_next_in_its_new_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    struct rouse_thread *threads[10];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, yield_until_there, cluster);
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK_EQUAL(rouse_thread_move(threads[i], cluster), 0);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    unmake(cluster);
}

/* All workers of one cluster compute. The threads of the other cluster must go on. */
/* Never asleep, and with short turns: their queue is short, so that only the watcher shares it. */
static void *yield_until_two_workers_run_it(void *seen)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    for (uint64_t mask = 0; (mask & (mask - 1)) == 0;) {
        mask = rsi_fetch_or_relaxed((uint64_t *)seen, UINT64_C(1) << rouse_worker_index());
        CHECK(rouse_now_ns() < end);
        rouse_thread_yield();
    }
    return NULL;
}

static void threads_that_only_yield_use_all_workers_of_their_cluster(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct rouse_cluster *cluster = make(2, ROUSE_PLACE_STEAL);
        struct rouse_thread *threads[2];
        uint64_t seen = 0;
        for (size_t k = 0; k < LENGTH(threads); k++)
            threads[k] = start_in(cluster, yield_until_two_workers_run_it, &seen);
        for (size_t k = 0; k < LENGTH(threads); k++)
            join(threads[k]);
        unmake(cluster);
    }
}

static void a_cluster_that_computes_holds_up_no_other(void **state)
{
    (void)state;
    struct rouse_cluster *busy = make(1, ROUSE_PLACE_STEAL), *free = make(1, ROUSE_PLACE_STEAL);
    rsi_store_relaxed(&computing, 0u);
    rsi_store_relaxed(&stop, 0u);
    struct rouse_thread *t = start_in(busy, compute, NULL);
    UNTIL(rsi_load_acquire(&computing));
    for (int i = 0; i < 20; i++)
        join(start_in(free, stay_here, free));
    rsi_store_release(&stop, 1u);
    join(t);
    unmake(busy);
    unmake(free);
}

static void unusable_arguments_of_clusters_are_refused(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = NULL;
    struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
    struct rouse_thread *t = NULL;
    CHECK_EQUAL(rouse_cluster_create(NULL, NULL), -EINVAL);
    attr.steal_affinity = ROUSE_STEAL_AFFINITY_MAX + 1;
    CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), -EINVAL);
    attr = (struct rouse_cluster_attr)ROUSE_CLUSTER_ATTR_INIT;
    attr.workers = RSI_WORKERS_MAX + 1;
    CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), -EINVAL);
    CHECK_EQUAL(rouse_cluster_destroy(NULL), -EINVAL);
    CHECK_EQUAL(rouse_cluster_destroy(rouse_cluster_default()), -EINVAL);
    CHECK_EQUAL(rouse_thread_move(rouse_thread_self(), rouse_cluster_default()), -EINVAL);
    CHECK(rouse_thread_cluster(rouse_thread_self()) == NULL);
    CHECK(cluster == NULL);
    cluster = make(1, ROUSE_PLACE_STEAL);
    unmake(cluster);
    struct rouse_thread_attr thread_attr = { .cluster = cluster, .kind = ROUSE_KIND_USER };
    CHECK_EQUAL(rouse_thread_create(&t, &thread_attr, compute, NULL), -EINVAL);
    CHECK(t == NULL);
    CHECK_EQUAL(rouse_cluster_worker_add(cluster), -EINVAL);
    CHECK_EQUAL(rouse_cluster_worker_remove(cluster, -1), -EINVAL);
    CHECK_EQUAL(rouse_cluster_destroy(cluster), -EINVAL);
}

static void the_documented_number_of_clusters_can_exist(void **state)
{
    (void)state;
    struct rouse_cluster *clusters[ROUSE_CLUSTERS_MAX], *more = NULL;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 1; i < LENGTH(clusters); i++)
            clusters[i] = make(1, ROUSE_PLACE_STEAL);
        CHECK_EQUAL(rouse_cluster_create(&more, NULL), -EAGAIN);
        for (size_t i = 1; i < LENGTH(clusters); i++)
            start_in(clusters[i], stay_here, clusters[i]);
        for (size_t i = 1; i < LENGTH(clusters); i++)
            while (rouse_cluster_destroy(clusters[i]) == -EBUSY)
                rouse_thread_yield();
        for (size_t i = 1; i < LENGTH(clusters); i++)
            UNTIL(rsi_load_acquire(&clusters[i]->state) == RSI_CLUSTER_FREE);
    }
}

static void tell_settings(void)
{
    struct rouse_cluster_stats stats;
    rouse_cluster_stats_read(rouse_cluster_default(), &stats);
    scenario_status = (int)stats.steal_affinity + (stats.place == ROUSE_PLACE_SHORTEST ? 10 : 0);
}

static const struct scenario scenarios[] = { { "tell_settings", tell_settings } };

static void the_environment_configures_the_default_cluster(void **state)
{
    (void)state;
    scenario_exits("tell_settings", "ROUSE_PLACE=", 3);
    scenario_exits("tell_settings", "ROUSE_PLACE=shortest", 13);
    scenario_exits("tell_settings", "ROUSE_STEAL_AFFINITY=1", 1);
    scenario_exits("tell_settings", "ROUSE_STEAL_AFFINITY=6", 6);
    scenario_dies("tell_settings", "ROUSE_PLACE=longest", SIGABRT,
                  "ROUSE_PLACE is \"longest\"; give steal or shortest");
    static const char *const bad[] = { "ROUSE_STEAL_AFFINITY=0", "ROUSE_STEAL_AFFINITY=7",
                                       "ROUSE_STEAL_AFFINITY=33", "ROUSE_STEAL_AFFINITY=x" };
    for (size_t i = 0; i < LENGTH(bad); i++)
        scenario_dies("tell_settings", bad[i], SIGABRT, "give a number from 1 to 6");
}

/* More clusters than the limit allows at once: each one that ends makes room for a new one. */
static void clusters_come_and_go(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10 * ROUSE_CLUSTERS_MAX; i++) {
        struct rouse_cluster *cluster;
        CHECK_EQUAL(rouse_cluster_create(&cluster, NULL), 0);
        CHECK_EQUAL(rouse_cluster_destroy(cluster), 0);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_come_and_go),
        cmocka_unit_test(threads_of_a_cluster_run_on_its_workers_only),
        cmocka_unit_test(a_thread_begins_in_its_creators_cluster),
        cmocka_unit_test(threads_of_two_clusters_wake_each_other),
        cmocka_unit_test(a_moved_thread_goes_on_in_its_new_cluster),
        cmocka_unit_test(a_thread_moved_while_it_waits_wakes_up_in_its_new_cluster),
        cmocka_unit_test(a_runnable_thread_that_is_moved_runs_next_in_its_new_cluster),
        cmocka_unit_test(threads_that_only_yield_use_all_workers_of_their_cluster),
        cmocka_unit_test(a_cluster_that_computes_holds_up_no_other),
        cmocka_unit_test(the_environment_configures_the_default_cluster),
        cmocka_unit_test(unusable_arguments_of_clusters_are_refused),
        cmocka_unit_test(the_documented_number_of_clusters_can_exist),
    };
    static const struct program program = { 100,           true,      tests,
                                            LENGTH(tests), scenarios, LENGTH(scenarios) };
    setenv("ROUSE_SPARES", "0", 0); /* the monitor lends no worker meanwhile */
    return program_run(&program, argc, argv);
}
