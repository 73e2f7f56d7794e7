/* SPDX-License-Identifier: MIT */
/* runtime_test.c - how the runtime starts, which settings it accepts, and how programs end. */
#include "core_test.h"

#include <pthread.h>
#include <sched.h>

static void *give_back(void *arg)
{
    return arg;
}

/* Each of these may be a program's first call. */

static void first_create(void)
{
    CHECK(join(start(ROUSE_KIND_USER, give_back, &scenario_status)) == &scenario_status);
}

static void first_create_kernel(void)
{
    CHECK(join(start(ROUSE_KIND_KERNEL, give_back, &scenario_status)) == &scenario_status);
}

static void first_self(void)
{
    CHECK(rouse_thread_self() != NULL);
    CHECK(rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_KERNEL);
    first_create();
}

static void first_yield(void)
{
    rouse_thread_yield();
    first_create();
}

static void first_sleep(void)
{
    CHECK_EQUAL(rouse_sleep(1000), 0);
    first_create();
}

static void first_key(void)
{
    unsigned key;
    CHECK_EQUAL(rouse_key_create(&key, NULL), 0);
    CHECK_EQUAL(rouse_key_set(key, &key), 0);
    CHECK(rouse_key_get(key) == &key);
    first_create();
}

static void first_key_get(void)
{
    CHECK(rouse_key_get(0) == NULL);
}

static void first_blocking(void)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_blocking(give_back, &result, &result), 0);
    CHECK(result == &result);
    first_create();
}

static void first_pending(void)
{
    CHECK(!rouse_thread_cancel_pending());
}

static void first_index(void)
{
    CHECK_EQUAL(rouse_worker_index(), -1);
    CHECK(rouse_worker_count() > 0);
    first_create();
}

static void first_sem(void)
{
    static struct rouse_sem sem = ROUSE_SEM_INIT(0);
    CHECK_EQUAL(rouse_sem_wait_until(&sem, rouse_now_ns() + 1000), -ETIMEDOUT);
}

static void first_record(void)
{
    struct rouse_wait_record record;
    rouse_obs_last_wait(&record);
    CHECK_EQUAL(record.kind, ROUSE_WAIT_NONE);
}

static void any_call_may_be_the_first(void **state)
{
    (void)state;
    static const char *const names[] = {
        "first_create",  "first_create_kernel", "first_self",    "first_yield",
        "first_sleep",   "first_key",           "first_key_get", "first_blocking",
        "first_pending", "first_index",         "first_sem",     "first_record",
    };
    for (size_t i = 0; i < LENGTH(names); i++)
        scenario_exits(names[i], NULL, 0);
}

/* Many foreign threads start the runtime at once. */
static pthread_barrier_t starting_line;

static void *start_at_once(void *arg)
{
    pthread_barrier_wait(&starting_line);
    first_create();
    return arg;
}

static void started_by_many(void)
{
    pthread_t threads[8];
    pthread_barrier_init(&starting_line, NULL, LENGTH(threads));
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, start_at_once, NULL) == 0);
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void many_first_calls_at_once_start_one_runtime(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        scenario_exits("started_by_many", "ROUSE_WORKERS=3", 0);
}

/* How programs end. */

static void say_goodbye(void)
{
    static const char text[] = "goodbye\n";
    ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
    (void)written;
}

static void *work_for_ever(void *unused)
{
    for (;;)
        rouse_thread_yield();
    return unused;
}

static void *wait_for_ever(void *unused)
{
    rouse_sleep(ROUSE_FOREVER);
    return unused;
}

static void surround_main(void)
{
    atexit(say_goodbye);
    for (int i = 0; i < 10; i++) {
        enum rouse_kind kind = i % 2 ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
        start(kind, work_for_ever, NULL);
        start(kind, wait_for_ever, NULL);
    }
}

static void main_returns(void)
{
    surround_main();
    scenario_status = 7;
}

