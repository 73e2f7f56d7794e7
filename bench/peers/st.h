/* SPDX-License-Identifier: MIT */
/*
 * st.h - impl.h over State Threads: many threads on one kernel thread.
 *
 * It has neither semaphore nor yield. A count with a condition variable and a sleep of zero length serve.
 */
#ifndef BENCH_PEERS_ST_H
#define BENCH_PEERS_ST_H

#include <errno.h>
#include <st.h>

#include "raw.h"

struct bench_thread {
    st_thread_t handle;
};
struct bench_sem {
    unsigned count;
    st_cond_t posted;
};
struct bench_mutex {
    st_mutex_t mutex;
};

static inline int bench_thread_create(const struct bench_run *run, struct bench_thread *t,
                                      void *(*fn)(void *), void *arg)
{
    (void)run;
    t->handle = st_thread_create(fn, arg, 1, BENCH_STACK_BYTES);
    return t->handle ? 0 : -ENOMEM;
}

static inline void bench_thread_join(struct bench_thread *t)
{
    st_thread_join(t->handle, NULL);
}

static inline void bench_thread_yield(void)
{
    st_usleep(0);
}

static inline unsigned bench_where(const struct bench_run *run)
{
    (void)run;
    return 0;
}

static inline uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void bench_sleep_ns(uint64_t ns)
{
    st_usleep(ns / 1000);
}

static inline void bench_sem_init(struct bench_sem *s)
{
    s->count = 0;
    s->posted = st_cond_new();
}

static inline void bench_sem_wait(struct bench_sem *s)
{
    while (s->count == 0)
        st_cond_wait(s->posted);
    s->count--;
}

static inline void bench_sem_post(struct bench_sem *s)
{
    s->count++;
    st_cond_signal(s->posted);
}

static inline void bench_mutex_init(struct bench_mutex *m)
{
    m->mutex = st_mutex_new();
}

static inline void bench_mutex_lock(struct bench_mutex *m)
{
    st_mutex_lock(m->mutex);
}

static inline void bench_mutex_unlock(struct bench_mutex *m)
{
    st_mutex_unlock(m->mutex);
}

#endif
