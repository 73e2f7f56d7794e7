/* SPDX-License-Identifier: MIT */
/* cluster_test.c - clusters: their threads run on their own workers alone, and go where they are moved. */
#include "core_test.h"

#include <sched.h>

static struct rouse_cluster *make(unsigned workers, enum rouse_place place)
{
    struct rouse_cluster *cluster = NULL;
    struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
    attr.name = "test";
    attr.workers = workers;
    attr.place = place;
    CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), 0);
    return cluster;
}

static struct rouse_thread *start_in(struct rouse_cluster *cluster, void *(*fn)(void *), void *arg)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.cluster = cluster;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, fn, arg), 0);
    return t;
}

/* Its workers have gone when it has. */
static void unmake(struct rouse_cluster *cluster)
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

static void *start_many(void *cluster)
{
    struct rouse_thread *threads[50];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start_in(cluster, stay_here, cluster);
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(join(threads[i]) == cluster);
    return NULL;
}

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

static void a_thread_that_moves_goes_on_there(void **state)
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

static void *sleep_for_a_while(void *cluster)
{
    CHECK_EQUAL(rouse_sleep(20 * MS), 0);
    CHECK(is_there(cluster));
    return NULL;
}

static void a_thread_moved_while_it_waits_wakes_up_there(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    for (int i = 0; i < 20; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_bell, cluster);
        struct rouse_thread *sleeper = start(ROUSE_KIND_USER, sleep_for_a_while, cluster);
        UNTIL(waits(t) && waits(sleeper));
        CHECK_EQUAL(rouse_thread_move(t, cluster), 0);
        CHECK_EQUAL(rouse_thread_move(sleeper, cluster), 0);
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

static void a_runnable_thread_that_is_moved_has_its_next_turn_there(void **state)
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

/* Every worker of one computes: the other's threads go on. */
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

static int *index_of_caller(int *index)
{
    *index = rouse_worker_index();
    return index;
}

/* Yields and sleeps until told to stop; what it does on a worker that ends goes on elsewhere. */
static void *keep_on(void *arg)
{
    uint64_t random = (uintptr_t)arg * 77 + 1;
    while (!rsi_load_acquire(&stop)) {
        int index;
        rouse_thread_yield();
        CHECK(*index_of_caller(&index) >= 0);
        if (rsi_random_next(&random) % 4 == 0)
            CHECK_EQUAL(rouse_sleep(rsi_random_next(&random) % (300 * US)), 0);
    }
    return NULL;
}

static unsigned worker_count_of(struct rouse_cluster *cluster)
{
    struct rouse_cluster_stats stats;
    rouse_cluster_stats_read(cluster, &stats);
    return stats.workers;
}

static void workers_come_and_go_and_no_thread_is_lost(void **state)
{
    (void)state;
    static const enum rouse_place places[] = { ROUSE_PLACE_STEAL, ROUSE_PLACE_SHORTEST };
    for (size_t p = 0; p < LENGTH(places); p++) {
        struct rouse_cluster *cluster = make(2, places[p]);
        struct rouse_thread *threads[40];
        uint64_t random = seed_of_run();
        unsigned workers = 2;
        rsi_store_relaxed(&stop, 0u);
        for (size_t i = 0; i < LENGTH(threads); i++)
            threads[i] = start_in(cluster, keep_on, (void *)i);
        for (unsigned i = 0; i < 200 / SLOWER; i++) {
            bool adds = rsi_random_next(&random) % 2;
            int result = adds ? rouse_cluster_worker_add(cluster)
                              : rouse_cluster_worker_remove(cluster, -1);
            CHECK(result >= 0 || (!adds && workers == 1 && result == -EBUSY));
            workers += result < 0 ? 0 : adds ? 1u : -1u;
            if (workers > 6)
                CHECK(rouse_cluster_worker_remove(cluster, -1) >= 0 && workers--);
            CHECK_EQUAL(worker_count_of(cluster), workers);
            rouse_sleep(rsi_random_next(&random) % (500 * US));
        }
        rsi_store_release(&stop, 1u);
        for (size_t i = 0; i < LENGTH(threads); i++)
            join(threads[i]);
        unmake(cluster);
    }
}

/* Deadlines far and near, armed on a worker that ends before them. */
static void deadlines_outlive_their_worker(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    struct rouse_thread *threads[300];
    for (int round = 0; round < 3; round++) {
        int first = rouse_cluster_worker_add(cluster);
        for (size_t i = 0; i < LENGTH(threads); i++)
            threads[i] = start_in(cluster, sleep_for_a_while, cluster);
        for (size_t i = 0; i < LENGTH(threads); i++)
            UNTIL(waits(threads[i]) ||
                  rsi_load_acquire(&rsi_waiter(threads[i])->life) != RSI_LIFE_LIVE);
        CHECK(first >= 0);
        CHECK(rouse_cluster_worker_remove(cluster, -1) >= 0);
        for (size_t i = 0; i < LENGTH(threads); i++)
            join(threads[i]);
    }
    unmake(cluster);
}

/* Its entry stands among the timers of the cluster that it has left. */
static void deadlines_outlive_their_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    struct rouse_thread *threads[100];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start_in(cluster, sleep_for_a_while, rouse_cluster_default());
    for (size_t i = 0; i < LENGTH(threads); i++)
        UNTIL(waits(threads[i]));
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK_EQUAL(rouse_thread_move(threads[i], rouse_cluster_default()), 0);
    unmake(cluster);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static void *remove_own_worker(void *cluster)
{
    int index = rouse_worker_index();
    CHECK_EQUAL(rouse_cluster_worker_remove(cluster, index), index);
    CHECK_EQUAL(rouse_worker_index(), index); /* the turn is finished there */
    rouse_thread_yield();
    CHECK(rouse_worker_index() != index);
    return NULL;
}

static void a_thread_may_remove_its_own_worker(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(2, ROUSE_PLACE_STEAL);
    join(start_in(cluster, remove_own_worker, cluster));
    CHECK_EQUAL(worker_count_of(cluster), 1);
    CHECK_EQUAL(rouse_cluster_worker_remove(cluster, -1), -EBUSY);
    CHECK_EQUAL(rouse_cluster_worker_remove(cluster, 1000), -EINVAL);
    unmake(cluster);
}

static void *allowed_cpus(void *set)
{
    CHECK(sched_getaffinity(0, sizeof(cpu_set_t), set) == 0);
    return set;
}

static void workers_run_where_they_are_bound_to(void **state)
{
    (void)state;
    cpu_set_t process, seen;
    char cpus[32];
    CHECK(sched_getaffinity(0, sizeof process, &process) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &process))
        cpu++;
    snprintf(cpus, sizeof cpus, "%d", cpu);
    struct rouse_cluster *cluster = NULL, *other;
    struct rouse_cluster_attr attr = { .cpus = cpus };
    CHECK_EQUAL(rouse_cluster_create(&cluster, &attr), 0);
    join(start_in(cluster, allowed_cpus, &seen));
    CHECK(CPU_COUNT(&seen) == 1 && CPU_ISSET(cpu, &seen));
    int added = rouse_cluster_worker_add(cluster); /* bound like the others */
    CHECK(added >= 0 && rouse_cluster_worker_remove(cluster, -1) >= 0);
    join(start_in(cluster, allowed_cpus, &seen));
    CHECK(CPU_COUNT(&seen) == 1 && CPU_ISSET(cpu, &seen));
    CHECK_EQUAL(rouse_cluster_worker_pin(cluster, -1, NULL), 0);
    join(start_in(cluster, allowed_cpus, &seen));
    CHECK(CPU_EQUAL(&seen, &process));
    CHECK_EQUAL(rouse_cluster_worker_pin(cluster, -1, cpus), 0);
    other = make(1, ROUSE_PLACE_STEAL);
    join(start_in(other, allowed_cpus, &seen)); /* it is not bound because others are */
    CHECK(CPU_EQUAL(&seen, &process));
    static const char *const bad[] = { "", "x", "1-", "3-1", "1,", "4096", "-1", "0 ", "4095" };
    for (size_t i = 0; i < LENGTH(bad); i++)
        CHECK_EQUAL(rouse_cluster_worker_pin(cluster, -1, bad[i]), -EINVAL);
    attr.cpus = "4095";
    struct rouse_cluster *none = NULL;
    CHECK_EQUAL(rouse_cluster_create(&none, &attr), -EINVAL);
    CHECK(none == NULL);
    unmake(cluster);
    unmake(other);
}

