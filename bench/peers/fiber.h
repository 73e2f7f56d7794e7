/* SPDX-License-Identifier: MIT */
/*
 * fiber.h - impl.h over Boost.Fiber, whose C++ is in fiber.cpp.
 *
 * Both files are built with link-time optimisation, so that a call from one into the other costs no more than
 * a call within one file. The library has no semaphore, so a count with a mutex and a condition variable serves.
 */
#ifndef BENCH_PEERS_FIBER_H
#define BENCH_PEERS_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for the library's objects. fiber.cpp checks that they fit. */
struct bench_thread {
    void *fiber;
};
struct bench_sem {
    uint64_t storage[16];
};
struct bench_mutex {
    uint64_t storage[8];
};

#ifdef __cplusplus
extern "C" {
#endif
int bench_fiber_start(unsigned workers, bool pin, const unsigned *cpus, unsigned cpu_count);
void bench_fiber_stop(void);
int bench_fiber_create(struct bench_thread *t, void *(*fn)(void *), void *arg, size_t stack_bytes);
void bench_fiber_join(struct bench_thread *t);
void bench_fiber_yield(void);
void bench_fiber_sleep_ns(uint64_t ns);
unsigned bench_fiber_worker(void);
void bench_fiber_sem_init(struct bench_sem *s);
void bench_fiber_sem_wait(struct bench_sem *s);
void bench_fiber_sem_post(struct bench_sem *s);
void bench_fiber_mutex_init(struct bench_mutex *m);
void bench_fiber_mutex_lock(struct bench_mutex *m);
void bench_fiber_mutex_unlock(struct bench_mutex *m);
#ifdef __cplusplus
}
#else

#include <time.h>

static inline int bench_thread_create(const struct bench_run *run, struct bench_thread *t,
                                      void *(*fn)(void *), void *arg)
{
    (void)run;
    return bench_fiber_create(t, fn, arg, BENCH_STACK_BYTES);
}

static inline void bench_thread_join(struct bench_thread *t)
{
    bench_fiber_join(t);
}

static inline void bench_thread_yield(void)
{
    bench_fiber_yield();
}

static inline unsigned bench_where(const struct bench_run *run)
{
    (void)run;
    return bench_fiber_worker();
}

static inline uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void bench_sleep_ns(uint64_t ns)
{
    bench_fiber_sleep_ns(ns);
}

static inline void bench_sem_init(struct bench_sem *s)
{
    bench_fiber_sem_init(s);
}

static inline void bench_sem_wait(struct bench_sem *s)
{
    bench_fiber_sem_wait(s);
}

static inline void bench_sem_post(struct bench_sem *s)
{
    bench_fiber_sem_post(s);
}

static inline void bench_mutex_init(struct bench_mutex *m)
{
    bench_fiber_mutex_init(m);
}

static inline void bench_mutex_lock(struct bench_mutex *m)
{
    bench_fiber_mutex_lock(m);
}

static inline void bench_mutex_unlock(struct bench_mutex *m)
{
    bench_fiber_mutex_unlock(m);
}

#endif
#endif
