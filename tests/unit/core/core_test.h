/* SPDX-License-Identifier: MIT */
/*
 * core_test.h - helpers of the core tests: checks that may fail on any thread, waiting for a state
 * instead of sleeping, a watchdog, runs with 1, 2 and 4 workers, and scenarios. A scenario runs as
 * a separate program: this one, started again, whose output and exit status the test checks.
 */
#ifndef CORE_TEST_H
#define CORE_TEST_H

#include "core/core.h"
#include "unit/io/rings.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <rouse/rouse.h>

#if defined(RSI_ASAN) || defined(RSI_TSAN)
#define SLOWER 8
#else
#define SLOWER 1
#endif

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define PATIENCE_S (30 * SLOWER)
#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define MAYBE_UNUSED __attribute__((unused))
#define NOT_RUN 77

/* cmocka's own assertions jump and may only be used on the main thread. */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))
#define CHECK_EQUAL(a, b) check_equal((long)(a), (long)(b), #a " == " #b, __FILE__, __LINE__)

static MAYBE_UNUSED _Noreturn void check_failed(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    rouse_obs_dump(STDERR_FILENO);
    abort();
}

static MAYBE_UNUSED void check_equal(long a, long b, const char *text, const char *file, int line)
{
    if (a == b)
        return;
    fprintf(stderr, "%s:%d: %ld and %ld\n", file, line, a, b);
    check_failed(text, file, line);
}

/* Wait for a state that another thread brings about. */
#define UNTIL(condition) \
    do { \
        uint64_t until_end_ns = rouse_now_ns() + PATIENCE_S * SECOND; \
        while (!(condition)) { \
            if (rouse_now_ns() > until_end_ns) \
                check_failed("in time: " #condition, __FILE__, __LINE__); \
            rouse_thread_yield(); \
        } \
    } while (0)

/*
 * The watchdog. When the time is over, SIGQUIT makes the program dump all threads; a little later
 * the program is killed. It uses a timer of its own because some tests use alarm(). fork does not
 * inherit the timer, and exec ends it.
 */
#define WATCHDOG_SIGNAL (SIGRTMIN + 5)

static MAYBE_UNUSED void watchdog_bite(int number)
{
    static int bites;
    (void)number;
    if (bites++)
        abort();
    static const char line[] = "watchdog: the time is over\n";
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written;
    kill(getpid(), SIGQUIT);
}

static MAYBE_UNUSED void watchdog_start(unsigned seconds)
{
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = WATCHDOG_SIGNAL };
    struct itimerspec limit = { .it_value.tv_sec = seconds * SLOWER, .it_interval.tv_sec = 5 };
    struct sigaction action = { .sa_handler = watchdog_bite, .sa_flags = SA_RESTART };
    sigaction(WATCHDOG_SIGNAL, &action, NULL);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &limit, NULL) == 0);
}

/* Start a joinable thread of that kind and return its handle. Not every test uses this. */
static MAYBE_UNUSED struct rouse_thread *start(enum rouse_kind kind, void *(*fn)(void *), void *arg)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    int error = 0;
    /*
     * The kernel may still count kernel threads that have just ended, and then refuses a new one.
     */
    for (int i = 0; i < 1000; i++) {
        error = rouse_thread_create(&t, &attr, fn, arg);
        if (error != -EAGAIN)
            break;
        usleep(10000);
    }
    CHECK_EQUAL(error, 0);
    return t;
}

static MAYBE_UNUSED void *join(struct rouse_thread *t)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_thread_join(t, &result), 0);
    return result;
}

/* Whether t is in a wait, so that a waker would find it. */
static MAYBE_UNUSED bool waits(struct rouse_thread *t)
{
    return (rsi_load_acquire(&rsi_waiter(t)->claim) & 3) != 0 && !rsi_is_running(t);
}

/* Run fn on main(), which is a foreign thread, on a user thread and on a kernel thread. */
static MAYBE_UNUSED void in_every_kind(void *(*fn)(void *), void *arg)
{
    fn(arg);
    join(start(ROUSE_KIND_USER, fn, arg));
    join(start(ROUSE_KIND_KERNEL, fn, arg));
}

static MAYBE_UNUSED uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Never 0. Printed, so that a failure can be reproduced. */
static MAYBE_UNUSED uint64_t seed_of_run(void)
{
    static uint64_t seed;
    if (seed == 0) {
        seed = number_from("ROUSE_SEED", (uint64_t)time(NULL) << 20 | (uint64_t)getpid()) | 1;
        printf("ROUSE_SEED=%lu\n", (unsigned long)seed);
        fflush(stdout);
    }
    return seed;
}

struct scenario {
    const char *name;
    void (*run)(void);
};

static int scenario_status; /* main() returns this after a scenario */

struct outcome {
    int status;
    char output[16384]; /* standard output and error */
};

static MAYBE_UNUSED void read_all(int fd, char *buffer, size_t bytes)
{
    size_t used = 0;
    for (;;) {
        char rest[256];
        bool is_full = used + 1 == bytes;
        ssize_t got =
            read(fd, is_full ? rest : buffer + used, is_full ? sizeof rest : bytes - used - 1);
        if (got <= 0)
            break;
        used += is_full ? 0 : (size_t)got;
    }
    buffer[used] = 0;
}

