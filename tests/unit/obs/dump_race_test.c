/* SPDX-License-Identifier: MIT */
/*
 * dump_race_test.c - dumps while everything changes: threads that begin, switch and end as fast as
 * they can, two dumps at once, dumps from signal handlers and after fork; and whether rouse or the
 * program handles SIGQUIT.
 */
#include "obs_test.h"

#include <pthread.h>
#include <sys/mman.h>

/*
 * TSan delivers signals late. Threads that run seldom answer there, and each dump takes a second.
 */
#if defined(RSI_TSAN)
#define DUMPS 2
#else
#define DUMPS (60 / SLOWER)
#endif

static uint32_t stop;
static struct rouse_sem never;

static int open_memory(void)
{
    int fd = memfd_create("dump", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

/* Reads the text that was written to fd and closes fd. NULL: no text. The caller frees it. */
static char *read_memory(int fd)
{
    off_t length = lseek(fd, 0, SEEK_END);
    char *text = length > 0 ? malloc((size_t)length + 1) : NULL;
    if (text) {
        CHECK(pread(fd, text, (size_t)length, 0) == length);
        text[length] = 0;
    }
    close(fd);
    return text;
}

static char *take_dump(void)
{
    int fd = open_memory();
    rouse_obs_dump(fd);
    return read_memory(fd);
}

/* Each line must be one that a dump can contain. */
static void check_shape(char *text)
{
    unsigned threads = 0;
    char *last = NULL;
    CHECK(text != NULL);
    for (char *line = strtok_r(text, "\n", &last); line; line = strtok_r(NULL, "\n", &last)) {
        bool is_thread = strncmp(line, "thread ", 7) == 0;
        threads += is_thread;
        if (!is_thread && strncmp(line, "rouse: ", 7) != 0 && strncmp(line, "    ", 4) != 0) {
            fprintf(stderr, "not a line of a dump: %s\n", line);
            check_failed("every line is understood", __FILE__, __LINE__);
        }
    }
    CHECK(threads >= 1);
    free(text);
}

static void *end_at_once(void *unused)
{
    return unused;
}

/* Begins and ends threads, yields, sleeps. */
static void *make_threads(void *unused)
{
    while (!rsi_load_relaxed(&stop)) {
        struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
        attr.detached = true;
        attr.name = "short";
        attr.stack_bytes = rouse_now_ns() % 2 ? 0 : 32768;
        rouse_thread_create(NULL, &attr, end_at_once, NULL);
        rouse_thread_yield();
        if (rouse_now_ns() % 64 == 0)
            rouse_sleep(1000);
    }
    return unused;
}

static void *make_kernel_threads(void *unused)
{
    while (!rsi_load_relaxed(&stop))
        join(start(ROUSE_KIND_KERNEL, end_at_once, NULL));
    return unused;
}

static void test_while_all_changes(MAYBE_UNUSED void **unused)
{
    enum { MAKERS = 4 };
    struct rouse_thread *t[MAKERS + 1];
    rsi_store_relaxed(&stop, 0u);
    for (unsigned i = 0; i < MAKERS; i++)
        t[i] = start(ROUSE_KIND_USER, make_threads, NULL);
    t[MAKERS] = start(ROUSE_KIND_USER, make_kernel_threads, NULL);
    for (unsigned i = 0; i < DUMPS; i++)
        check_shape(take_dump());
    rsi_store_relaxed(&stop, 1u);
    for (unsigned i = 0; i <= MAKERS; i++)
        join(t[i]);
}

static void *dump_often(void *unused)
{
    for (unsigned i = 0; i < DUMPS / 2; i++) {
        char *text = take_dump();
        CHECK(text && strstr(text, "rouse: end of the threads\n"));
        check_shape(text);
    }
    return unused;
}

static void test_several_at_once(MAYBE_UNUSED void **unused)
{
    struct rouse_thread *t[4];
    for (unsigned i = 0; i < LENGTH(t); i++)
        t[i] = start(i % 2 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, dump_often, NULL);
    for (unsigned i = 0; i < LENGTH(t); i++)
        join(t[i]);
}

/* --- from handlers */

static int handler_fd;

static void on_signal(int number)
{
    (void)number;
    rouse_obs_dump(handler_fd);
}

static FRAME void *raise_it(void *unused)
{
    raise(SIGUSR1);
    KEEP_FRAME();
    return unused;
}

static void check_handler_dump(int flags, enum rouse_kind kind)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    handler_fd = open_memory();
    join(start(kind, raise_it, NULL));
    char *text = read_memory(handler_fd);
    CHECK(text && strstr(text, " raise_it+"));
    check_shape(text);
}

/* On the thread's own stack and on its worker's signal stack. */
static void test_from_a_handler(MAYBE_UNUSED void **unused)
{
#if defined(__x86_64__) /* AArch64 is tested by an emulator whose signal frames cannot be unwound */
    check_handler_dump(0, ROUSE_KIND_USER);
    check_handler_dump(0, ROUSE_KIND_KERNEL);
    check_handler_dump(SA_ONSTACK, ROUSE_KIND_USER);
#else
    (void)check_handler_dump;
#endif
}

static void *dump_once(void *unused)
{
    check_shape(take_dump());
    return unused;
}

static void test_from_the_smallest_stack(MAYBE_UNUSED void **unused)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.stack_bytes = 1;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, dump_once, NULL), 0);
    join(t);
}

