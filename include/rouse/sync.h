/* SPDX-License-Identifier: MIT */
/*
 * rouse/sync.h - mutex, condition variable, reader-writer lock, semaphore, barrier, once.
 *
 * All may be used from every kind of thread, foreign kernel threads included, in any mix; a wait stops
 * the calling thread only. All are ready when set by their _INIT macro or an init call, and all but the
 * barrier, which must be told its parties, when zeroed. They need no destroy; destroy checks that nobody
 * uses the object. Misuse that can be seen (unlock by another thread, relocking by the owner, destroying
 * while held or waited for) ends the program with one line. None of them works across processes. Fields
 * are private.
 *
 * Suffixes: _try never blocks and returns -EBUSY (semaphores: -EAGAIN) where it would; _until gives up
 * at deadline_ns (absolute CLOCK_MONOTONIC; ROUSE_FOREVER: never; a past value: one attempt) with
 * -ETIMEDOUT, and returns -ECANCELED when the caller is cancelled; after either nothing is held.
 */
#ifndef ROUSE_SYNC_H
#define ROUSE_SYNC_H

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Threads that wait for an object, oldest first. */
struct rouse_waiters {
    struct rouse_thread *first, *last;
};

/*
 * Mutex. A thread that finds it held spins while the holder runs on another worker, for a bounded time,
 * then sleeps. A newcomer may overtake a sleeper until the sleeper has waited 1 ms; then the mutex is
 * handed to it. lock is not a cancellation point. Success acquires all that the last owner did.
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
 * Condition variable. wait releases m, sleeps, and holds m again when it returns, whatever it returns.
 * There are no spurious wake-ups of ours; a woken thread may still find its condition taken by another.
 * The _while forms wait as long as predicate(arg), called with m held, is true: the runtime then knows
 * which wake-ups were of no use. All waiters use the same mutex at a time, else the program ends.
 * Returns 0, -ECANCELED, and _until: -ETIMEDOUT (the _while form: only if the predicate is still true).
 * signal and broadcast may be called with or without m held; signal wakes the longest waiter.
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
 * Reader-writer lock. Readers that come while a writer waits go behind it, and the readers that wait
 * when a writer leaves all go before the next writer: neither side starves, and no reader waits for a
 * reader. A thread may not take it twice for reading (a writer between would wait for itself).
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
 * Counting semaphore, first come first served. A post hands its unit to the longest waiter.
 * wait and wait_until return 0 or -ECANCELED, _until -ETIMEDOUT; _try -EAGAIN; post 0 or -EOVERFLOW.
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
uint32_t rouse_sem_value(const struct rouse_sem *s); /* old news as soon as it is told */
void rouse_sem_destroy(struct rouse_sem *s);

/*
 * Barrier for parties threads. wait returns 1 for one of them, the last to come, 0 for the others;
 * _until -ETIMEDOUT or -ECANCELED, and then its arrival is taken back; _try succeeds only for the last.
 * Set it by ROUSE_BARRIER_INIT or rouse_barrier_init: a zeroed one has 0 parties and stops nobody.
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
 * Run fn(arg) once: the first caller runs it, the others wait until it has returned and see all it did.
 * _try: -EBUSY while another runs it. _until: -ETIMEDOUT, -ECANCELED for a waiter. A second call after
 * completion costs one load. Calling it from within fn is fatal. fn must return.
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