/* Run a scenario as a separate program. variable (NAME=value) may be NULL. */
static MAYBE_UNUSED void scenario_run(const char *name, const char *variable,
                                      struct outcome *outcome)
{
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        if (variable)
            putenv((char *)(uintptr_t)variable);
        execl("/proc/self/exe", "test", "scenario", name, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    read_all(ends[0], outcome->output, sizeof outcome->output);
    close(ends[0]);
    CHECK(waitpid(pid, &outcome->status, 0) == pid);
}

static MAYBE_UNUSED void scenario_show(const char *name, const struct outcome *outcome)
{
    fprintf(stderr, "scenario %s: status %#x, output:\n%s\n", name, (unsigned)outcome->status,
            outcome->output);
}

/* The scenario must exit with this status. */
static MAYBE_UNUSED void scenario_exits(const char *name, const char *variable, int status)
{
    static struct outcome outcome;
    scenario_run(name, variable, &outcome);
    if (WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == status)
        return;
    scenario_show(name, &outcome);
    check_failed("the scenario exits as it should", __FILE__, __LINE__);
}

/*
 * The scenario must be killed by this signal, after one line that begins with "rouse: " and
 * contains text.
 */
static MAYBE_UNUSED void scenario_dies(const char *name, const char *variable, int number,
                                       const char *text)
{
    static struct outcome outcome;
    scenario_run(name, variable, &outcome);
    const char *line = strstr(outcome.output, "rouse: "), *found = strstr(outcome.output, text);
    if (WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == number && line && found &&
        !memchr(line, '\n', (size_t)(found > line ? found - line : 0)))
        return;
    scenario_show(name, &outcome);
    check_failed("the scenario dies as it should", __FILE__, __LINE__);
}

/* Wait for a child made by fork. True if it exited with 0. */
static MAYBE_UNUSED bool child_passed(pid_t pid)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        fprintf(stderr, "child: status %#x\n", (unsigned)status);
    return status == 0;
}

/* qemu-user makes up the contents of /proc and does not count kernel threads there. */
static MAYBE_UNUSED bool is_emulated(void)
{
    char line[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    char *at = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (file)
        fclose(file);
    for (int field = 2; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    return !at || atoi(at) <= 0;
}

static MAYBE_UNUSED bool kernel_threads_are_told(void)
{
    if (!is_emulated())
        return true;
    puts("not run: the emulator does not tell how many kernel threads there are");
    return false;
}

static MAYBE_UNUSED int run_with_workers(const char *workers)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setenv("ROUSE_WORKERS", workers, 1);
        setenv("ROUSE_SPARES", "0", 0); /* no more than these, however slow a sanitizer is */
        execl("/proc/self/exe", "test", "tests", (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        printf("failed with %s workers: status %#x\n", workers, (unsigned)status);
    return status != 0;
}

struct program {
    unsigned limit_s;  /* for one run of the tests, on a machine of any speed */
    bool every_number; /* run with 1, 2 and 4 workers, unless ROUSE_WORKERS is set */
    const struct CMUnitTest *tests;
    size_t test_count;
    const struct scenario *scenarios;
    size_t scenario_count;
};

/* Rounds of a stress test. ROUSE_SCALE is in percent. */
static MAYBE_UNUSED unsigned rounds_of(unsigned rounds)
{
    uint64_t scaled = rounds * number_from("ROUSE_SCALE", 100) / 100 / SLOWER;
    return scaled > 1 ? (unsigned)scaled : 1;
}

/*
 * Call this before program_run in a stress test: its runs share one seed, and builds that have
 * injected delays use them. A variable that is already set stays.
 */
static MAYBE_UNUSED void stress_set_up(void)
{
    char number[32];
    snprintf(number, sizeof number, "%lu", (unsigned long)seed_of_run());
    setenv("ROUSE_SEED", number, 0);
    setenv("ROUSE_TEST_SEED", number, 0);
    setenv("ROUSE_TEST_DELAY", "48", 0);
    setenv("ROUSE_SPARES", "2", 0); /* and workers are added and removed */
}

/* The main function of a test program. */
static MAYBE_UNUSED int program_run(const struct program *program, int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && strcmp(argv[1], "scenario") == 0) {
        watchdog_start(program->limit_s);
        for (size_t i = 0; i < program->scenario_count; i++)
            if (strcmp(program->scenarios[i].name, argv[2]) == 0) {
                program->scenarios[i].run();
                return scenario_status;
            }
        return 126;
    }
    if (argc == 1 && lacks_rings()) {
        puts("not run: there is no io_uring here");
        return NOT_RUN;
    }
    if (argc == 1 && program->every_number && !getenv("ROUSE_WORKERS"))
        return run_with_workers("1") + run_with_workers("2") + run_with_workers("4") ? 1 : 0;
    watchdog_start(program->limit_s);
    return _cmocka_run_group_tests("tests", program->tests, program->test_count, NULL, NULL);
}

#endif
