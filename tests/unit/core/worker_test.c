/* SPDX-License-Identifier: MIT */
/*
 * worker_test.c - runnable threads run while a worker is free, and workers use no CPU while no
 * thread can run. Most of these tests need two workers, since a single one has no other to steal
 * from.
 */
#include "core_test.h"

#include <dirent.h>
#include <sched.h>

static uint32_t running, done;

static unsigned workers(void)
{
    return rouse_worker_count();
}

/*
 * Compute until count threads do so at once. A worker that holds two of them therefore needs the
 * other workers.
 */
static void *compute_together(void *arg)
{
    uint32_t count = (uint32_t)(uintptr_t)arg;
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    int worker = rouse_worker_index();
    CHECK(worker >= 0 && worker < (int)workers());
    rsi_fetch_add_seq_cst(&running, 1u);
    while (rsi_load_acquire(&running) < count) {
        CHECK(rouse_now_ns() < end);
        sched_yield(); /* frees the CPU but not the worker */
    }
    return NULL;
}

static void *create_on_one_worker(void *unused)
{
    struct rouse_thread *threads[16];
    unsigned count = workers();
    CHECK(count <= LENGTH(threads));
    rsi_store_relaxed(&running, 0u);
    for (unsigned i = 0; i < count; i++)
        threads[i] = start(ROUSE_KIND_USER, compute_together, (void *)(uintptr_t)count);
    for (unsigned i = 0; i < count; i++)
        join(threads[i]);
    return unused;
}

static void a_queue_of_one_worker_is_run_by_all(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        join(start(ROUSE_KIND_USER, create_on_one_worker, NULL));
}

static void threads_made_by_foreign_ones_are_run_by_all(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        create_on_one_worker(NULL);
}

/* A thread that is woken by one that goes on to compute. */
struct visit {
    struct rouse_sem bell;
    uint32_t waits, ran;
    int worker;
};

static void *wait_for_bell(void *arg)
{
    struct visit *visit = arg;
    visit->worker = rouse_worker_index();
    rsi_store_release(&visit->waits, 1u);
    CHECK_EQUAL(rouse_sem_wait(&visit->bell), 0);
    rsi_store_release(&visit->ran, 1u);
    return NULL;
}

static void compute_until(uint32_t *flag)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (!rsi_load_acquire(flag))
        CHECK(rouse_now_ns() < end);
}

static void *wake_and_compute(void *unused)
{
    struct visit visit = { .bell = ROUSE_SEM_INIT(0) };
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_bell, &visit);
    while (!waits(t))
        rouse_thread_yield();
    rouse_sem_post(&visit.bell); /* into this worker's next slot */
    compute_until(&visit.ran);
    join(t);
    return unused;
}

static void a_thread_woken_by_one_that_computes_runs_elsewhere(void **state)
{
    (void)state;
    for (int i = 0; workers() > 1 && i < 20; i++)
        join(start(ROUSE_KIND_USER, wake_and_compute, NULL));
}

static void *run_at_all(void *ran)
{
    rsi_fetch_add_acq_rel((uint32_t *)ran, 1u);
    return NULL;
}

/* Create threads, and compute until as many of them have run. */
static void create_and_compute(size_t count, uint32_t wanted)
{
    uint32_t ran = 0;
    struct rouse_thread **threads = malloc(count * sizeof *threads);
    CHECK(threads);
    for (size_t i = 0; i < count; i++)
        threads[i] = start(ROUSE_KIND_USER, run_at_all, &ran);
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (rsi_load_acquire(&ran) < wanted)
        CHECK(rouse_now_ns() < end);
    for (size_t i = 0; i < count; i++)
        join(threads[i]);
    free(threads);
}

static void *create_more_than_a_short_queue(void *unused)
{
    create_and_compute((size_t)rsi_load_relaxed(&rsi_exec_self()->worker->short_most) + 2, 1);
    return unused;
}

static void *create_two(void *unused)
{
    create_and_compute(2, 2);
    return unused;
}

static void a_short_queue_runs_though_its_worker_computes(void **state)
{
    (void)state;
    for (int i = 0; workers() > 1 && i < 20; i++)
        join(start(ROUSE_KIND_USER, create_two, NULL));
}

/*
 * The wake-up must come at once, without the watcher. The test claims to be the watcher itself, so
 * there is none.
 */
