/* SPDX-License-Identifier: MIT */
/*
 * alloc_fault.c - makes the nth allocation from the C library fail, for every n. A value that cannot be
 * stored is refused, a runtime starts with fewer workers, and nothing leaks.
 *
 * The program replaces the allocators, so that it counts only the runtime's allocations: those made
 * during its calls.
 */
#include "unit/core/core_test.h"

#if defined(RSI_ASAN) || defined(RSI_TSAN)
int main(void)
{
    puts("not run: the sanitizer has the allocators");
    return NOT_RUN;
}
#else

void *__libc_calloc(size_t count, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static uint32_t failing; /* calls until one fails, including that one. 0: none fails */
static uint32_t failed;

static bool fails(void)
{
    uint32_t left = rsi_load_relaxed(&failing);
    if (left == 0)
        return false;
    rsi_store_relaxed(&failing, left - 1);
    if (left > 1)
        return false;
    rsi_store_relaxed(&failed, 1u);
    errno = ENOMEM; /* the C library relies on it */
    return true;
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

static void fail_at(uint32_t nth)
{
    rsi_store_relaxed(&failed, 0u);
    rsi_store_relaxed(&failing, nth);
}

static unsigned key;
static uint32_t destroyed;

static void note_destroyed(void *value)
{
    CHECK(value == &key);
    rsi_fetch_add_relaxed(&destroyed, 1u);
}

static void *keep_a_value(void *unused)
{
    CHECK(rouse_key_get(key) == NULL);
    fail_at(1);
    CHECK_EQUAL(rouse_key_set(key, &key), -ENOMEM);
    CHECK(rouse_key_get(key) == NULL);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    CHECK(rouse_key_get(key) == &key);
    CHECK_EQUAL(rouse_key_set(key, NULL), 0);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    return unused;
}

static void *keep_nothing(void *unused)
{
    fail_at(1);
    CHECK_EQUAL(rouse_key_set(key, NULL), 0); /* this call needs no memory */
    CHECK(!rsi_load_relaxed(&failed));
    CHECK_EQUAL(rouse_key_set(key, &key), -ENOMEM);
    return unused;
}

static void a_value_that_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_key_create(&key, note_destroyed), 0);
    in_every_kind(keep_a_value, NULL);
    CHECK_EQUAL(destroyed, 2); /* main's thread continues */
    join(start(ROUSE_KIND_USER, keep_nothing, NULL));
    join(start(ROUSE_KIND_KERNEL, keep_nothing, NULL));
    CHECK_EQUAL(destroyed, 2);
    CHECK_EQUAL(rouse_key_delete(key), 0);
}

/*
 * The start: it goes on with fewer workers. If the first worker failed, a later call starts the
 * runtime.
 */

static void *nothing(void *unused)
{
    return unused;
}

#define WORKERS 5
#define PER_WORKER 2 /* allocations: the worker's, and the C library's for its thread */

static void start_and_fail(void)
{
    uint32_t nth = (uint32_t)number_from("NTH", 0);
    struct rouse_config config = { .workers = WORKERS };
    CHECK_EQUAL(rouse_configure(&config), 0);
    fail_at(nth);
    if (nth <= PER_WORKER) {
        struct rouse_thread *t = NULL;
        int error = rouse_thread_create(&t, NULL, nothing, NULL);
        CHECK(!t && (error == -ENOMEM || error == -EAGAIN));
        CHECK_EQUAL(rsi_worker_count(), 0);
        nth = UINT32_MAX;
    }
    for (int i = 0; i < 20; i++)
        CHECK(join(start(i % 4 ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL, nothing, &failing)) ==
              &failing);
    uint32_t workers = (nth - 1) / PER_WORKER;
    CHECK_EQUAL(rsi_worker_count(), workers < WORKERS ? workers : WORKERS);
}

static void a_runtime_starts_with_the_workers_it_can_have(void **state)
{
    (void)state;
    static char variable[32];
    for (int nth = 1; nth <= WORKERS * PER_WORKER + 5; nth++) {
        snprintf(variable, sizeof variable, "NTH=%d", nth);
        scenario_exits("start_and_fail", variable, 0);
    }
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "start_and_fail", start_and_fail },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_that_cannot_be_kept_is_refused),
        cmocka_unit_test(a_runtime_starts_with_the_workers_it_can_have),
    };
    static const struct program program = { 30,        false,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
#endif
