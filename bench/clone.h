/* SPDX-License-Identifier: MIT */
/*
 * clone.h - the smallest 1:1 thread library: one kernel thread each, made by a bare clone().
 *
 * An adapter of the benchmark that shows the cost of the kernel itself, next to pthreads and user threads.
 * Its threads share their parent's thread-local block (no CLONE_SETTLS): none may enter libc, since
 * two of them in malloc corrupt its per-thread cache. Everything here is made of raw system calls.
 */
#ifndef BENCH_CLONE_H
#define BENCH_CLONE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* This structure is at the top of the thread's own mapping, which join unmaps. */
struct clone_thread {
    /* The kernel sets it to 0 and wakes its futex when the thread has ended. */
    _Atomic uint32_t tid;
    void *(*fn)(void *);
    void *arg;
    void *mapping;
    size_t mapping_bytes;
};

/* Returns 0, -ENOMEM or -EAGAIN; on error nothing is left behind. */
int clone_thread_create(struct clone_thread **out, void *(*fn)(void *), void *arg,
                        size_t stack_bytes);
void clone_thread_join(struct clone_thread *t);
void clone_thread_yield(void);

struct clone_spin {
    _Atomic uint32_t held;
};
void clone_spin_lock(struct clone_spin *s);
void clone_spin_unlock(struct clone_spin *s);

/* 0 free, 1 held, 2 held and perhaps waited for. Source: Drepper, "Futexes Are Tricky", mutex2. */
struct clone_mutex {
    _Atomic uint32_t state;
};
void clone_mutex_lock(struct clone_mutex *m);
void clone_mutex_unlock(struct clone_mutex *m);

struct clone_sem {
    _Atomic uint32_t count;
    _Atomic uint32_t waiting;
};
void clone_sem_wait(struct clone_sem *s);
void clone_sem_post(struct clone_sem *s);

#endif
