/* SPDX-License-Identifier: MIT */
/*
 * rouse/sync.h - mutex, condition variable, reader-writer lock, semaphore, barrier, once.
 *
 * Every kind of thread may use them, foreign kernel threads included, in any mix. A wait stops only the calling
 * thread. Their fields are private. They do not work across processes.
 *
 * Initialize an object with its _INIT macro or its init call. Zeroed memory is also valid, except for the barrier,
 * which needs its number of parties. No destroy call is needed; destroy checks that the object is unused.
 * Detectable misuse (unlock by another thread, relocking by the owner, destroying an object that is held or
 * waited for) ends the program with one line on standard error.
 *
 * Suffixes: _try never blocks and returns -EBUSY (semaphores: -EAGAIN) where it would block. _until gives up at
 * deadline_ns (absolute CLOCK_MONOTONIC, ns; ROUSE_FOREVER: never; a past value: one attempt) with -ETIMEDOUT, and
 * returns -ECANCELED if the caller is cancelled. In both cases the caller holds nothing.
 *
 * name, in the _INIT_NAMED macros and the init calls, appears in reports. It is not copied. NULL: no name.
 */
#ifndef ROUSE_SYNC_H
#define ROUSE_SYNC_H

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The threads that wait for an object, the longest waiter first. */
struct rouse_waiters {
    struct rouse_thread *first, *last;
};

/*
 * Mutex.
 *
 * A thread that finds it held spins for a bounded time while the owner runs on another worker, then sleeps.
 * Fairness  a newcomer may overtake a sleeper until the sleeper has waited 1 ms; then the mutex is handed to it.
 * Cancel    lock is not cancelled.
 * Ordering  success acquires everything that the previous owner did before its unlock.
 */
struct rouse_mutex {
    uint32_t state;
    uint32_t guard;
    struct rouse_waiters waiters;
    struct rouse_thread *owner;
    const void *acquire_site;
    const char *name;
};
#define ROUSE_MUTEX_INIT \
    { \
        0, 0, { NULL, NULL }, NULL, NULL, NULL \
    }
#define ROUSE_MUTEX_INIT_NAMED(text) \
    { \
        0, 0, { NULL, NULL }, NULL, NULL, (text) \
    }

void rouse_mutex_init(struct rouse_mutex *m, const char *name);
void rouse_mutex_lock(struct rouse_mutex *m);
int rouse_mutex_lock_try(struct rouse_mutex *m);
int rouse_mutex_lock_until(struct rouse_mutex *m, uint64_t deadline_ns);
void rouse_mutex_unlock(struct rouse_mutex *m);
void rouse_mutex_destroy(struct rouse_mutex *m);

/*
 * Condition variable.
 *
 * wait releases m, sleeps, and holds m again when it returns, whatever it returns. The runtime itself causes no
 * spurious wake-ups, but another thread may have changed the condition before the woken thread runs. The _while
 * forms wait as long as predicate(arg), called with m held, is true; with them the runtime can tell which wake-ups
 * were of no use. All threads that wait at the same time must pass the same mutex, or the program ends.
 *
 * signal wakes the thread that has waited longest. signal and broadcast may be called with or without m held.
 * Returns  0; -ECANCELED; _until: -ETIMEDOUT (_while_until: only if the predicate is still true).
 */
struct rouse_cond {
    uint32_t guard;
    uint32_t waiting;
    struct rouse_waiters waiters;
    struct rouse_mutex *mutex;
    const char *name;
};
#define ROUSE_COND_INIT \
    { \
        0, 0, { NULL, NULL }, NULL, NULL \
    }
#define ROUSE_COND_INIT_NAMED(text) \
    { \
        0, 0, { NULL, NULL }, NULL, (text) \
    }

void rouse_cond_init(struct rouse_cond *c, const char *name);
int rouse_cond_wait(struct rouse_cond *c, struct rouse_mutex *m);
int rouse_cond_wait_until(struct rouse_cond *c, struct rouse_mutex *m, uint64_t deadline_ns);
int rouse_cond_wait_while(struct rouse_cond *c, struct rouse_mutex *m, bool (*predicate)(void *),
                          void *arg);
int rouse_cond_wait_while_until(struct rouse_cond *c, struct rouse_mutex *m,
                                bool (*predicate)(void *), void *arg, uint64_t deadline_ns);
void rouse_cond_signal(struct rouse_cond *c);
void rouse_cond_broadcast(struct rouse_cond *c);
void rouse_cond_destroy(struct rouse_cond *c);

/*
 * Reader-writer lock.
 *
 * Fairness  readers that arrive while a writer waits queue behind it. When a writer releases the lock, all readers
 *           that wait then acquire it before the next writer. So neither side starves.
 * A thread must not lock it twice for reading: a writer that waits in between would deadlock with it.
 */
