/* SPDX-License-Identifier: MIT */
/* base_test.c - what guards ask of the system. */
#include "unit/core/core_test.h"

#include <pthread.h>

/* In libc's place, as the library of `rouse run` has it. */
static uint32_t yield_count;

int sched_yield(void)
{
    rsi_fetch_add_relaxed(&yield_count, 1);
    return 0;
}

static void *lock_once(void *guard)
{
    rsi_guard_lock(guard);
    rsi_guard_unlock(guard);
    return NULL;
}

/* Much longer than a guard spins before it yields. */
static void await_spinning(pthread_t thread)
{
    clockid_t clock;
    struct timespec spent = { 0 };
    CHECK(pthread_getcpuclockid(thread, &clock) == 0);
    while (spent.tv_sec == 0 && spent.tv_nsec < 50 * (long)MS) {
        rsi_syscall0(SYS_sched_yield);
        CHECK(clock_gettime(clock, &spent) == 0);
    }
}

static void a_guard_s_yields_are_not_the_program_s(void **state)
{
    (void)state;
    uint32_t guard = 0;
    pthread_t thread;
    rsi_guard_lock(&guard);
    CHECK(pthread_create(&thread, NULL, lock_once, &guard) == 0);
    await_spinning(thread);
    rsi_guard_unlock(&guard);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQUAL(rsi_load_relaxed(&yield_count), 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guard_s_yields_are_not_the_program_s),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