static void *exit_from_thread(void *unused)
{
    exit(8);
    return unused;
}

static void a_user_thread_exits(void)
{
    surround_main();
    start(ROUSE_KIND_USER, exit_from_thread, NULL);
    rouse_sleep(ROUSE_FOREVER);
}

static void *exit_when_main_is_gone(void *arg)
{
    struct rouse_thread *t = arg;
    UNTIL(rsi_load_acquire(&t->waiter.life) == RSI_LIFE_FREE);
    exit(9);
    return NULL;
}

static void main_leaves_by_pthread_exit(void)
{
    surround_main();
    start(ROUSE_KIND_USER, exit_when_main_is_gone, rouse_thread_self());
    pthread_exit(NULL);
}

static void main_leaves_by_thread_exit(void)
{
    surround_main();
    start(ROUSE_KIND_USER, exit_when_main_is_gone, rouse_thread_self());
    rouse_thread_exit(NULL);
}

static void the_program_ends_as_posix_says(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int status;
    } ends[] = {
        { "main_returns", 7 },
        { "a_user_thread_exits", 8 },
        { "main_leaves_by_pthread_exit", 9 },
        { "main_leaves_by_thread_exit", 9 },
    };
    static struct outcome outcome;
    for (size_t i = 0; i < LENGTH(ends); i++) {
        scenario_run(ends[i].name, NULL, &outcome);
        if (is_emulated() && strstr(outcome.output, "tcg/cpu-exec.c")) {
            printf("not run: the emulator fails in %s\n", ends[i].name);
            continue;
        }
        bool is_right = WIFEXITED(outcome.status) &&
                        WEXITSTATUS(outcome.status) == ends[i].status &&
                        strcmp(outcome.output, "goodbye\n") == 0;
        if (!is_right)
            scenario_show(ends[i].name, &outcome);
        CHECK(is_right);
    }
}

static void *sleep_a_while(void *unused)
{
    CHECK_EQUAL(rouse_sleep(20 * MS), 0);
    say_goodbye();
    return unused;
}

static void main_leaves_the_rest_to_user_threads(void)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.detached = true;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(rouse_thread_create(NULL, &attr, sleep_a_while, NULL), 0);
    rouse_thread_exit(NULL);
}

static void main_leaves_the_rest_to_kernel_threads(void)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.detached = true;
    attr.kind = ROUSE_KIND_KERNEL;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(rouse_thread_create(NULL, &attr, sleep_a_while, NULL), 0);
    rouse_thread_exit(NULL);
}

static void *sleep_in_a_pthread(void *unused)
{
    usleep(20000);
    say_goodbye();
    return unused;
}

static void main_leaves_the_rest_to_others(void)
{
    pthread_t threads[3];
    first_create();
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, sleep_in_a_pthread, NULL) == 0);
    pthread_exit(NULL);
}

static void the_program_ends_with_its_last_thread(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    puts("not run: the thread sanitizer has a kernel thread of its own");
    return;
#endif
    static const char *const names[] = { "main_leaves_the_rest_to_user_threads",
                                         "main_leaves_the_rest_to_kernel_threads",
                                         "main_leaves_the_rest_to_others" };
    static struct outcome outcome;
    for (size_t i = 0; i < LENGTH(names) && kernel_threads_are_told(); i++) {
        scenario_run(names[i], NULL, &outcome);
        bool is_right = outcome.status == 0 &&
                        strcmp(outcome.output, "goodbye\ngoodbye\ngoodbye\n") == 0;
        if (!is_right)
            scenario_show(names[i], &outcome);
        CHECK(is_right);
    }
}

/* Kernel threads that end although the program may not end them. */

static void *end_by_pthread_exit(void *unused)
{
    pthread_exit(unused);
}

static void *end_by_thread_exit(void *unused)
{
    rouse_thread_exit(unused);
}