/* A dump that interrupts another: the first goes on, and the second does not write. */
static void on_timer(int number)
{
    (void)number;
    rouse_obs_dump(-1);
}

static void test_interrupted_by_itself(MAYBE_UNUSED void **unused)
{
    struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    for (unsigned i = 1; i <= DUMPS; i++) {
        struct itimerspec once = { .it_value.tv_nsec = 20000 * i };
        CHECK(timer_settime(timer, 0, &once, NULL) == 0);
        check_shape(take_dump());
    }
    timer_delete(timer);
}

/* --- after fork */

static void *wait_for_never(void *unused)
{
    rouse_sem_wait(&never);
    return unused;
}

static void test_in_a_forked_child(MAYBE_UNUSED void **unused)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_never, NULL);
    UNTIL(waits(t));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char *text = take_dump();
        bool is_right = text && strstr(text, "rouse: 1 threads") && !strstr(text, "semaphore");
        _exit(is_right ? 0 : 1);
    }
    CHECK(child_passed(pid));
    rouse_sem_post(&never);
    join(t);
}

/* --- SIGQUIT, in separate programs */

static void start_runtime(void)
{
    join(start(ROUSE_KIND_USER, end_at_once, NULL));
}

static void quit_is_answered(void)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_for_never, NULL);
    UNTIL(waits(t));
    raise(SIGQUIT);
    raise(SIGQUIT);
    rouse_sem_post(&never);
    join(t);
}

static void on_own_quit(int number)
{
    static const char line[] = "my own\n";
    (void)number;
    scenario_status = write(STDOUT_FILENO, line, sizeof line - 1) > 0 ? 0 : 1;
}

static void quit_is_the_programs(void)
{
    scenario_status = 1;
    signal(SIGQUIT, on_own_quit);
    start_runtime();
    raise(SIGQUIT);
}

static void quit_is_ignored(void)
{
    signal(SIGQUIT, SIG_IGN);
    start_runtime();
    raise(SIGQUIT);
}

static uint32_t spinning; /* threads that are there */

static FRAME void *spin(void *unused)
{
    rsi_fetch_add_relaxed(&spinning, 1u);
    while (!rsi_load_relaxed(&stop))
        KEEP_FRAME();
    return unused;
}

/* Workers inherit the signals that main() blocks. */
static void all_signals_are_blocked(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    struct rouse_thread *user = start(ROUSE_KIND_USER, spin, NULL);
    struct rouse_thread *kernel = start(ROUSE_KIND_KERNEL, spin, NULL);
    UNTIL(rsi_load_relaxed(&spinning) == 2);
    rouse_obs_dump(STDOUT_FILENO);
    rsi_store_relaxed(&stop, 1u);
    join(user);
    join(kernel);
}

static const struct scenario scenarios[] = {
    { "quit_is_answered", quit_is_answered },
    { "quit_is_the_programs", quit_is_the_programs },
    { "quit_is_ignored", quit_is_ignored },
    { "all_signals_are_blocked", all_signals_are_blocked },
};

static unsigned count_of(const char *text, const char *wanted)
{
    unsigned count = 0;
    for (; (text = strstr(text, wanted)) != NULL; text += strlen(wanted))
        count++;
    return count;
}

static void check_scenario(const char *name, const char *wanted, unsigned times)
{
    static struct outcome outcome;
    scenario_run(name, NULL, &outcome);
    if (outcome.status == 0 && count_of(outcome.output, wanted) == times)
        return;
    scenario_show(name, &outcome);
    check_failed("the scenario does what it should", __FILE__, __LINE__);
}

static void test_who_handles_sigquit(MAYBE_UNUSED void **unused)
{
    check_scenario("quit_is_answered", "rouse: end of the threads", 2);
    check_scenario("quit_is_answered", ", user: waiting for semaphore ", 2);
    check_scenario("quit_is_the_programs", "my own", 1);
    check_scenario("quit_is_the_programs", "rouse: ", 0);
    check_scenario("quit_is_ignored", "rouse: ", 0);
}

static void test_signals_blocked_by_main(MAYBE_UNUSED void **unused)
{
#if !defined(RSI_TSAN)
    check_scenario("all_signals_are_blocked", " spin+", 2);
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_all_changes),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_from_a_handler),
        cmocka_unit_test(test_from_the_smallest_stack),
        cmocka_unit_test(test_interrupted_by_itself),
        cmocka_unit_test(test_in_a_forked_child),
        cmocka_unit_test(test_who_handles_sigquit),
        cmocka_unit_test(test_signals_blocked_by_main),
    };
    const struct program program = { .limit_s = 120,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
