/* SPDX-License-Identifier: MIT */
/*
 * plain_accept.h - what the programs share whose processes wait for one listener: it, its servers and its clients.
 */
#ifndef PLAIN_ACCEPT_H
#define PLAIN_ACCEPT_H

#include "plain.h"

#include <stdbool.h>

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static int listener, ends[2];
static struct sockaddr_un address = { .sun_family = AF_UNIX };

static UNUSED void listens(int type)
{
    listener = socket(AF_UNIX, SOCK_STREAM | type, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%cplain_accept.%d", 0, getpid());
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    check(listen(listener, 16) == 0 && pipe(ends) == 0);
}

static UNUSED int connects(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    check(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static UNUSED char state_of_process(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    check(file != NULL);
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    const char *at = strrchr(text, ')');
    return at && at[1] ? at[2] : '?';
}

/* Twenty times in a row: a process that begins to wait may sleep for other things, but not for long. */
static UNUSED void until_process(pid_t pid, char state)
{
    for (int seen = 0; seen < 20; nap())
        seen = state_of_process(pid) == state ? seen + 1 : 0;
}

/* The same of a thread of this process. */
static UNUSED void until_waits(const pid_t *tid)
{
    for (int seen = 0; seen < 20; nap())
        seen = __atomic_load_n(tid, __ATOMIC_ACQUIRE) && state_of(*tid) == 'S' ? seen + 1 : 0;
}

/* How often a thread of this process has slept. */
static UNUSED long switches_of(pid_t tid)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *file = fopen(path, "r");
    check(file != NULL);
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    const char *at = strstr(text, "\nvoluntary_ctxt_switches:");
    check(at != NULL);
    return atol(strchr(at, ':') + 1);
}

/* Takes connections until it is told to end, and tells of each whose it is. */
static UNUSED void serve(bool by_poll)
{
    char what = 0;
    pid_t self = getpid();
    while (what != 'q') {
        struct pollfd entry = { listener, POLLIN, 0 };
        check(!by_poll || poll(&entry, 1, -1) == 1);
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            check(errno == EAGAIN); /* also of SO_RCVTIMEO, which all who share it have */
            continue;
        }
        if (read(fd, &what, 1) == 1) /* else it was closed at once */
            check(write(fd, &self, sizeof self) == sizeof self);
        close(fd);
    }
    exit(0);
}

/* The child does not survive its parent, which may fail. */
static UNUSED pid_t fork_bound(void)
{
    pid_t pid = fork();
    check(pid >= 0);
    check(pid > 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    return pid;
}

static UNUSED pid_t server(bool by_poll)
{
    pid_t pid = fork_bound();
    if (pid == 0)
        serve(by_poll);
    until_process(pid, 'S');
    return pid;
}

static UNUSED pid_t ask(int fd, char what)
{
    pid_t pid = 0;
    check(write(fd, &what, 1) == 1 && read(fd, &pid, sizeof pid) == sizeof pid);
    close(fd);
    return pid;
}

static UNUSED void ends_all(int count)
{
    int status;
    for (int i = 0; i < count; i++)
        ask(connects(), 'q');
    for (int i = 0; i < count; i++)
        check(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static UNUSED int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    check(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static UNUSED void beside(void *(*fn)(void *), pthread_t *thread)
{
    check(pthread_create(thread, NULL, fn, NULL) == 0);
}

static UNUSED long ms_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#endif
