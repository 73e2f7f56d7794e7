/* SPDX-License-Identifier: MIT */
/*
 * fork_test.c - a child made by fork has one thread, and the runtime works in it, even if the fork
 * came while the parent's other threads were in the middle of any operation.
 */
#include "core_test.h"

#include <pthread.h>
#include <rouse/io.h>

static unsigned key;

static void *give_back(void *arg)
{
    return arg;
}

static void *write_a_byte(void *arg)
{
    CHECK_EQUAL(rouse_sleep(US), 0);
    CHECK_EQUAL(rouse_write(*(int *)arg, "x", 1), 1);
    return NULL;
}

static void *sleep_a_little(void *unused)
{
    CHECK_EQUAL(rouse_sleep(100 * US), 0);
    return unused;
}

static void *post(void *sem)
{
    rouse_sem_post(sem);
    return NULL;
}

/* Use one part of the runtime. The part that a child uses first makes a difference. */

static void use_sleep(void)
{
    CHECK_EQUAL(rouse_sleep(200 * US), 0);
}

static void use_blocking(void)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_blocking(give_back, &result, &result), 0);
    CHECK(result == &result);
}

static void use_user_threads(void)
{
    struct rouse_thread *threads[20];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, i % 2 ? sleep_a_little : give_back, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    CHECK_EQUAL(rsi_worker_count(), rouse_worker_count());
}

static void use_kernel_threads(void)
{
    join(start(ROUSE_KIND_KERNEL, sleep_a_little, NULL));
}

static void use_keys(void)
{
    unsigned other;
    CHECK(rouse_key_get(key) == &key);
    CHECK_EQUAL(rouse_key_create(&other, NULL), 0);
    CHECK_EQUAL(rouse_key_set(other, &other), 0);
    CHECK(rouse_key_get(other) == &other);
    CHECK_EQUAL(rouse_key_delete(other), 0);
}

static void use_io(void)
{
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    struct rouse_thread *t = start(ROUSE_KIND_USER, write_a_byte, &ends[1]);
    CHECK_EQUAL(rouse_read(ends[0], &byte, 1), 1);
    join(t);
    CHECK_EQUAL(rouse_close(ends[0]), 0);
    CHECK_EQUAL(rouse_close(ends[1]), 0);
}

static void use_sync(void)
{
    struct rouse_sem sem = ROUSE_SEM_INIT(0);
    struct rouse_thread *t = start(ROUSE_KIND_USER, post, &sem);
    CHECK_EQUAL(rouse_sem_wait(&sem), 0);
    join(t);
}

static void use_cancel(void)
{
    CHECK_EQUAL(rouse_thread_cancel(rouse_thread_self()), 0);
    CHECK_EQUAL(rouse_sleep(SECOND), -ECANCELED);
}

static void (*const uses[])(void) = { use_sleep, use_blocking, use_user_threads, use_kernel_threads,
                                      use_keys,  use_io,       use_sync,         use_cancel };

/* Use all parts, beginning with part first. */
static void use_everything(size_t first)
{
    for (size_t i = 0; i < LENGTH(uses); i++)
        uses[(first + i) % LENGTH(uses)]();
}

static void in_child(size_t first)
{
    watchdog_start(20);
    use_everything(first);
    if (first == 0) { /* the child forks too */
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            watchdog_start(20);
            use_everything(1);
            _exit(0);
        }
        CHECK(child_passed(pid));
    }
    fflush(NULL);
    _exit(0);
}

static void *fork_once_for_each_use(void *unused)
{
    struct rouse_thread *self = rouse_thread_self();
    uint64_t id = rouse_thread_id(self);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    for (size_t first = 0; first < LENGTH(uses); first++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK(rouse_thread_self() == self && rouse_thread_id(self) == id);
            in_child(first);
        }
        CHECK(child_passed(pid));
        use_sleep();
    }
    use_everything(0);
    return unused;
}

static void a_fork_from_every_kind_of_thread(void **state)
{
    (void)state;
    in_every_kind(fork_once_for_each_use, NULL);
    join(start(ROUSE_KIND_USER, fork_once_for_each_use, NULL));
}

static void *fork_on_own_worker(void *arg)
{
    bool *seen = arg;
    seen[rouse_worker_index()] = true;
    return fork_once_for_each_use(NULL);
}

static void a_fork_from_any_worker(void **state)
{
    (void)state;
    bool seen[16] = { false };
    struct rouse_thread *threads[4];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, fork_on_own_worker, seen);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static void *fork_unknown(void *unused)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK_EQUAL(rouse_key_set(key, &key), 0);
        in_child(0);
    }
    CHECK(child_passed(pid));
    return unused;
}

static void a_fork_from_a_thread_that_rouse_does_not_know(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        pthread_t pthread;
        CHECK(pthread_create(&pthread, NULL, fork_unknown, NULL) == 0);
        CHECK(pthread_join(pthread, NULL) == 0);
    }
}

/*
 * Other threads sleep, wait and own joinable threads when the fork happens. None of them exists in
 * the child.
 */
static uint32_t stop, rounds;

static void *be_busy(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    void (*const safe[])(void) = { use_sleep,          use_blocking, use_user_threads,
                                   use_kernel_threads, use_io,       use_sync };
    while (!rsi_load_relaxed(&stop)) {
        safe[rsi_random_next(&random) % LENGTH(safe)]();
        unsigned other;
        if (rouse_key_create(&other, NULL) == 0)
            rouse_key_delete(other);
        rsi_fetch_add_relaxed(&rounds, 1u);
    }
    return NULL;
}

