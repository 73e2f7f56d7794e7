/* SPDX-License-Identifier: MIT */
/*
 * idle_races_test.c - no thread is left in a queue while a worker sleeps. Hogs yield or compute on
 * all workers except one until the threads that were submitted after them have run, so the one
 * remaining worker must be awake. The environment sets ROUSE_SEED and ROUSE_SCALE (the time in
 * percent). On a busy machine a round takes a few time slices.
 */
#include "unit/core/core_test.h"

#define HOGS_MAX 3
#define BURSTS 3
#define BURST_MAX 8

static uint64_t random_state;
static uint64_t time_ns;                         /* for each test */
static uint32_t released;                        /* the hogs may end */
static struct rouse_sem ran = ROUSE_SEM_INIT(0); /* the threads submitted after them */

static uint64_t below(uint64_t n)
{
    return rsi_random_next(&random_state) % n;
}

static void *run_once(void *unused)
{
    CHECK_EQUAL(rouse_sem_post(&ran), 0);
    return unused;
}

static void *yield_until_released(void *unused)
{
    while (!rsi_load_acquire(&released))
        rouse_thread_yield();
    return unused;
}

static void *compute_until_released(void *unused)
{
    while (!rsi_load_acquire(&released))
        rsi_cpu_relax();
    return unused;
}

/* Submits a thread and computes: only another worker can run it. */
static void *submit_and_compute(void *child)
{
    *(struct rouse_thread **)child = start(ROUSE_KIND_USER, run_once, NULL);
    return compute_until_released(NULL);
}

static void pause_a_little(void)
{
    for (uint64_t n = below(4) == 0 ? below(3000) : below(100); n > 0; n--)
        rsi_cpu_relax();
}

/*
 * All workers sleep and there is no watcher: a thread submitted now runs only through its own
 * wake-ups.
 */
static void until_quiet(void)
{
    while (rsi_load_seq_cst(&rsi_rt.watching) != 0 ||
           rsi_load_seq_cst(&rsi_rt.idle_count) != rouse_worker_count())
        rouse_sleep(MS);
}

/*
 * A kernel thread that submits in bursts, so that workers are woken, partly without work for them.
 */
static void *submit_some(void *count)
{
    struct rouse_thread *threads[BURST_MAX];
    for (uintptr_t i = 0; i < (uintptr_t)count; i++)
        threads[i] = start(ROUSE_KIND_USER, run_once, NULL);
    for (uintptr_t i = 0; i < (uintptr_t)count; i++)
        join(threads[i]);
    return NULL;
}

static void with_hogs(void *(*hog)(void *), unsigned hogs)
{
    struct rouse_thread *threads[HOGS_MAX], *children[HOGS_MAX], *bursts[BURSTS];
    unsigned expected = hog == submit_and_compute ? hogs : 0;
    rsi_store_relaxed(&released, 0u);
    if (below(2) == 0)
        until_quiet();
    for (unsigned i = 0; i < BURSTS; i++) {
        uintptr_t count = below(BURST_MAX + 1);
        bursts[i] = start(ROUSE_KIND_KERNEL, submit_some, (void *)count);
        expected += (unsigned)count;
    }
    for (unsigned i = 0; i < hogs; i++, pause_a_little())
        threads[i] = start(ROUSE_KIND_USER, hog, &children[i]);
    for (unsigned i = 0; i < expected;
         i++) /* on a kernel thread, which leaves its CPU to workers */
        CHECK_EQUAL(rouse_sem_wait_until(&ran, rouse_now_ns() + PATIENCE_S * SECOND), 0);
    rsi_store_release(&released, 1u);
    for (unsigned i = 0; i < BURSTS; i++)
        join(bursts[i]);
    for (unsigned i = 0; i < hogs; i++)
        join(threads[i]);
    for (unsigned i = 0; i < hogs && hog == submit_and_compute; i++)
        join(children[i]);
}

static void rounds_with(void *(*hog)(void *))
{
    unsigned most = rouse_worker_count() - 1 < HOGS_MAX ? rouse_worker_count() - 1 : HOGS_MAX;
    uint64_t end_ns = rouse_now_ns() + time_ns;
    while (most != 0 && rouse_now_ns() < end_ns)
        with_hogs(hog, 1 + (unsigned)below(most));
}

static void beside_threads_that_yield(void **state)
{
    (void)state;
    rounds_with(yield_until_released);
}

static void beside_threads_that_compute(void **state)
{
    (void)state;
    rounds_with(compute_until_released);
}

static void threads_submitted_by_one_that_computes(void **state)
{
    (void)state;
    rounds_with(submit_and_compute);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_threads_that_yield),
        cmocka_unit_test(beside_threads_that_compute),
        cmocka_unit_test(threads_submitted_by_one_that_computes),
    };
    setenv("ROUSE_TEST_DELAY", "300", 0); /* for the runs that this one starts */
    random_state = seed_of_run();
    time_ns = 3 * SECOND * number_from("ROUSE_SCALE", 100) / 100;
    struct program program = {
        .limit_s = 120, .every_number = true, .tests = tests, .test_count = LENGTH(tests)
    };
    return program_run(&program, argc, argv);
}
