/* SPDX-License-Identifier: MIT */
/*
 * make_signals.c - lets `make run` end as the server ends.
 *
 * Problem: at SIGINT or SIGTERM make waits for its recipe and then kills itself by the same signal,
 * so that a server that drained in good order still looks like a failure; and a SIGINT sent to make
 * alone never reaches the server. Loaded into make (its `load` directive) for the goal run only:
 * make hands the signal on and goes on waiting, and its status is then the recipe's. The recipe
 * stands in a process group of its own, so that a signal to the whole group (Ctrl-C) comes once: a
 * second one tells the server not to drain.
 * Rejected: handing that group the terminal instead; it helps Ctrl-C, and no signal sent to make.
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
