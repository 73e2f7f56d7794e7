/* SPDX-License-Identifier: MIT */
/*
 * known.c - a program whose threads spend their time in known ways, for the tests of what is seen from outside.
 * Says "ready" when they do. A letter on its input: f forks a child that waits, x becomes another program; ends with
 * its input.
 */
#include <rouse/rouse.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS 1000000u

static struct rouse_mutex shared = ROUSE_MUTEX_INIT_NAMED("shared");
static struct rouse_mutex none = ROUSE_MUTEX_INIT;
static struct rouse_cond never = ROUSE_COND_INIT;
static struct rouse_sem begun = ROUSE_SEM_INIT(0);

static void sleep_ms(unsigned ms)
{
    rouse_sleep_until(rouse_now_ns() + (uint64_t)ms * MS);
}

/* Holds the lock for 10 ms, and is without it for 2. */
static void *hold(void *unused)
{
    rouse_sem_post(&begun);
    for (;;) {
        rouse_mutex_lock(&shared);
        sleep_ms(10);
        rouse_mutex_unlock(&shared);
        sleep_ms(2);
    }
    return unused;
}

/* Wants the lock, and does nothing with it. */
static void *want(void *unused)
{
    rouse_sem_post(&begun);
    for (;;) {
        rouse_mutex_lock(&shared);
        rouse_mutex_unlock(&shared);
        sleep_ms(1);
    }
    return unused;
}

static void *sleep_often(void *unused)
{
    rouse_sem_post(&begun);
    for (;;)
        sleep_ms(1);
    return unused;
}

static void *compute(void *unused)
{
    rouse_sem_post(&begun);
    for (;;) {
        for (volatile unsigned i = 0; i < 100000; i++)
            ;
        rouse_thread_yield();
    }
    return unused;
}

static void *wait_for_work(void *unused)
{
    rouse_mutex_lock(&none);
    rouse_sem_post(&begun);
    for (;;)
        rouse_cond_wait(&never, &none);
    return unused;
}

static void *listen_on(void *unused)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0)
        abort();
    rouse_sem_post(&begun);
    while (rouse_accept(fd, NULL, NULL) >= 0)
        ;
    return unused;
}

static void start(const char *name, void *(*fn)(void *))
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.name = name;
    attr.detached = true;
    if (rouse_thread_create(NULL, &attr, fn, NULL) != 0)
        abort();
    rouse_sem_wait(&begun);
}

static void fork_child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        start("child", sleep_often);
        printf("child %d\n", getpid());
        fflush(stdout);
        for (;;)
            sleep_ms(1000);
    }
}

int main(void)
{
    char letter;
    start("holder", hold);
    start("wanter", want);
    start("sleeper", sleep_often);
    start("runner", compute);
    start("waiter", wait_for_work);
    start("listener", listen_on);
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &letter, 1) == 1) {
        if (letter == 'f')
            fork_child();
        if (letter == 'x')
            execlp("sleep", "sleep", "60", (char *)NULL);
    }
    return 0;
}
