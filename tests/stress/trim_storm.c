/* SPDX-License-Identifier: MIT */
/*
 * trim_storm.c - stacks are trimmed all the time while their threads are woken, run and park.
 *
 * Each thread stands on frames with known contents, below which it has been deeper before. It
 * checks them after each wait. Wakers are user threads, kernel threads and the timer. No memory in
 * use may be lost, and no thread may be left asleep. The environment sets ROUSE_SEED and
 * ROUSE_SCALE (rounds in percent).
 */
#include "unit/core/core_test.h"

#include <pthread.h>

#define THREADS 48
#define FRAME_BYTES 1024

static struct rouse_sem bells[THREADS];
static uint32_t stop;
static uint64_t trimmed_bytes, waits_done;

static RSI_NOINLINE void dive(unsigned depth)
{
    volatile char frame[FRAME_BYTES];
    for (size_t i = 0; i < sizeof frame; i += 64)
        frame[i] = (char)depth;
    if (depth)
        dive(depth - 1);
    CHECK_EQUAL(frame[0], (char)depth);
}

static void wait_somehow(struct rouse_sem *bell, uint64_t *random)
{
    switch (rsi_random_next(random) % 4) {
    case 0: rouse_sleep(rsi_random_next(random) % (50 * US)); break;
    case 1: rouse_thread_yield(); break;
    case 2:
        (void)rouse_sem_wait_until(bell, rouse_now_ns() + rsi_random_next(random) % (200 * US));
        break;
    default: (void)rouse_sem_wait_until(bell, rouse_now_ns() + 10 * MS); break;
    }
    rsi_fetch_add_relaxed(&waits_done, 1u);
}

/* Build depth frames, wait, and check that all are unchanged. */
static RSI_NOINLINE void stand(struct rouse_sem *bell, unsigned depth, uint64_t *random)
{
    uint64_t frame[FRAME_BYTES / sizeof(uint64_t)];
    uint64_t first = rsi_random_next(random), expected = first;
    for (size_t i = 0; i < LENGTH(frame); i++)
        rsi_store_relaxed(&frame[i], rsi_random_next(&expected));
    if (depth) {
        stand(bell, depth - 1, random);
    } else {
        dive((unsigned)(rsi_random_next(random) % 16));
        wait_somehow(bell, random);
    }
    expected = first;
    for (size_t i = 0; i < LENGTH(frame); i++)
        CHECK(rsi_load_relaxed(&frame[i]) == rsi_random_next(&expected));
}

static void *live(void *arg)
{
    struct rouse_sem *bell = arg;
    uint64_t random = seed_of_run() + (uintptr_t)bell;
    for (int i = 0; i < 200 && !rsi_load_relaxed(&stop); i++)
        stand(bell, (unsigned)(rsi_random_next(&random) % 24), &random);
    return NULL;
}

static void *ring(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    while (!rsi_load_acquire(&stop)) {
        rouse_sem_post(&bells[rsi_random_next(&random) % THREADS]);
        if (rsi_random_next(&random) % 8 == 0)
            rouse_sleep(rsi_random_next(&random) % (20 * US));
    }
    return NULL;
}

static void *trim(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    while (!rsi_load_acquire(&stop)) {
        rsi_fetch_add_relaxed(&trimmed_bytes, rouse_stacks_trim(rsi_random_next(&random) % 2));
        if (rsi_random_next(&random) % 16 == 0)
            rouse_sleep(rsi_random_next(&random) % (50 * US));
    }
    return NULL;
}

static void storm(uint64_t *random)
{
    struct rouse_thread *threads[THREADS], *others[4];
    rsi_store_relaxed(&stop, 0u);
    for (size_t i = 0; i < THREADS; i++)
        rouse_sem_init(&bells[i], 0, NULL);
    others[0] = start(ROUSE_KIND_KERNEL, trim, (void *)(uintptr_t)rsi_random_next(random));
    others[1] = start(ROUSE_KIND_USER, trim, (void *)(uintptr_t)rsi_random_next(random));
    others[2] = start(ROUSE_KIND_KERNEL, ring, (void *)(uintptr_t)rsi_random_next(random));
    others[3] = start(ROUSE_KIND_USER, ring, (void *)(uintptr_t)rsi_random_next(random));
    for (size_t i = 0; i < THREADS; i++)
        threads[i] = start(ROUSE_KIND_USER, live, &bells[i]);
    for (size_t i = 0; i < THREADS; i++)
        join(threads[i]);
    rsi_store_release(&stop, 1u);
    for (size_t i = 0; i < LENGTH(others); i++)
        join(others[i]);
}

static void no_memory_in_use_is_lost(void **state)
{
    (void)state;
    uint64_t random = seed_of_run();
    unsigned rounds = rounds_of(12);
    for (unsigned i = 0; i < rounds; i++)
        storm(&random);
    printf("%lu waits, %lu KiB given back\n", (unsigned long)waits_done,
           (unsigned long)(trimmed_bytes / 1024));
    CHECK(trimmed_bytes != 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(no_memory_in_use_is_lost) };
    static const struct program program = { 150, true, tests, LENGTH(tests), NULL, 0 };
    if (argc == 1)
        stress_set_up();
    return program_run(&program, argc, argv);
}
