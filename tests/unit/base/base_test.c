/* SPDX-License-Identifier: MIT */
/* base_test.c - the system calls that a guard (spin lock) makes. */
#include "unit/core/core_test.h"

#include <pthread.h>

/* Replaces libc's function, as the interposer of `rouse run` does. */
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

static void a_guard_yields_by_system_call_and_not_through_libc(void **state)
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
        cmocka_unit_test(a_guard_yields_by_system_call_and_not_through_libc),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