static void *end_by_cancellation(void *unused)
{
    pthread_cancel(pthread_self());
    pthread_testcancel();
    return unused;
}

static void *end_a_helper_by_pthread_exit(void *unused)
{
    rouse_blocking(end_by_pthread_exit, unused, NULL);
    return unused;
}

static void *end_a_helper_by_thread_exit(void *unused)
{
    rouse_blocking(end_by_thread_exit, unused, NULL);
    return unused;
}

static void user_thread_leaves_by_pthread_exit(void)
{
    join(start(ROUSE_KIND_USER, end_by_pthread_exit, NULL));
}

static void user_thread_cancels_its_pthread(void)
{
    join(start(ROUSE_KIND_USER, end_by_cancellation, NULL));
}

static void kernel_thread_leaves_by_pthread_exit(void)
{
    join(start(ROUSE_KIND_KERNEL, end_by_pthread_exit, NULL));
}

static void helper_leaves_by_pthread_exit(void)
{
    join(start(ROUSE_KIND_USER, end_a_helper_by_pthread_exit, NULL));
}

static void helper_leaves_by_thread_exit(void)
{
    join(start(ROUSE_KIND_USER, end_a_helper_by_thread_exit, NULL));
}

static void leave_as_one_may(void)
{
    join(start(ROUSE_KIND_KERNEL, end_by_thread_exit, NULL));
    join(start(ROUSE_KIND_USER, end_by_thread_exit, NULL));
    first_blocking();
}

static void pthread_exit_on_a_worker_is_reported(void **state)
{
    (void)state;
    scenario_dies("user_thread_leaves_by_pthread_exit", NULL, SIGABRT, "ended a user thread");
    scenario_dies("user_thread_cancels_its_pthread", NULL, SIGABRT, "ended a user thread");
    scenario_dies("kernel_thread_leaves_by_pthread_exit", NULL, SIGABRT, "of kind kernel");
    scenario_dies("helper_leaves_by_pthread_exit", NULL, SIGABRT, "rouse_blocking");
    scenario_dies("helper_leaves_by_thread_exit", NULL, SIGABRT, "rouse_blocking");
    scenario_exits("leave_as_one_may", NULL, 0);
}

/* Settings. */

static void has_7_workers(void)
{
    CHECK_EQUAL(rouse_worker_count(), 7);
    first_create();
    CHECK_EQUAL(rouse_worker_count(), 7);
    CHECK_EQUAL(rsi_worker_count(), 7);
}

static void configure_7(void)
{
    struct rouse_config config = { .workers = 7 };
    CHECK_EQUAL(rouse_configure(&config), 0);
    has_7_workers();
    CHECK_EQUAL(rouse_configure(&config), -EBUSY);
}

static void configure_again(void)
{
    struct rouse_config config = { .workers = 3 };
    CHECK_EQUAL(rouse_configure(&config), 0);
    CHECK_EQUAL(rouse_worker_count(), 3);
    config.workers = RSI_WORKERS_MAX + 1;
    CHECK_EQUAL(rouse_configure(&config), -EINVAL);
    CHECK_EQUAL(rouse_configure(NULL), -EINVAL);
    CHECK_EQUAL(rouse_worker_count(), 3);
    config.workers = 0; /* back to the value of the environment */
    CHECK_EQUAL(rouse_configure(&config), 0);
    has_7_workers();
}

static void one_worker_a_cpu(void)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    CHECK(rouse_worker_count() <= (unsigned)CPU_COUNT(&set));
    int first = 0;
    while (!CPU_ISSET(first, &set))
        first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    struct rouse_config config = { .workers = 0 };
    CHECK_EQUAL(rouse_configure(&config), 0);
    CHECK_EQUAL(rouse_worker_count(), 1);
    first_create();
    CHECK_EQUAL(rsi_worker_count(), 1);
}

