/* SPDX-License-Identifier: MIT */
/* pthread.h - impl.h over plain pthreads and POSIX semaphores, with nothing of ours between. */
#ifndef BENCH_PEERS_PTHREAD_H
#define BENCH_PEERS_PTHREAD_H

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "raw.h"

struct bench_thread {
    pthread_t handle;
};
struct bench_sem {
    sem_t sem;
};
struct bench_mutex {
    pthread_mutex_t mutex;
};

extern pthread_attr_t bench_pthread_attr;

static inline int bench_thread_create(const struct bench_run *run, struct bench_thread *t,
                                      void *(*fn)(void *), void *arg)
{
    (void)run;
    return -pthread_create(&t->handle, &bench_pthread_attr, fn, arg);
}

static inline void bench_thread_join(struct bench_thread *t)
{
    pthread_join(t->handle, NULL);
}

static inline void bench_thread_yield(void)
{
    sched_yield();
}

static inline unsigned bench_where(const struct bench_run *run)
{
    (void)run;
    return raw_cpu();
}

static inline uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void bench_sleep_ns(uint64_t ns)
{
    raw_sleep_ns(ns);
}

static inline void bench_sem_init(struct bench_sem *s)
{
    sem_init(&s->sem, 0, 0);
}

static inline void bench_sem_wait(struct bench_sem *s)
{
    while (sem_wait(&s->sem) != 0)
        ;
}

static inline void bench_sem_post(struct bench_sem *s)
{
    sem_post(&s->sem);
}

static inline void bench_mutex_init(struct bench_mutex *m)
{
    pthread_mutex_init(&m->mutex, NULL);
}

static inline void bench_mutex_lock(struct bench_mutex *m)
{
    pthread_mutex_lock(&m->mutex);
}

static inline void bench_mutex_unlock(struct bench_mutex *m)
{
    pthread_mutex_unlock(&m->mutex);
}

#endif
