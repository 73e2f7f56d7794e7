/* SPDX-License-Identifier: MIT */
/*
 * thread_storm.c - threads that are created, joined, given up, joined again, detached, cancelled
 * and left by the thousand, from user, kernel and foreign threads at once.
 *
 * Each thread counts its begin and its end. At the end every created thread has done both exactly
 * once, with its own argument, and no control block is in use that was not in use before. The
 * environment sets ROUSE_SEED and ROUSE_SCALE (rounds in percent).
 */
#include "unit/core/blocks.h"
#include "unit/core/core_test.h"

#include <pthread.h>

#define SPAWNERS 8
#define BROOD 12
#define DEPTH 3

struct spawner {
    uint64_t random;
    unsigned depth;
};

static uint32_t created, begun, ended, destroyed;
static uint64_t token_sum; /* tokens given out minus tokens returned */
static uint64_t tokens;
static unsigned rounds, key;

static uint64_t draw(uint64_t *random, uint64_t below)
{
    return rsi_random_next(random) % below;
}

static void note_destroyed(void *unused)
{
    (void)unused;
    rsi_fetch_add_relaxed(&destroyed, 1u);
}

struct task {
    uint64_t random, token;
    unsigned depth;
    bool has_key;
};

static void spawn_brood(uint64_t *random, unsigned depth);

static void *live(void *arg)
{
    struct task *task = arg;
    struct task own = *task;
    free(task);
    rsi_fetch_add_relaxed(&begun, 1u);
    if (own.has_key)
        CHECK_EQUAL(rouse_key_set(key, &key), 0);
    switch (draw(&own.random, 8)) {
    case 0: rouse_thread_yield(); break;
    case 1: rouse_sleep(draw(&own.random, 30 * US)); break;
    case 2:
        if (own.depth < DEPTH)
            spawn_brood(&own.random, own.depth + 1);
        break;
    default: break;
    }
    rsi_fetch_add_relaxed(&token_sum, (uint64_t)0 - own.token);
    rsi_fetch_add_acq_rel(&ended, 1u);
    void *result = (void *)(uintptr_t)own.token;
    if (draw(&own.random, 2))
        rouse_thread_exit(result);
    return result;
}

static struct rouse_thread *spawn(uint64_t *random, unsigned depth, bool is_detached,
                                  uint64_t *token)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    static const size_t sizes[] = { 0, 0, 0, 16384, 131072 };
    struct task *task = malloc(sizeof *task);
    CHECK(task);
    *token = rsi_fetch_add_relaxed(&tokens, 1u) + 1;
    *task = (struct task){ rsi_random_next(random) | 1, *token, depth, draw(random, 4) == 0 };
    attr.kind = draw(random, 24) == 0 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER;
    attr.detached = is_detached;
    attr.name = draw(random, 2) ? "storm" : NULL;
    attr.stack_bytes = sizes[draw(random, LENGTH(sizes))];
    rsi_fetch_add_relaxed(&token_sum, *token);
    int error;
    while ((error = rouse_thread_create(is_detached ? NULL : &t, &attr, live, task)) == -EAGAIN)
        usleep(1000); /* too many kernel threads in this system */
    CHECK_EQUAL(error, 0);
    rsi_fetch_add_relaxed(&created, 1u);
    return t;
}

/* Finish with t in one of the possible ways. */
static void be_done_with(struct rouse_thread *t, uint64_t token, uint64_t *random)
{
    void *result = NULL;
    int error = 0;
    switch (draw(random, 5)) {
    case 0: CHECK_EQUAL(rouse_thread_detach(t), 0); return;
    case 1:
        while ((error = rouse_thread_join_try(t, &result)) == -EBUSY)
            rouse_thread_yield();
        break;
    case 2:
        do
            error = rouse_thread_join_until(t, &result, rouse_now_ns() + draw(random, 20 * US));
        while (error == -ETIMEDOUT);
        break;
    case 3:
        error = rouse_thread_cancel(t);
        CHECK(error == 0 || error == -ESRCH);
        error = rouse_thread_join(t, &result);
        break;
    default: error = rouse_thread_join(t, &result); break;
    }
    /* this thread was cancelled: the thread that joins it requested that */
    if (error == -ECANCELED)
        while ((error = rouse_thread_join(t, &result)) == -ECANCELED)
            ;
    CHECK_EQUAL(error, 0);
    CHECK_EQUAL(result, token);
}

static void spawn_brood(uint64_t *random, unsigned depth)
{
    struct rouse_thread *brood[BROOD];
    uint64_t brood_tokens[BROOD], count = 1 + draw(random, depth ? 3 : BROOD);
    for (uint64_t i = 0; i < count; i++)
        brood[i] = spawn(random, depth, draw(random, 6) == 0, &brood_tokens[i]);
    for (uint64_t i = 0; i < count; i++)
        if (brood[i])
            be_done_with(brood[i], brood_tokens[i], random);
}

static void *spawn_many(void *arg)
{
    struct spawner *spawner = arg;
    for (unsigned i = 0; i < rounds; i++)
        spawn_brood(&spawner->random, 0);
    return NULL;
}

static void storm(void)
{
    static struct spawner spawners[SPAWNERS];
    struct rouse_thread *threads[SPAWNERS];
    pthread_t pthreads[SPAWNERS];
    uint64_t random = seed_of_run();
    for (unsigned i = 0; i < SPAWNERS; i++) {
        spawners[i].random = rsi_random_next(&random) | 1;
        if (i % 4 == 3)
            CHECK(pthread_create(&pthreads[i], NULL, spawn_many, &spawners[i]) == 0);
        else
            threads[i] =
                start(i % 4 == 2 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, spawn_many, &spawners[i]);
    }
    for (unsigned i = 0; i < SPAWNERS; i++)
        if (i % 4 == 3)
            CHECK(pthread_join(pthreads[i], NULL) == 0);
        else
            join(threads[i]);
}

static void every_thread_runs_once_and_leaves_nothing(void **state)
{
    (void)state;
    CHECK(rouse_thread_self()); /* main's own control block */
    CHECK_EQUAL(rouse_key_create(&key, note_destroyed), 0);
    unsigned before = blocks_in_use();
    rounds = rounds_of(400);
    storm();
    /* Detached threads may still be running. */
    UNTIL(blocks_in_use() == before && rsi_load_acquire(&ended) == rsi_load_relaxed(&created));
    uint32_t count = rsi_load_relaxed(&created);
    printf("%u threads\n", count);
    CHECK_EQUAL(rsi_load_relaxed(&begun), count);
    CHECK_EQUAL(rsi_load_relaxed(&token_sum), 0);
    uint32_t with_key = rsi_load_relaxed(&destroyed);
    CHECK(with_key > count / 16 && with_key < count / 2);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_and_leaves_nothing),
    };
    static const struct program program = { 150, true, tests, LENGTH(tests), NULL, 0 };
    if (argc == 1)
        stress_set_up();
    return program_run(&program, argc, argv);
}
