/* SPDX-License-Identifier: MIT */
/*
 * setjmp_test.c - setjmp and longjmp within one thread, over blocking calls and changes of the
 * worker.
 */
#include "unit/core/core_test.h"

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

struct jumper {
    jmp_buf back;
    unsigned rounds;
    uint64_t random;
};

static void block_somehow(uint64_t *random)
{
    switch (rsi_random_next(random) % 3) {
    case 0: rouse_thread_yield(); break;
    case 1: CHECK_EQUAL(rouse_sleep(rsi_random_next(random) % (50 * US)), 0); break;
    default: break;
    }
}

static void jump(struct jumper *jumper)
{
    longjmp(jumper->back, (int)jumper->rounds);
}

/* Keeps the compiler from knowing that the call does not return. */
static void (*volatile jump_back)(struct jumper *) = jump;

static __attribute__((noinline)) int jump_from_below(struct jumper *jumper, int depth)
{
    block_somehow(&jumper->random);
    if (depth == 0)
        jump_back(jumper);
    return depth == 0 ? 0 : jump_from_below(jumper, depth - 1) + 1;
}

static void *jump_about(void *arg)
{
    struct jumper jumper = { .rounds = 0, .random = (uintptr_t)arg | 1 };
    struct rouse_thread *self = rouse_thread_self();
    volatile unsigned landings = 0;
    int came = setjmp(jumper.back);
    CHECK_EQUAL(came, jumper.rounds);
    CHECK_EQUAL(landings, jumper.rounds);
    CHECK(rouse_thread_self() == self);
    block_somehow(&jumper.random);
    if (jumper.rounds < 200) {
        jumper.rounds++;
        landings = landings + 1;
        jump_from_below(&jumper, (int)(rsi_random_next(&jumper.random) % 20));
        CHECK(false);
    }
    return NULL;
}

static void jumps_over_blocking_calls(void **state)
{
    (void)state;
    struct rouse_thread *threads[40];
    uint64_t random = seed_of_run();
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] =
            start(kinds[i % 8 == 0], jump_about, (void *)(uintptr_t)rsi_random_next(&random));
    jump_about((void *)(uintptr_t)random);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static void *jump_with_mask(void *unused)
{
    sigjmp_buf back;
    sigset_t set, mask;
    volatile int landings = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (sigsetjmp(back, 1) == 0) {
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        landings = landings + 1;
        siglongjmp(back, 1);
    }
    CHECK_EQUAL(landings, 1);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGUSR1));
    return unused;
}

static void a_jump_restores_the_mask(void **state)
{
    (void)state;
    in_every_kind(jump_with_mask, NULL);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(jumps_over_blocking_calls),
        cmocka_unit_test(a_jump_restores_the_mask),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