static void tell_kind(void)
{
    struct rouse_thread *t = start(ROUSE_KIND_DEFAULT, give_back, NULL);
    scenario_status = (int)rouse_thread_kind(t);
    join(t);
}

static void settings_are_applied(void **state)
{
    (void)state;
    scenario_exits("has_7_workers", "ROUSE_WORKERS=7", 0);
    scenario_exits("configure_7", "ROUSE_WORKERS=2", 0); /* the call overrides the environment */
    scenario_exits("configure_again", "ROUSE_WORKERS=7", 0);
    scenario_exits("one_worker_a_cpu", "ROUSE_WORKERS=", 0);
    scenario_exits("first_create", "ROUSE_WORKERS=1024", 0);
    scenario_exits("tell_kind", NULL, ROUSE_KIND_USER);
    scenario_exits("tell_kind", "ROUSE_THREADS=", ROUSE_KIND_USER);
    scenario_exits("tell_kind", "ROUSE_THREADS=user", ROUSE_KIND_USER);
    scenario_exits("tell_kind", "ROUSE_THREADS=kernel", ROUSE_KIND_KERNEL);
}

static void unusable_settings_are_reported(void **state)
{
    (void)state;
    static const char *const workers[] = {
        "ROUSE_WORKERS=0",   "ROUSE_WORKERS=1025", "ROUSE_WORKERS=-1",
        "ROUSE_WORKERS=two", "ROUSE_WORKERS=2x",   "ROUSE_WORKERS=99999999999999999999"
    };
    for (size_t i = 0; i < LENGTH(workers); i++)
        scenario_dies("first_create", workers[i], SIGABRT, "ROUSE_WORKERS");
    scenario_dies("first_create", "ROUSE_THREADS=green", SIGABRT, "ROUSE_THREADS");
    scenario_dies("first_create", "ROUSE_OBS=loud", SIGABRT, "ROUSE_OBS");
}

int main(int argc, char **argv)
{
#define SCENARIO(name) \
    { \
#name, name \
    }
    static const struct scenario scenarios[] = {
        SCENARIO(first_create),
        SCENARIO(first_create_kernel),
        SCENARIO(first_self),
        SCENARIO(first_yield),
        SCENARIO(first_sleep),
        SCENARIO(first_key),
        SCENARIO(first_key_get),
        SCENARIO(first_blocking),
        SCENARIO(first_pending),
        SCENARIO(first_index),
        SCENARIO(first_sem),
        SCENARIO(first_record),
        SCENARIO(started_by_many),
        SCENARIO(main_returns),
        SCENARIO(a_user_thread_exits),
        SCENARIO(main_leaves_by_pthread_exit),
        SCENARIO(main_leaves_by_thread_exit),
        SCENARIO(main_leaves_the_rest_to_user_threads),
        SCENARIO(main_leaves_the_rest_to_kernel_threads),
        SCENARIO(main_leaves_the_rest_to_others),
        SCENARIO(user_thread_leaves_by_pthread_exit),
        SCENARIO(user_thread_cancels_its_pthread),
        SCENARIO(kernel_thread_leaves_by_pthread_exit),
        SCENARIO(helper_leaves_by_pthread_exit),
        SCENARIO(helper_leaves_by_thread_exit),
        SCENARIO(leave_as_one_may),
        SCENARIO(has_7_workers),
        SCENARIO(configure_7),
        SCENARIO(configure_again),
        SCENARIO(one_worker_a_cpu),
        SCENARIO(tell_kind),
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_be_the_first),
        cmocka_unit_test(many_first_calls_at_once_start_one_runtime),
        cmocka_unit_test(the_program_ends_as_posix_says),
        cmocka_unit_test(the_program_ends_with_its_last_thread),
        cmocka_unit_test(pthread_exit_on_a_worker_is_reported),
        cmocka_unit_test(settings_are_applied),
        cmocka_unit_test(unusable_settings_are_reported),
    };
    static const struct program program = { 60,        false,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
