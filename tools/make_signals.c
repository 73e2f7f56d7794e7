/* SPDX-License-Identifier: MIT */
/*
 * make_signals.c - lets `make run` end as the server ends.
 *
 * Problem: at SIGINT or SIGTERM make waits for its recipe and then kills itself by the same signal. A server
 * that drained properly then still looks like a failure. Also, a SIGINT sent to make alone never reaches the server.
 * Solution: make loads this plug-in (its `load` directive) for the goal run only. Make then forwards the signal,
 * keeps waiting, and ends with the recipe's status. The recipe has its own process group, so a signal to the
 * whole group (Ctrl-C) arrives once: a second one tells the server not to drain.
 * Rejected: giving that group the terminal. It helps Ctrl-C, but not a signal sent to make.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int plugin_is_GPL_compatible; /* make asks for this name; MIT is */

static char children_path[64];

static void hand_on(int signal_number)
{
    char list[512];
    int fd;
    ssize_t bytes;
    pid_t child = 0;
    int saved = errno;

    fd = open(children_path, O_RDONLY | O_CLOEXEC);
    bytes = fd < 0 ? 0 : read(fd, list, sizeof list);
    close(fd);
    for (ssize_t i = 0; i < bytes; i++) {
        if (list[i] != ' ') {
            child = child * 10 + (list[i] - '0');
            continue;
        }
        if (child > 0)
            kill(child, signal_number);
        child = 0;
    }
    errno = saved;
}

EXPORT int make_signals_gmk_setup(void);

EXPORT int make_signals_gmk_setup(void)
{
    struct sigaction action = { .sa_handler = hand_on, .sa_flags = SA_RESTART };

    snprintf(children_path, sizeof children_path, "/proc/%d/task/%d/children", getpid(), getpid());
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return 1;
}
