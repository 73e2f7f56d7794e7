/* SPDX-License-Identifier: MIT */
/* impl_clone.h - impl.h over bare clone() threads and system calls. */
#ifndef BENCH_IMPL_CLONE_H
#define BENCH_IMPL_CLONE_H

#include "clone.h"

struct bench_thread {
    struct clone_thread *handle;
};
struct bench_sem {
    struct clone_sem sem;
};
struct bench_mutex {
    struct clone_mutex mutex;
};

static inline int bench_thread_create(const struct bench_run *run, struct bench_thread *t,
                                      void *(*fn)(void *), void *arg)
{
    (void)run;
    return clone_thread_create(&t->handle, fn, arg, BENCH_STACK_BYTES);
}

static inline void bench_thread_join(struct bench_thread *t)
{
    clone_thread_join(t->handle);
}

static inline void bench_thread_yield(void)
{
    clone_thread_yield();
}

static inline unsigned bench_where(const struct bench_run *run)
{
    (void)run;
    return raw_cpu();
}

static inline uint64_t bench_now_ns(void)
{
    return raw_clock_ns(CLOCK_MONOTONIC);
}

static inline void bench_sleep_ns(uint64_t ns)
{
    raw_sleep_ns(ns);
}

static inline void bench_sem_init(struct bench_sem *s)
{
    s->sem = (struct clone_sem){ 0 };
}

static inline void bench_sem_wait(struct bench_sem *s)
{
    clone_sem_wait(&s->sem);
}

static inline void bench_sem_post(struct bench_sem *s)
{
    clone_sem_post(&s->sem);
}

static inline void bench_mutex_init(struct bench_mutex *m)
{
    m->mutex = (struct clone_mutex){ 0 };
}

static inline void bench_mutex_lock(struct bench_mutex *m)
{
    clone_mutex_lock(&m->mutex);
}

static inline void bench_mutex_unlock(struct bench_mutex *m)
{
    clone_mutex_unlock(&m->mutex);
}

static inline long bench_recv(int fd, void *buffer, size_t bytes)
{
    return raw6(SYS_recvfrom, fd, (long)buffer, (long)bytes, 0, 0, 0);
}

static inline long bench_send(int fd, const void *buffer, size_t bytes)
{
    return raw6(SYS_sendto, fd, (long)buffer, (long)bytes, 0x4000 /* MSG_NOSIGNAL */, 0, 0);
}

#endif
