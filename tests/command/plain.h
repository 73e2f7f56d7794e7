/* SPDX-License-Identifier: MIT */
/*
 * plain.h - what the programs of POSIX threads for `rouse run` share: checks, and threads that are waited for until
 * the kernel says that they sleep.
 */
#ifndef PLAIN_H
#define PLAIN_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    WAITERS = 20, /* threads at once */
};
#define UNUSED __attribute__((unused))

static pid_t tids[WAITERS];

static UNUSED void check_at(int line, int is_so)
{
    if (!is_so) {
        fprintf(stderr, "%s:%d\n", program_invocation_short_name, line);
        _exit(1);
    }
}
#define check(is_so) check_at(__LINE__, (is_so))

/* A scene that there cannot be here: its test is left out. */
static UNUSED void not_run(const char *reason)
{
    printf("not run: %s\n", reason);
    exit(77);
}

static UNUSED struct timespec after(clockid_t clock, long ms)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static UNUSED char state_of(pid_t tid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file)
        return '?';
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    const char *at = strrchr(text, ')');
    return at && at[1] ? at[2] : '?';
}

/* Unseen, as the next one that uses it. */
static UNUSED void nap(void)
{
    const struct timespec moment = { 0, 200000 };
    syscall(SYS_nanosleep, &moment, NULL);
}

static UNUSED void until_sleeps(const pid_t *tid)
{
    while (__atomic_load_n(tid, __ATOMIC_ACQUIRE) == 0 || state_of(*tid) != 'S')
        nap();
}

static UNUSED void here(unsigned i)
{
    __atomic_store_n(&tids[i], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
}

/* How far the one thread is that a scene steps along. */
static UNUSED unsigned stage;

static UNUSED void at_stage(unsigned is)
{
    here(0);
    __atomic_store_n(&stage, is, __ATOMIC_RELEASE);
}

/* It sleeps in that stage. */
static UNUSED void until_stage(unsigned is)
{
    while (__atomic_load_n(&stage, __ATOMIC_ACQUIRE) != is)
        nap();
    until_sleeps(&tids[0]);
}

static UNUSED void until_all_sleep(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        until_sleeps(&tids[i]);
}

static UNUSED void start(pthread_t *threads, unsigned count, void *(*fn)(void *))
{
    memset(tids, 0, sizeof tids);
    for (unsigned i = 0; i < count; i++)
        check(pthread_create(&threads[i], NULL, fn, (void *)(uintptr_t)i) == 0);
}

/* Without a wait that is seen. */
static UNUSED void join(const pthread_t *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        while (pthread_tryjoin_np(threads[i], NULL) != 0)
            nap();
}

struct scene {
    const char *name;
    void (*play)(void);
};

/* Whether there is one of that name; it has been played then. */
static UNUSED int play(const struct scene *scenes, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(scenes[i].name, name) == 0) {
            scenes[i].play();
            return 1;
        }
    return 0;
}
#define PLAY(scenes, name) play((scenes), sizeof(scenes) / sizeof *(scenes), (name))

#endif
