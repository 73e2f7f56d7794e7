/* SPDX-License-Identifier: MIT */
/*
 * suite.c - `rouse-bench libmicro`: all cases of libMicro, a row each.
 *
 * Each case runs in a process of its own. One that fails, crashes or does not end has a row that says so, and the
 * next one runs. The processes end with this one, so an interrupt leaves none.
 */
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 30 /* beyond --seconds, unless -n gives samples that may last long */
#define LOOK_MS 1000
#define GRACE_S 5 /* between a request to end, and the end by force */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Run the case in this process, whose errors go to the pipe. */
_Noreturn static void run_here(const struct bench_options *options, const struct bench_case *test,
                               const int pipe_fds[2], pid_t parent)
{
    struct bench_options own = *options;

    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a case may have something to remove */
    if (getppid() != parent)
        _exit(1);
    dup2(pipe_fds[1], STDERR_FILENO);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    own.row = true;
    const char *excuse = bench_options_fit(&own, &test);
    if (excuse) {
        bench_report_absent(&own, test, 0, excuse);
        _exit(fflush(stdout) == 0 ? 0 : 1);
    }
    const int status = bench_run_case(&own, test);
    _exit(fflush(stdout) == 0 ? status : 1);
}

/* Read what the process says until it has ended, or until deadline_ms. Returns whether it has ended. */
static bool read_errors(int fd, char *text, size_t bytes, int64_t deadline_ms)
{
    size_t length = strlen(text);

    for (;;) {
        const int64_t left_ms = deadline_ms - now_ms();
        struct pollfd one = { .fd = fd, .events = POLLIN };
        char rest[256];
        if (left_ms <= 0)
            return false;
        if (poll(&one, 1, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS) <= 0)
            continue;
        const ssize_t n = length + 1 < bytes ? read(fd, text + length, bytes - length - 1)
                                             : read(fd, rest, sizeof rest);
        if (n <= 0)
            return true;
        if (length + 1 < bytes)
            text[length += (size_t)n] = 0;
    }
}

/* The reason, from the line "PROGRAM: CASE: reason" or from how the process ended. */
static void find_reason(char *text, size_t bytes, int status, bool was_ended)
{
    char *line = text;

    text[strcspn(text, "\n")] = 0;
    for (unsigned colons = 0; colons < 2 && strstr(line, ": "); colons++)
        line = strstr(line, ": ") + 2;
    memmove(text, line, strlen(line) + 1);
    if (was_ended)
        snprintf(text, bytes, "it did not end in time");
    else if (WIFSIGNALED(status))
        snprintf(text, bytes, "it was ended by signal %d", WTERMSIG(status));
    else if (!*text)
        snprintf(text, bytes, "it ended with status %d", WEXITSTATUS(status));
}

/* Returns whether the case did not fail. */
static bool run_one(const struct bench_options *options, const struct bench_case *test)
{
    char text[512] = "";
    int fds[2], status = 0;
    const pid_t parent = getpid();

    fflush(stdout);
    if (pipe(fds) < 0) {
        bench_report_absent(options, test, 1, strerror(errno));
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0)
        run_here(options, test, fds, parent);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        bench_report_absent(options, test, 1, strerror(errno));
        return false;
    }
    const int64_t limit_ms = now_ms() + (int64_t)(options->seconds * 1000) + PATIENCE_S * 1000;
    bool ended = read_errors(fds[0], text, sizeof text, options->ops ? INT64_MAX : limit_ms);
    const bool was_ended = !ended;
    if (!ended) {
        kill(pid, SIGTERM);
        ended = read_errors(fds[0], text, sizeof text, now_ms() + GRACE_S * 1000);
    }
    if (!ended)
        kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(fds[0]);
    if (status == 0)
        return true;
    find_reason(text, sizeof text, status, was_ended);
    bench_report_absent(options, test, 1, text);
    return false;
}

int bench_suite(const struct bench_options *options)
{
    unsigned failed = 0;

    if (!options->json) {
        static struct bench_run run; /* large */
        run.options = *options;
        bench_find_cpus(&run);
        bench_report_machine(&run);
        printf("#   threads    %s\n", options->kind->name);
        bench_report_columns();
    }
    for (const struct bench_case *const *c = options->kind->cases; *c; c++)
        if ((*c)->flags & BENCH_CALLS)
            failed += !run_one(options, *c);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: writing the report failed: %s\n", bench_program, strerror(errno));
        return 1;
    }
    return failed > 0;
}