static void *fork_many_times(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    for (int i = 0; i < 60 / SLOWER; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            in_child(1 + rsi_random_next(&random) % (LENGTH(uses) - 1));
        CHECK(child_passed(pid));
        rouse_sleep(rsi_random_next(&random) % (200 * US));
    }
    return NULL;
}

static void forks_while_other_threads_run_every_operation(void **state)
{
    (void)state;
    struct rouse_thread *busy[6];
    uint64_t random = seed_of_run();
    for (size_t i = 0; i < LENGTH(busy); i++)
        busy[i] = start(i % 3 ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL, be_busy,
                        (void *)(uintptr_t)rsi_random_next(&random));
    fork_many_times((void *)(uintptr_t)rsi_random_next(&random));
    join(start(ROUSE_KIND_USER, fork_many_times, (void *)(uintptr_t)rsi_random_next(&random)));
    rsi_store_relaxed(&stop, 1u);
    for (size_t i = 0; i < LENGTH(busy); i++)
        join(busy[i]);
    CHECK(rounds > 0);
}

static void *return_in_child(void *arg)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        watchdog_start(20);
        if (arg)
            join(start(ROUSE_KIND_USER, sleep_a_little, NULL));
        return NULL; /* the child's only thread ends, and the child with it */
    }
    CHECK(child_passed(pid));
    return NULL;
}

/*
 * Runs as a separate program: the leak checker cannot see what the test's stack frame holds in the
 * child.
 */
static void return_from_forked_threads(void)
{
    join(start(ROUSE_KIND_USER, return_in_child, NULL));
    join(start(ROUSE_KIND_USER, return_in_child, &stop));
    join(start(ROUSE_KIND_KERNEL, return_in_child, NULL));
    join(start(ROUSE_KIND_KERNEL, return_in_child, &stop));
}

static void a_child_ends_with_its_thread(void **state)
{
    (void)state;
    scenario_exits("return_from_forked_threads", NULL, 0);
}

static struct rouse_sem shared_sem = ROUSE_SEM_INIT(0);
static struct rouse_mutex shared_mutex = ROUSE_MUTEX_INIT;
static uint32_t passed;

static void *wait_for_both(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&shared_sem), 0);
    rouse_mutex_lock(&shared_mutex);
    rsi_fetch_add_relaxed(&passed, 1u);
    rouse_mutex_unlock(&shared_mutex);
    return unused;
}

static void *wake_what_is_not_there(void *unused)
{
    rouse_mutex_lock(&shared_mutex);
    rouse_sem_post(&shared_sem);
    rouse_sem_post(&shared_sem);
    while (!rsi_load_relaxed((uintptr_t *)&shared_mutex.waiters.first))
        rouse_thread_yield();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        watchdog_start(20);
        rouse_mutex_unlock(&shared_mutex);
        use_user_threads();
        rouse_mutex_lock(&shared_mutex);
        rouse_mutex_unlock(&shared_mutex);
        CHECK_EQUAL(rouse_sem_post(&shared_sem), 0);
        use_user_threads();
        CHECK_EQUAL(rouse_sem_wait(&shared_sem), 0); /* any thread may take the unit */
        CHECK_EQUAL(passed, 0);
        _exit(0);
    }
    CHECK(child_passed(pid));
    rouse_mutex_unlock(&shared_mutex);
    rouse_sem_post(&shared_sem);
    rouse_sem_post(&shared_sem);
    return unused;
}

static void the_waiters_of_the_parent_do_not_run_in_the_child(void **state)
{
    (void)state;
    struct rouse_thread *threads[4];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(i % 2 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, wait_for_both, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        UNTIL(waits(threads[i]));
    wake_what_is_not_there(NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static void fork_before_the_first_call(void)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    CHECK_EQUAL(rouse_key_create(&key, NULL), 0);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    if (pid == 0)
        in_child(0);
    use_everything(0);
    CHECK(child_passed(pid));
}

static void a_fork_before_the_runtime_starts(void **state)
{
    (void)state;
    scenario_exits("fork_before_the_first_call", NULL, 0);
}

static int set_up(void **state)
{
    (void)state;
    return rouse_key_create(&key, NULL) || rouse_key_set(key, &key);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "fork_before_the_first_call", fork_before_the_first_call },
        { "return_from_forked_threads", return_from_forked_threads },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_child_ends_with_its_thread, set_up),
        cmocka_unit_test(a_fork_from_every_kind_of_thread),
        cmocka_unit_test(a_fork_from_any_worker),
        cmocka_unit_test(a_fork_from_a_thread_that_rouse_does_not_know),
        cmocka_unit_test(forks_while_other_threads_run_every_operation),
        cmocka_unit_test(the_waiters_of_the_parent_do_not_run_in_the_child),
        cmocka_unit_test(a_fork_before_the_runtime_starts),
    };
#ifdef RSI_TSAN
    printf("not run: the thread sanitizer has no threads in a child of a program with threads\n");
    return NOT_RUN;
#endif
#ifdef RSI_ASAN
    printf("not run: the locks of the address sanitizer stay in a child as the fork found them\n");
    return NOT_RUN;
#endif
    if (is_emulated()) {
        puts("not run: the emulator's own locks stay in a child as the fork found them");
        return NOT_RUN;
    }
    static const struct program program = { 100,           true,      tests,
                                            LENGTH(tests), scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