struct rouse_rwlock {
    uint32_t state;
    uint32_t guard;
    struct rouse_waiters waiters;
    struct rouse_thread *owner; /* the writer */
    const void *acquire_site;
    const char *name;
};
#define ROUSE_RWLOCK_INIT \
    { \
        0, 0, { NULL, NULL }, NULL, NULL, NULL \
    }
#define ROUSE_RWLOCK_INIT_NAMED(text) \
    { \
        0, 0, { NULL, NULL }, NULL, NULL, (text) \
    }

void rouse_rwlock_init(struct rouse_rwlock *l, const char *name);
void rouse_rwlock_read_lock(struct rouse_rwlock *l);
int rouse_rwlock_read_lock_try(struct rouse_rwlock *l);
int rouse_rwlock_read_lock_until(struct rouse_rwlock *l, uint64_t deadline_ns);
void rouse_rwlock_read_unlock(struct rouse_rwlock *l);
void rouse_rwlock_write_lock(struct rouse_rwlock *l);
int rouse_rwlock_write_lock_try(struct rouse_rwlock *l);
int rouse_rwlock_write_lock_until(struct rouse_rwlock *l, uint64_t deadline_ns);
void rouse_rwlock_write_unlock(struct rouse_rwlock *l);
void rouse_rwlock_destroy(struct rouse_rwlock *l);

/*
 * Counting semaphore. Fairness: first come, first served; a post hands its unit to the thread that has waited
 * longest.
 *
 * Returns  wait: 0 or -ECANCELED; wait_until also -ETIMEDOUT; wait_try: 0 or -EAGAIN; post: 0 or -EOVERFLOW.
 */
struct rouse_sem {
    uint32_t count;
    uint32_t guard;
    struct rouse_waiters waiters;
    const char *name;
};
#define ROUSE_SEM_INIT(units) \
    { \
        (units), 0, { NULL, NULL }, NULL \
    }
#define ROUSE_SEM_INIT_NAMED(units, text) \
    { \
        (units), 0, { NULL, NULL }, (text) \
    }

void rouse_sem_init(struct rouse_sem *s, uint32_t units, const char *name);
int rouse_sem_wait(struct rouse_sem *s);
int rouse_sem_wait_try(struct rouse_sem *s);
int rouse_sem_wait_until(struct rouse_sem *s, uint64_t deadline_ns);
int rouse_sem_post(struct rouse_sem *s);
/* Return the current number of units, which may already be stale. */
uint32_t rouse_sem_value(const struct rouse_sem *s);
void rouse_sem_destroy(struct rouse_sem *s);

/*
 * Barrier for a fixed number of threads, its parties. Initialize it: a zeroed barrier has 0 parties and stops no
 * thread.
 *
 * Returns  wait: 1 for the last thread to arrive, 0 for the others. _until: also -ETIMEDOUT and -ECANCELED; the
 *          arrival is then taken back. _try: 1 for the last thread, else -EBUSY, which does not count as an arrival.
 */
struct rouse_barrier {
    uint32_t parties;
    uint32_t arrived;
    uint32_t guard;
    uint32_t leaving;
    struct rouse_waiters waiters;
    const char *name;
};
#define ROUSE_BARRIER_INIT(parties) \
    { \
        (parties), 0, 0, 0, { NULL, NULL }, NULL \
    }
#define ROUSE_BARRIER_INIT_NAMED(parties, text) \
    { \
        (parties), 0, 0, 0, { NULL, NULL }, (text) \
    }

void rouse_barrier_init(struct rouse_barrier *b, uint32_t parties, const char *name);
int rouse_barrier_wait(struct rouse_barrier *b);
int rouse_barrier_wait_try(struct rouse_barrier *b);
int rouse_barrier_wait_until(struct rouse_barrier *b, uint64_t deadline_ns);
void rouse_barrier_destroy(struct rouse_barrier *b);

/*
 * Run fn(arg) once. The first caller runs it; the others wait until it has returned, and see everything it did.
 * A call after completion costs one load. fn must return, and must not call rouse_once_call on the same object, which
 * ends the program.
 *
 * Returns  0; _try: -EBUSY while another thread runs fn; _until: -ETIMEDOUT or -ECANCELED for a thread that waits.
 */
struct rouse_once {
    uint32_t state;
    uint32_t guard;
    struct rouse_waiters waiters;
    struct rouse_thread *owner;
    const char *name;
};
#define ROUSE_ONCE_INIT \
    { \
        0, 0, { NULL, NULL }, NULL, NULL \
    }

void rouse_once_call(struct rouse_once *o, void (*fn)(void *), void *arg);
int rouse_once_call_try(struct rouse_once *o, void (*fn)(void *), void *arg);
int rouse_once_call_until(struct rouse_once *o, void (*fn)(void *), void *arg,
                          uint64_t deadline_ns);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
