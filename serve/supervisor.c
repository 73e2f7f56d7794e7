/* SPDX-License-Identifier: MIT */
/*
 * supervisor.c - several instances of the server, each a process of its own, and a new one for each that dies.
 *
 * The supervisor opens the sockets, forks, and has no thread but its own. Each instance has a socket of its own on the
 * same port (SO_REUSEPORT), so the kernel spreads the connections, and none wakes several processes. The supervisor keeps
 * the sockets open: connections that arrive while an instance is dead wait for the next one.
 *
 * An instance that dies soon after its start would die again: the next one starts later, and after QUICK_MOST such deaths
 * in a row the supervisor gives up.
 *
 * If the supervisor is killed, the kernel tells its instances to drain. An instance that was forked just before that asks
 * for its parent, and ends.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve.h"

#define SOON_NS ((uint64_t)1000 * 1000 * 1000)
#define PAUSE_NS \
    ((uint64_t)100 * 1000 * 1000) /* after the first quick death; doubled by each further one */
#define QUICK_MOST 5u

struct instance {
    pid_t pid; /* 0: it is dead */
    uint64_t started_ns;
    uint64_t start_at_ns; /* of a dead one; 0: never */
    unsigned quick;       /* deaths soon after the start, in a row */
};

static struct {
    struct instance *instances;
    unsigned count;
    sigset_t signals; /* handled here */
    bool drains;
    int status;
} all;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Returns true in the new instance. */
static bool start(struct instance *instance)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(0);
        return true;
    }
    if (pid < 0) {
        fprintf(stderr, "rouse-serve: cannot start an instance: %s; trying again\n",
                strerror(errno));
        instance->start_at_ns = now_ns() + SOON_NS;
        return false;
    }
    instance->pid = pid;
    instance->started_ns = now_ns();
    instance->start_at_ns = 0;
    return false;
}

static void tell_all(int number)
{
    for (unsigned i = 0; i < all.count; i++)
        if (all.instances[i].pid)
            kill(all.instances[i].pid, number);
}

static void drain(void)
{
    all.drains = true;
    for (unsigned i = 0; i < all.count; i++)
        all.instances[i].start_at_ns = 0;
    tell_all(SIGTERM);
}

static void say_how_it_died(unsigned number, int how)
{
    if (WIFSIGNALED(how))
        fprintf(stderr, "rouse-serve: instance %u was ended by signal %d (%s)", number,
                WTERMSIG(how), strsignal(WTERMSIG(how)));
    else
        fprintf(stderr, "rouse-serve: instance %u ended with status %d", number, WEXITSTATUS(how));
}

/* An instance has ended. */
static void bury(unsigned number, int how)
{
    struct instance *instance = &all.instances[number];
    uint64_t now = now_ns();

    instance->pid = 0;
    if (all.drains) {
        if (how != 0)
            all.status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
        return;
    }
    say_how_it_died(number, how);
    instance->quick = now - instance->started_ns < SOON_NS ? instance->quick + 1 : 0;
    if (instance->quick == QUICK_MOST) {
        fprintf(stderr, ", %u times in a row soon after its start; giving up\n", QUICK_MOST);
        all.status = 1;
        drain();
        return;
    }
    fputs("; a new one starts\n", stderr);
    instance->start_at_ns = now + (instance->quick ? PAUSE_NS << (instance->quick - 1) : 0);
    instance->start_at_ns += instance->start_at_ns == 0;
}

static void bury_all(void)
{
    int how;
    pid_t pid;

    while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
        for (unsigned i = 0; i < all.count; i++)
            if (all.instances[i].pid == pid)
                bury(i, how);
}

/* Start the instances that are due. Returns the number of one in its process; -1 in the supervisor. */
static int start_due(uint64_t *next_ns)
{
    uint64_t now = now_ns();

    *next_ns = UINT64_MAX;
    for (unsigned i = 0; i < all.count; i++) {
        struct instance *instance = &all.instances[i];

        if (instance->start_at_ns && instance->start_at_ns <= now && start(instance))
            return (int)i;
        if (instance->start_at_ns && instance->start_at_ns < *next_ns)
            *next_ns = instance->start_at_ns;
    }
    return -1;
}

static bool is_any_alive(void)
{
    for (unsigned i = 0; i < all.count; i++)
        if (all.instances[i].pid || all.instances[i].start_at_ns)
            return true;
    return false;
}

/* Wait for a signal until next_ns, and act on it. */
static void wait_for_signal(uint64_t next_ns)
{
    uint64_t now = now_ns(), rest = next_ns > now ? next_ns - now : 0;
    struct timespec most = { (time_t)(rest / 1000000000u), (long)(rest % 1000000000u) };
    int number = sigtimedwait(&all.signals, NULL, next_ns == UINT64_MAX ? NULL : &most);

    if (number == SIGUSR1)
        tell_all(number);
    else if (number == SIGINT || number == SIGTERM)
        drain(); /* a second one ends the instances at once */
    bury_all();
}

unsigned supervise(unsigned count, const sigset_t *signals)
{
    sigset_t before;
    uint64_t next_ns;
    int number;

    all.count = count;
    all.instances = calloc(count, sizeof(*all.instances));
    if (all.instances == NULL) {
        fputs("rouse-serve: out of memory\n", stderr);
        exit(1);
    }
    all.signals = *signals;
    sigaddset(&all.signals, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &all.signals, &before);
    for (unsigned i = 0; i < count; i++)
        all.instances[i].start_at_ns = 1;
    while (is_any_alive()) {
        if ((number = start_due(&next_ns)) >= 0) {
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            return (unsigned)number;
        }
        wait_for_signal(next_ns);
    }
    unix_socket_remove();
    exit(all.status);
}
