/* SPDX-License-Identifier: MIT */
/*
 * workers_test.c - workers are added, removed and bound to CPUs, and none of their threads or
 * timers is lost.
 */
#include "cluster_test.h"

#include <sched.h>
#include <sys/socket.h>

static uint32_t stop;

static int *index_of_caller(int *index)
{
    *index = rouse_worker_index();
    return index;
}

/* Yields and sleeps until asked to stop. When its worker ends, it goes on at another. */
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
        rsi_store_relaxed(&stop, 0u);
        for (size_t i = 0; i < LENGTH(threads); i++)
            threads[i] = start_in(cluster, keep_on, (void *)i);
        for (unsigned i = 0; i < 200 / SLOWER; i++) {
            bool adds = rsi_random_next(&random) % 2;
            int result = adds ? rouse_cluster_worker_add(cluster)
                              : rouse_cluster_worker_remove(cluster, -1);
            /* The monitor may lend the cluster a worker for a while. */
            CHECK(result >= 0 || (!adds && result == -EBUSY));
            if (worker_count_of(cluster) > 6)
                (void)rouse_cluster_worker_remove(cluster, -1);
            CHECK(worker_count_of(cluster) >= 1);
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

/* Its entry stays among the timers of the cluster that it has left. */
static void deadlines_outlive_their_cluster(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    struct rouse_thread *threads[100];
    rsi_store_relaxed(&has_moved, 0u);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start_in(cluster, sleep_until_moved, rouse_cluster_default());
    for (size_t i = 0; i < LENGTH(threads); i++)
        UNTIL(waits(threads[i]));
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK_EQUAL(rouse_thread_move(threads[i], rouse_cluster_default()), 0);
    rsi_store_release(&has_moved, 1u);
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

/* So that workers may own a ring. */
static void *wait_for_input(void *arg)
{
    int ends[2];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK_EQUAL(rouse_read_until(ends[0], &byte, 1, rouse_now_ns() + MS), -ETIMEDOUT);
    CHECK_EQUAL(rouse_close(ends[0]), 0);
    CHECK_EQUAL(rouse_close(ends[1]), 0);
    return arg;
}

/* With io_uring it is a worker that was removed before, and has perhaps not yet noticed that it was added again. */
static void a_worker_that_is_removed_at_once_leaves_the_cluster_it_was_added_to(void **state)
{
    (void)state;
    struct rouse_cluster *cluster = make(1, ROUSE_PLACE_STEAL);
    uint64_t random = seed_of_run();
    join(start_in(cluster, wait_for_input, NULL));
    for (unsigned i = rounds_of(20000); i != 0; i--) {
        CHECK(rouse_cluster_worker_add(cluster) >= 0);
        CHECK(rouse_cluster_worker_remove(cluster, -1) >= 0);
        while (worker_count_of(cluster) != 1)
            rsi_cpu_relax();
        for (uint64_t pauses = rsi_random_next(&random) % 512; pauses != 0; pauses--)
            rsi_cpu_relax();
    }
    start_many(cluster);
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
    join(start_in(other, allowed_cpus, &seen)); /* other bound workers do not make this one bound */
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

#ifdef RSI_TSAN
static const bool is_tsan = true;
#else
static const bool is_tsan = false;
#endif

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
    if (is_tsan) {
        puts("not run: tsan has no threads after a fork from many");
        return;
    }
    struct rouse_cluster *cluster = make(2, ROUSE_PLACE_STEAL);
    start_many(cluster);
    fork_here(cluster);
    join(start_in(cluster, fork_here, cluster));
    join(start_in(rouse_cluster_default(), fork_here, cluster));
    unmake(cluster);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_come_and_go_and_no_thread_is_lost),
        cmocka_unit_test(deadlines_outlive_their_worker),
        cmocka_unit_test(deadlines_outlive_their_cluster),
        cmocka_unit_test(a_thread_may_remove_its_own_worker),
        cmocka_unit_test(a_worker_that_is_removed_at_once_leaves_the_cluster_it_was_added_to),
        cmocka_unit_test(workers_run_where_they_are_bound_to),
        cmocka_unit_test(a_child_has_the_clusters_too),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    setenv("ROUSE_SPARES", "0", 0); /* the monitor lends no worker meanwhile */
    return program_run(&program, argc, argv);
}
