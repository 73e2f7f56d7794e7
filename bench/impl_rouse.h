/* SPDX-License-Identifier: MIT */
/* impl_rouse.h - impl.h over the public API: kinds user and kernel. */
#ifndef BENCH_IMPL_ROUSE_H
#define BENCH_IMPL_ROUSE_H

#include <rouse/rouse.h>

struct bench_thread {
    struct rouse_thread *handle;
};
struct bench_sem {
    struct rouse_sem sem;
};
struct bench_mutex {
    struct rouse_mutex mutex;
};

static inline int bench_thread_create(const struct bench_run *run, struct bench_thread *t,
                                      void *(*fn)(void *), void *arg)
{
    const struct rouse_thread_attr attr = {
        .kind = run->user ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL,
        .stack_bytes = BENCH_STACK_BYTES,
    };
    return rouse_thread_create(&t->handle, &attr, fn, arg);
}

static inline void bench_thread_join(struct bench_thread *t)
{
    rouse_thread_join(t->handle, NULL);
}

static inline void bench_thread_yield(void)
{
    rouse_thread_yield();
}

/* The worker, or the processor of a kernel thread. */
static inline unsigned bench_where(const struct bench_run *run)
{
    if (!run->user)
        return raw_cpu();
    int worker = rouse_worker_index();
    return worker < 0 ? 0 : (unsigned)worker;
}

static inline uint64_t bench_now_ns(void)
{
    return rouse_now_ns();
}

static inline void bench_sleep_ns(uint64_t ns)
{
    rouse_sleep(ns);
}

static inline void bench_sem_init(struct bench_sem *s)
{
    rouse_sem_init(&s->sem, 0, NULL);
}

static inline void bench_sem_wait(struct bench_sem *s)
{
    rouse_sem_wait(&s->sem);
}

static inline void bench_sem_post(struct bench_sem *s)
{
    rouse_sem_post(&s->sem);
}

static inline void bench_mutex_init(struct bench_mutex *m)
{
    rouse_mutex_init(&m->mutex, NULL);
}

static inline void bench_mutex_lock(struct bench_mutex *m)
{
    rouse_mutex_lock(&m->mutex);
}

static inline void bench_mutex_unlock(struct bench_mutex *m)
{
    rouse_mutex_unlock(&m->mutex);
}

static inline long bench_recv(int fd, void *buffer, size_t bytes)
{
    return rouse_recv(fd, buffer, bytes, 0);
}

static inline long bench_send(int fd, const void *buffer, size_t bytes)
{
    return rouse_send(fd, buffer, bytes, 0);
}

#endif