static void a_long_queue_wakes_another_worker(void **state)
{
    (void)state;
    for (int i = 0; workers() > 1 && i < 20; i++) {
        UNTIL(rsi_idle_all_sleep() && rsi_load_seq_cst(&rsi_rt.watching) == 0);
        rsi_store_seq_cst(&rsi_rt.watching, 1u);
        join(start(ROUSE_KIND_USER, create_more_than_a_short_queue, NULL));
        rsi_store_seq_cst(&rsi_rt.watching, 0u);
        rsi_idle_wake_any(); /* the running workers have a watcher again */
    }
}

/* Its turns are long: a look at the clock after each of them. */
static void *compute_in_turns(void *seen)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (rsi_load_acquire((uint32_t *)seen) != (1u << workers()) - 1) {
        uint64_t until = rouse_now_ns() + MS;
        CHECK(until < end);
        rsi_fetch_or_relaxed((uint32_t *)seen, 1u << rouse_worker_index());
        while (rouse_now_ns() < until)
            continue;
        rouse_thread_yield();
    }
    return NULL;
}

static void *compute_after_short_turns(void *unused)
{
    uint32_t seen = 0;
    struct rouse_thread *threads[8];
    for (int i = 0; i < 10000; i++)
        rouse_thread_yield(); /* the worker's mean turn is short */
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, compute_in_turns, &seen);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    return unused;
}

static void few_long_threads_use_all_workers(void **state)
{
    (void)state;
    for (int i = 0; workers() <= 16 && i < 5; i++)
        join(start(ROUSE_KIND_USER, compute_after_short_turns, NULL));
}

static void *sleep_briefly(void *unused)
{
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL(rouse_sleep(200 * US), 0);
    rsi_fetch_add_relaxed(&done, 1u);
    return unused;
}

static void *compute_until_done(void *unused)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    CHECK_EQUAL(rouse_sleep(5 * MS), 0);
    while (rsi_load_relaxed(&done) < 100)
        CHECK(rouse_now_ns() < end);
    return unused;
}

/* One worker soon keeps the deadlines of all: the threads sleep for most of the time. Then it computes. */
static void deadlines_are_met_though_the_worker_that_keeps_them_computes(void **state)
{
    (void)state;
    struct rouse_thread *threads[100];
    if (workers() == 1)
        return;
    rsi_store_relaxed(&done, 0u);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, sleep_briefly, NULL);
    struct rouse_thread *hog = start(ROUSE_KIND_USER, compute_until_done, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    join(hog);
}

static struct visit guest;
static bool met;
static uint32_t computing;

static void *sit_on_the_worker_of_a_sleeper(void *unused)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_bell, &guest);
    while (!waits(t))
        rouse_thread_yield();
    met = guest.worker == rouse_worker_index();
    rsi_store_release(&computing, 1u);
    compute_until(&guest.ran);
    join(t);
    return unused;
}

/* It goes to the inbox of the worker that computes. */
static void a_thread_woken_from_outside_runs_though_its_worker_computes(void **state)
{
    (void)state;
    met = workers() == 1;
    for (int i = 0; !met && i < 1000; i++) {
        guest = (struct visit){ .bell = ROUSE_SEM_INIT(0) };
        rsi_store_relaxed(&computing, 0u);
        struct rouse_thread *t = start(ROUSE_KIND_USER, sit_on_the_worker_of_a_sleeper, NULL);
        UNTIL(rsi_load_acquire(&computing));
        rouse_sem_post(&guest.bell);
        join(t);
    }
    CHECK(met);
}

static void *wake_many_and_compute(void *unused)
{
    static struct visit visits[200];
    struct rouse_thread *threads[LENGTH(visits)];
    for (size_t i = 0; i < LENGTH(visits); i++) {
        visits[i] = (struct visit){ .bell = ROUSE_SEM_INIT(0) };
        threads[i] = start(ROUSE_KIND_USER, wait_for_bell, &visits[i]);
    }
    for (size_t i = 0; i < LENGTH(visits); i++)
        while (!waits(threads[i]))
            rouse_thread_yield();
    for (size_t i = 0; i < LENGTH(visits); i++)
        rouse_sem_post(&visits[i].bell);
    for (size_t i = 0; i < LENGTH(visits); i++)
        compute_until(&visits[i].ran);
    for (size_t i = 0; i < LENGTH(visits); i++)
        join(threads[i]);
    return unused;
}