static void in_child(struct rouse_cluster *cluster)
{
    start_many(cluster);
    start_many(rouse_cluster_default());
    CHECK_EQUAL(rouse_thread_move(rouse_thread_self(), cluster),
                rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_USER ? 0 : -EINVAL);
    CHECK_EQUAL(worker_count_of(cluster), 2);
    if (rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_USER)
        CHECK_EQUAL(rouse_thread_move(rouse_thread_self(), rouse_cluster_default()), 0);
    unmake(cluster);
    _exit(0);
}

static void *fork_here(void *cluster)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        in_child(cluster);
    CHECK(child_passed(pid));
    return NULL;
}

static void a_child_has_the_clusters_too(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    puts("not run: tsan has no threads after a fork from many");
#else
    struct rouse_cluster *cluster = make(2, ROUSE_PLACE_STEAL);
    start_many(cluster);
    fork_here(cluster);
    join(start_in(cluster, fork_here, cluster));
    join(start_in(rouse_cluster_default(), fork_here, cluster));
    unmake(cluster);
#endif
}

static void what_is_unusable_is_refused(void **state)
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

static void as_many_clusters_as_promised(void **state)
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

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_cluster_run_on_its_workers_only),
        cmocka_unit_test(a_thread_begins_in_its_creators_cluster),
        cmocka_unit_test(threads_of_two_clusters_wake_each_other),
        cmocka_unit_test(a_thread_that_moves_goes_on_there),
        cmocka_unit_test(a_thread_moved_while_it_waits_wakes_up_there),
        cmocka_unit_test(a_runnable_thread_that_is_moved_has_its_next_turn_there),
        cmocka_unit_test(a_cluster_that_computes_holds_up_no_other),
        cmocka_unit_test(workers_come_and_go_and_no_thread_is_lost),
        cmocka_unit_test(deadlines_outlive_their_worker),
        cmocka_unit_test(deadlines_outlive_their_cluster),
        cmocka_unit_test(a_thread_may_remove_its_own_worker),
        cmocka_unit_test(workers_run_where_they_are_bound_to),
        cmocka_unit_test(a_child_has_the_clusters_too),
        cmocka_unit_test(what_is_unusable_is_refused),
        cmocka_unit_test(as_many_clusters_as_promised),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
