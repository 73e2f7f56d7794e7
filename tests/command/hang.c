/* SPDX-License-Identifier: MIT */
/*
 * hang.c - a program that hangs, in known ways: WAITERS threads want a lock that its holder never gives back, READERS
 * want another, POOL threads wait for work that never comes. Says "ready" when all are made; ends with its input.
 */
#include <rouse/rouse.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WAITERS = 12, READERS = 7, POOL = 30 };

static struct rouse_mutex stuck = ROUSE_MUTEX_INIT_NAMED("stuck");
static struct rouse_rwlock frozen = ROUSE_RWLOCK_INIT_NAMED("frozen");
static struct rouse_sem held = ROUSE_SEM_INIT(0);
static struct rouse_sem never = ROUSE_SEM_INIT(0);

static void start(const char *name, void *(*fn)(void *))
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.name = name;
    attr.detached = true;
    if (rouse_thread_create(NULL, &attr, fn, NULL) != 0)
        abort();
}

static void *hold(void *unused)
{
    rouse_mutex_lock(&stuck);
    rouse_rwlock_write_lock(&frozen);
    rouse_sem_post(&held);
    rouse_sem_wait(&never);
    return unused;
}

static void *want(void *unused)
{
    rouse_mutex_lock(&stuck);
    return unused;
}

static void *look(void *unused)
{
    rouse_rwlock_read_lock(&frozen);
    return unused;
}

static void *idle(void *unused)
{
    rouse_sem_wait(&never);
    return unused;
}

int main(void)
{
    char letter;
    start("holder", hold);
    rouse_sem_wait(&held);
    for (unsigned i = 0; i < WAITERS; i++)
        start("waiter", want);
    for (unsigned i = 0; i < READERS; i++)
        start("reader", look);
    for (unsigned i = 0; i < POOL; i++)
        start("pool", idle);
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &letter, 1) == 1)
        ;
    return 0;
}