static void all_threads_woken_by_one_run_while_it_computes(void **state)
{
    (void)state;
    for (int i = 0; workers() > 1 && i < 10; i++)
        join(start(ROUSE_KIND_USER, wake_many_and_compute, NULL));
}

static void *tell_index(void *unused)
{
    int index = rouse_worker_index();
    CHECK(rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_KERNEL
              ? index == -1
              : index >= 0 && index < (int)workers());
    return unused;
}

static void only_user_threads_have_a_worker(void **state)
{
    (void)state;
    in_every_kind(tell_index, NULL);
}

/* The sum of the context switches of all workers' kernel threads. */
static uint64_t worker_switches(void)
{
    uint64_t total = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        char path[300], line[128];
        unsigned long count;
        bool is_worker = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (file && fgets(line, sizeof line, file)) {
            if (strncmp(line, "Name:\trouse-", 12) == 0)
                is_worker = true;
            if (is_worker && (sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1 ||
                              sscanf(line, "nonvoluntary_ctxt_switches: %lu", &count) == 1))
                total += count;
        }
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return total;
}

static void *yield_a_little(void *unused)
{
    for (int i = 0; i < 100; i++)
        rouse_thread_yield();
    rsi_fetch_add_relaxed(&done, 1u);
    return unused;
}

static void *sleep_for_ever(void *unused)
{
    CHECK_EQUAL(rouse_sleep(ROUSE_FOREVER), -ECANCELED);
    return unused;
}

static bool all_workers_sleep(void)
{
    return rsi_idle_all_sleep() && rsi_load_relaxed(&rsi_cluster_default.searching) == 0 &&
           rsi_load_relaxed(&rsi_rt.watching) == 0;
}

static void a_process_in_which_all_threads_wait_uses_no_cpu(void **state)
{
    (void)state;
    struct rouse_thread *sleepers[10], *t;
    for (size_t i = 0; i < LENGTH(sleepers); i++)
        sleepers[i] = start(ROUSE_KIND_USER, sleep_for_ever, NULL);
    for (int i = 0; i < 20; i++) {
        t = start(ROUSE_KIND_USER, yield_a_little, NULL);
        join(t);
    }
    UNTIL(all_workers_sleep());
    /* A worker that has announced its sleep may still be on its way into the system call. */
    uint64_t before = 0, after = worker_switches();
    for (int i = 0; before != after && i < 100; i++) {
        CHECK_EQUAL(rouse_sleep(20 * MS), 0);
        before = after;
        after = worker_switches();
    }
    CHECK_EQUAL(rouse_sleep(500 * MS), 0);
    CHECK_EQUAL(worker_switches(), after);
    CHECK(all_workers_sleep());
    for (size_t i = 0; i < LENGTH(sleepers); i++) {
        rouse_thread_cancel(sleepers[i]);
        join(sleepers[i]);
    }
}

static void *spawn_a_burst(void *unused)
{
    struct rouse_thread *threads[300];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, yield_a_little, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    return unused;
}

/* Bursts with pauses in between, so that workers fall asleep and are woken all the time. */
static void no_thread_is_forgotten_when_workers_sleep_and_wake(void **state)
{
    (void)state;
    rsi_store_relaxed(&done, 0u);
    uint64_t random = seed_of_run();
    for (int i = 0; i < 100; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, spawn_a_burst, NULL);
        if (i % 2)
            spawn_a_burst(NULL);
        join(t);
        rouse_sleep(rsi_random_next(&random) % (500 * US));
    }
    CHECK_EQUAL(done, 150 * 300);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_queue_of_one_worker_is_run_by_all),
        cmocka_unit_test(threads_made_by_foreign_ones_are_run_by_all),
        cmocka_unit_test(a_thread_woken_by_one_that_computes_runs_elsewhere),
        cmocka_unit_test(a_short_queue_runs_though_its_worker_computes),
        cmocka_unit_test(a_long_queue_wakes_another_worker),
        cmocka_unit_test(few_long_threads_use_all_workers),
        cmocka_unit_test(deadlines_are_met_though_the_worker_that_keeps_them_computes),
        cmocka_unit_test(a_thread_woken_from_outside_runs_though_its_worker_computes),
        cmocka_unit_test(all_threads_woken_by_one_run_while_it_computes),
        cmocka_unit_test(only_user_threads_have_a_worker),
        cmocka_unit_test(a_process_in_which_all_threads_wait_uses_no_cpu),
        cmocka_unit_test(no_thread_is_forgotten_when_workers_sleep_and_wake),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
