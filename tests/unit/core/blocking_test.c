/* SPDX-License-Identifier: MIT */
/*
 * blocking_test.c - calls that block a kernel thread run on helper threads while the worker goes
 * on.
 */
#include "core_test.h"

#include <pthread.h>

#define HELPERS_KEPT 8

static void *tell_tid(void *unused)
{
    (void)unused;
    return (void *)(intptr_t)rsi_gettid();
}

static void *call_from_here(void *unused)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_blocking(tell_tid, NULL, &result), 0);
    bool is_user = rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_USER;
    bool is_same = (intptr_t)result == rsi_gettid();
    /* The user thread may return on another worker, but never on a helper. */
    for (uint32_t i = 0; is_user && i < rsi_worker_count(); i++)
        CHECK((intptr_t)result != rsi_rt.workers[i]->tid);
    CHECK(is_user ? !is_same : is_same);
    CHECK_EQUAL(rouse_blocking(tell_tid, NULL, NULL), 0);
    return unused;
}

static void helpers_serve_user_threads_and_others_serve_themselves(void **state)
{
    (void)state;
    in_every_kind(call_from_here, NULL);
}

static int ends[2];

static void *read_in_the_kernel(void *unused)
{
    char byte = 0;
    (void)unused;
    CHECK(read(ends[0], &byte, 1) == 1);
    return (void *)(intptr_t)byte;
}

static void *wait_for_the_byte(void *unused)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_blocking(read_in_the_kernel, NULL, &result), 0);
    CHECK(result == (void *)'x');
    return unused;
}

static void *write_in_the_kernel(void *unused)
{
    for (int i = 0; i < 10; i++)
        rouse_thread_yield();
    CHECK(write(ends[1], "x", 1) == 1);
    return unused;
}

static void *read_beside_the_writer(void *unused)
{
    struct rouse_thread *readers[4], *writers[4];
    for (int i = 0; i < 4; i++)
        readers[i] = start(ROUSE_KIND_USER, wait_for_the_byte, NULL);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(rouse_sleep(MS), 0); /* give the readers time to enter the kernel */
    for (int i = 0; i < 4; i++)
        writers[i] = start(ROUSE_KIND_USER, write_in_the_kernel, NULL);
    for (int i = 0; i < 4; i++) {
        join(readers[i]);
        join(writers[i]);
    }
    return unused;
}

static void a_blocking_call_does_not_stop_its_worker(void **state)
{
    (void)state;
    CHECK(pipe(ends) == 0);
    for (int i = 0; i < 10; i++)
        join(start(ROUSE_KIND_USER, read_beside_the_writer, NULL));
    close(ends[0]);
    close(ends[1]);
}

static uint32_t calls;

static void *sleep_in_the_kernel(void *unused)
{
    usleep(1000);
    rsi_fetch_add_relaxed(&calls, 1u);
    return unused;
}

static void *make_calls(void *arg)
{
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        CHECK_EQUAL(rouse_blocking(sleep_in_the_kernel, &result, &result), 0);
        CHECK(result == &result);
    }
    return arg;
}

/* More calls at once than there can be helpers: the rest wait for their turn. */
static void any_number_of_calls_at_once(void **state)
{
    (void)state;
    struct rouse_thread *threads[600];
    rsi_store_relaxed(&calls, 0u);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, make_calls, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    CHECK_EQUAL(calls, 3 * LENGTH(threads));
    UNTIL(rsi_helper_count() <= HELPERS_KEPT);
}

static struct rouse_sem bell = ROUSE_SEM_INIT(0);
static unsigned key;

static void *ring(void *unused)
{
    rouse_sem_post(&bell);
    return unused;
}

/* A blocking call may do anything that a foreign thread may do. */
static void *use_the_runtime(void *unused)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_worker_index(), -1);
    CHECK(rouse_key_get(key) == NULL);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    struct rouse_thread *t = start(ROUSE_KIND_USER, ring, NULL);
    CHECK_EQUAL(rouse_sem_wait(&bell), 0);
    join(t);
    CHECK_EQUAL(rouse_sleep(100 * US), 0);
    CHECK_EQUAL(rouse_blocking(tell_tid, NULL, &result), 0);
    CHECK((intptr_t)result == rsi_gettid());
    CHECK_EQUAL(rouse_key_set(key, NULL), 0); /* helpers stay alive */
    return unused;
}

static void *call_the_runtime(void *unused)
{
    CHECK_EQUAL(rouse_blocking(use_the_runtime, NULL, NULL), 0);
    CHECK_EQUAL(rouse_key_set(key, NULL), 0);
    return unused;
}

static void a_blocking_call_may_use_the_runtime(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_key_create(&key, NULL), 0);
    for (int i = 0; i < 20; i++)
        join(start(ROUSE_KIND_USER, call_the_runtime, NULL));
    rouse_key_delete(key);
}

static void *look_at_the_mask(void *unused)
{
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK(sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT) && sigismember(&mask, SIGALRM));
    return unused;
}

static void *call_with_a_look_at_the_mask(void *unused)
{
    CHECK_EQUAL(rouse_blocking(look_at_the_mask, NULL, NULL), 0);
    return unused;
}

static void helpers_take_no_signals(void **state)
{
    (void)state;
    join(start(ROUSE_KIND_USER, call_with_a_look_at_the_mask, NULL));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_serve_user_threads_and_others_serve_themselves),
        cmocka_unit_test(a_blocking_call_does_not_stop_its_worker),
        cmocka_unit_test(any_number_of_calls_at_once),
        cmocka_unit_test(a_blocking_call_may_use_the_runtime),
        cmocka_unit_test(helpers_take_no_signals),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
