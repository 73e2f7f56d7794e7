/* SPDX-License-Identifier: MIT */
/*
 * make_signals.c - lets `make run` end as the server ends.
 *
 * Problem: at SIGINT or SIGTERM make waits for its recipe and then kills itself by the same signal,
 * so that a server that drained in good order still looks like a failure; and a SIGINT sent to make
 * alone never reaches the server. Loaded into make (its `load` directive) for the goal run only:
 * make hands the signal on and goes on waiting, and its status is then the recipe's.
 * Rejected: a process group of the server's own that is handed the terminal; it helps Ctrl-C only.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int plugin_is_GPL_compatible; /* make asks for this name; MIT is */

static char children_path[64];

/* A terminal's signal (SI_KERNEL) goes to the whole process group, our children included. */
static void hand_on(int signal_number, siginfo_t *info, void *context)
{
    char list[512];
    int fd;
    ssize_t bytes;
    pid_t child = 0;

    (void)context;
    if (info->si_code == SI_KERNEL)
        return;
    fd = open(children_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    bytes = read(fd, list, sizeof list);
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
}

EXPORT int make_signals_gmk_setup(void);

EXPORT int make_signals_gmk_setup(void)
{
    struct sigaction action = { .sa_sigaction = hand_on, .sa_flags = SA_SIGINFO | SA_RESTART };

    snprintf(children_path, sizeof children_path, "/proc/%d/task/%d/children", getpid(), getpid());
    if (access(children_path, R_OK) != 0)
        return 1; /* a kernel without that list: make keeps its own ways */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return 1;
}
