/* SPDX-License-Identifier: MIT */
/*
 * tls_test.c - a thread that resumes on another worker does not use the first worker's thread-local
 * variables.
 *
 * A compiler may keep the address of a thread-local variable across a call, for it does not know
 * that some calls return on another kernel thread. Whether it does depends on the compiler, the
 * optimisation level and link-time optimisation, so this test must run in each of these builds. The
 * kernel's thread number shows where the code runs.
 */
#include "unit/core/core_test.h"

struct hog {
    uint32_t may_end;
};

/* Keep the worker on which it is started. */
static void *compute(void *arg)
{
    struct hog *hog = arg;
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (!rsi_load_acquire(&hog->may_end))
        CHECK(rouse_now_ns() < end);
    return NULL;
}

/*
 * Every answer of the runtime about the current thread must match this kernel thread. Inline, so
 * that the compiler sees one function with many calls that switch.
 */
#define HERE() \
    do { \
        struct rsi_exec *here = rsi_exec_self(); \
        CHECK(here->current == self); \
        CHECK(rouse_thread_self() == self); \
        CHECK_EQUAL(here->worker->tid, rsi_gettid()); \
        CHECK_EQUAL(rouse_worker_index(), here->worker->index); \
    } while (0)

/*
 * Start a computation queued behind this thread. While it occupies this worker, another worker
 * takes this thread.
 */
#define LEAVE_BY(call) \
    do { \
        struct hog hog = { 0 }; \
        struct rsi_worker *before = rsi_exec_self()->worker; \
        struct rouse_thread *t = start(ROUSE_KIND_USER, compute, &hog); \
        HERE(); \
        call; \
        HERE(); \
        moves += rsi_exec_self()->worker != before; \
        rsi_store_release(&hog.may_end, 1u); \
        HERE(); \
        CHECK_EQUAL(rouse_thread_join(t, NULL), 0); \
        HERE(); \
    } while (0)

static struct rouse_sem bell = ROUSE_SEM_INIT(0);
static struct rouse_mutex mutex = ROUSE_MUTEX_INIT;

static void *ring(void *unused)
{
    rouse_sleep(200 * US);
    rouse_sem_post(&bell);
    return unused;
}

static void *unlock_late(void *locked)
{
    rouse_mutex_lock(&mutex);
    rsi_store_release((uint32_t *)locked, 1u);
    rouse_sleep(200 * US);
    rouse_mutex_unlock(&mutex);
    return NULL;
}

static void *nothing(void *unused)
{
    return unused;
}

static void *move_about(void *arg)
{
    struct rouse_thread *self = rouse_thread_self();
    unsigned moves = 0;
    for (int i = 0; i < 20; i++) {
        LEAVE_BY(rouse_thread_yield());
        LEAVE_BY(CHECK_EQUAL(rouse_sleep(100 * US), 0));
        LEAVE_BY(CHECK_EQUAL(rouse_blocking(nothing, NULL, NULL), 0));

        struct rouse_thread *ringer = start(ROUSE_KIND_KERNEL, ring, NULL);
        LEAVE_BY(CHECK_EQUAL(rouse_sem_wait(&bell), 0));
        LEAVE_BY(CHECK_EQUAL(rouse_thread_join(ringer, NULL), 0));

        uint32_t locked = 0;
        struct rouse_thread *holder = start(ROUSE_KIND_KERNEL, unlock_late, &locked);
        UNTIL(rsi_load_acquire(&locked));
        LEAVE_BY(rouse_mutex_lock(&mutex));
        rouse_mutex_unlock(&mutex);
        HERE();
        join(holder);
    }
    *(unsigned *)arg = moves;
    return NULL;
}

static void a_thread_that_moves_knows_where_it_is(void **state)
{
    (void)state;
    unsigned moves = 0;
    if (rouse_worker_count() == 1) /* it would wait for its own worker */
        return;
    join(start(ROUSE_KIND_USER, move_about, &moves));
    printf("%u moves\n", moves);
    CHECK(moves >= 20);
}

/* Many threads at once, in no fixed order. */
static uint32_t total_moves;

static void *wander(void *arg)
{
    struct rouse_thread *self = rouse_thread_self();
    uint64_t random = (uintptr_t)arg | 1;
    unsigned moves = 0;
    for (int i = 0; i < 500; i++) {
        struct rsi_worker *before = rsi_exec_self()->worker;
        switch (rsi_random_next(&random) % 4) {
        case 0: rouse_sleep(rsi_random_next(&random) % (50 * US)); break;
        case 1: join(start(ROUSE_KIND_USER, nothing, NULL)); break;
        default: rouse_thread_yield(); break;
        }
        HERE();
        moves += rsi_exec_self()->worker != before;
    }
    rsi_fetch_add_relaxed(&total_moves, moves);
    return NULL;
}

static void many_threads_that_move_at_random_know_where_they_are(void **state)
{
    (void)state;
    struct rouse_thread *threads[32];
    uint64_t random = seed_of_run();
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, wander, (void *)(uintptr_t)rsi_random_next(&random));
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    printf("%u moves\n", total_moves);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_moves_knows_where_it_is),
        cmocka_unit_test(many_threads_that_move_at_random_know_where_they_are),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
