/* SPDX-License-Identifier: MIT */
/*
 * steal_storm.c - work that appears in one place and must be found by all: bursts on one worker,
 * wake-ups from outside, workers that fall asleep and are woken all the time, threads that compute.
 *
 * Every piece of work is done once. After each round the protocol's own counters must come to rest:
 * no worker may count as searching while all are busy, or no other would be woken any more; and
 * while a worker sleeps, no queue may hold a thread. The environment sets ROUSE_SEED and
 * ROUSE_SCALE (rounds in percent).
 */
#include "unit/core/core_test.h"

#include <pthread.h>

#define PIECES 64
#define SLEEPERS 32
#define RINGERS 3

static uint32_t pieces_done, stop;
static struct rouse_sem bells[SLEEPERS];
static uint64_t rings, heard;

static void compute(uint64_t ns)
{
    for (uint64_t end = rouse_now_ns() + ns; rouse_now_ns() < end;)
        rsi_cpu_relax();
}

/* A worker that runs a thread must not count as searching: while one does, no other is woken. */
static void check_own_worker(void)
{
    CHECK(!rsi_exec_self()->worker->is_searching);
}

static void *do_piece(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    check_own_worker();
    switch (rsi_random_next(&random) % 8) {
    case 0: compute(rsi_random_next(&random) % (20 * US)); break;
    case 1: rouse_sleep(rsi_random_next(&random) % (20 * US)); break;
    case 2:
    case 3: rouse_thread_yield(); break;
    default: break;
    }
    rsi_fetch_add_relaxed(&pieces_done, 1u);
    return NULL;
}

/* A burst of work on one worker, which then computes itself: the others must come for it. */
static void *burst(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    struct rouse_thread *threads[PIECES];
    uint64_t count = 1 + rsi_random_next(&random) % PIECES;
    for (uint64_t i = 0; i < count; i++)
        threads[i] = start(ROUSE_KIND_USER, do_piece, (void *)(uintptr_t)rsi_random_next(&random));
    if (rsi_random_next(&random) % 2)
        compute(rsi_random_next(&random) % (50 * US));
    for (uint64_t i = 0; i < count; i++)
        join(threads[i]);
    return (void *)(uintptr_t)count;
}

static void *listen_to_bell(void *bell)
{
    uint64_t count = 0;
    for (;;) {
        CHECK_EQUAL(rouse_sem_wait(bell), 0);
        check_own_worker();
        if (rsi_load_acquire(&stop))
            break;
        count++;
    }
    rsi_fetch_add_relaxed(&heard, count);
    return NULL;
}

/* From outside, at any moment. */
static void *ring_bells(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1, count = 0;
    while (!rsi_load_acquire(&stop)) {
        rouse_sem_post(&bells[rsi_random_next(&random) % SLEEPERS]);
        count++;
        uint64_t pause = rsi_random_next(&random) % 64;
        if (pause == 0)
            usleep((useconds_t)(rsi_random_next(&random) % 300));
        else
            for (uint64_t i = pause * 8; i; i--)
                rsi_cpu_relax();
    }
    rsi_fetch_add_relaxed(&rings, count);
    return NULL;
}

/* All workers compute at once. None is idle then, and none may still count as searching. */
static uint32_t computing;

static void *occupy(void *arg)
{
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    uint32_t count = (uint32_t)(uintptr_t)arg;
    rsi_fetch_add_seq_cst(&computing, 1u);
    while (rsi_load_acquire(&computing) < count ||
           rsi_load_acquire(&rsi_cluster_default.searching) != 0) {
        CHECK(rouse_now_ns() < end);
        sched_yield();
    }
    /* one that has seen it is enough: the others may go */
    rsi_fetch_add_seq_cst(&computing, count);
    return NULL;
}

static void check_that_nobody_searches(void)
{
    struct rouse_thread *threads[16];
    uint32_t count = rouse_worker_count();
    CHECK(count <= LENGTH(threads));
    rsi_store_relaxed(&computing, 0u);
    for (uint32_t i = 0; i < count; i++)
        threads[i] = start(ROUSE_KIND_USER, occupy, (void *)(uintptr_t)count);
    for (uint32_t i = 0; i < count; i++)
        join(threads[i]);
}

static void check_that_all_come_to_rest(void)
{
    UNTIL(rsi_idle_all_sleep() && rsi_load_seq_cst(&rsi_cluster_default.searching) == 0);
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        CHECK(
            !rsi_worker_has_work(rsi_rt.workers[i])); /* a spare that has left has a closed inbox */
}

static void storm(uint64_t *random)
{
    struct rouse_thread *sleepers[SLEEPERS];
    pthread_t ringers[RINGERS];
    uint64_t work = 0;
    rsi_store_relaxed(&stop, 0u);
    rsi_store_relaxed(&pieces_done, 0u);
    rsi_store_relaxed(&rings, 0u);
    rsi_store_relaxed(&heard, 0u);
    for (size_t i = 0; i < SLEEPERS; i++) {
        rouse_sem_init(&bells[i], 0, NULL);
        sleepers[i] = start(ROUSE_KIND_USER, listen_to_bell, &bells[i]);
    }
    for (size_t i = 0; i < RINGERS; i++)
        CHECK(pthread_create(&ringers[i], NULL, ring_bells,
                             (void *)(uintptr_t)rsi_random_next(random)) == 0);
    for (int i = 0; i < 40; i++) {
        void *seed = (void *)(uintptr_t)rsi_random_next(random);
        work += (uintptr_t)(i % 4 ? join(start(ROUSE_KIND_USER, burst, seed)) : burst(seed));
        if (i % 8 == 0)
            rouse_sleep(rsi_random_next(random) % (400 * US));
    }
    rsi_store_release(&stop, 1u);
    for (size_t i = 0; i < RINGERS; i++)
        CHECK(pthread_join(ringers[i], NULL) == 0);
    for (size_t i = 0; i < SLEEPERS; i++)
        rouse_sem_post(&bells[i]);
    uint64_t left = 0;
    for (size_t i = 0; i < SLEEPERS; i++) {
        join(sleepers[i]);
        left += rouse_sem_value(&bells[i]);
    }
    CHECK_EQUAL(pieces_done, work);
    /* Each sleeper ended with one ring of its bell, which need not have been the bell's last. */
    CHECK_EQUAL(heard + left, rings);
}

static void all_work_is_found_and_done_once(void **state)
{
    (void)state;
    uint64_t random = seed_of_run();
    unsigned rounds = rounds_of(20);
    for (unsigned i = 0; i < rounds; i++) {
        storm(&random);
        check_that_nobody_searches();
        check_that_all_come_to_rest();
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_work_is_found_and_done_once),
    };
    static const struct program program = { 150, true, tests, LENGTH(tests), NULL, 0 };
    if (argc == 1)
        stress_set_up();
    return program_run(&program, argc, argv);
}
