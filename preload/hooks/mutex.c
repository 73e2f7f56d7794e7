/* SPDX-License-Identifier: MIT */
/*
 * mutex.c - pthread_mutex_lock and its kin.
 *
 * A free mutex costs a trylock in the place of a lock, and two words that say where this thread got it. For each type
 * of mutex the two agree on all that they return but EBUSY, and then libc's own lock is called: it sleeps, or says
 * that this thread has it already.
 *
 * The wake-up lies inside libc's unlock. Seen is that somebody waits, by the lock word being 2, as it has been since
 * mutexes are futexes; whom it wakes is inferred (queue.c). Those of kinds with a thread's number in that word
 * (priority-inheriting, robust) say nothing: their waker is not known.
 */
#include "preload.h"

enum call { LOCK, TIMED, CLOCK };

/* Its owner may lock it again. */
static bool is_nesting(const pthread_mutex_t *m)
{
    return (m->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP;
}

/* By what its call returned; a robust one may come from a thread that ended with it. */
RSI_INLINE bool is_got(int result)
{
    return result == 0 || result == EOWNERDEAD;
}

static int call_real(enum call call, pthread_mutex_t *m, clockid_t clock,
                     const struct timespec *until)
{
    if (call == LOCK)
        return rpi_real.pthread_mutex_lock(m);
    rpi_real_find();
    return call == TIMED ? rpi_real.pthread_mutex_timedlock(m, until)
                         : rpi_real.pthread_mutex_clocklock(m, clock, until);
}

/* It was held on arrival. */
static RSI_NOINLINE int contend(struct rpi_thread *self, enum call call, pthread_mutex_t *m,
                                clockid_t clock, const struct timespec *until, const void *site)
{
    if (rpi_recording_is_confined())
        return call_real(call, m, clock, until); /* there may be no time stamps either */
    int32_t owner = rsi_load_relaxed(&m->__data.__owner);
    struct rpi_contest contest = { { (uintptr_t)m, 0, (uintptr_t)rpi_thread_holder_site(owner, m),
                                     ROUSE_WAIT_MUTEX, 0 },
                                   rsi_tsc(),
                                   0 };
    struct rpi_wait wait;
    if (owner != self->tid && rpi_tuning_spin(self, m, &contest, site)) {
        rpi_thread_held_put(self, m, site);
        return 0;
    }
    if (owner == self->tid || !rpi_wait_begin(&wait, ROUSE_WAIT_MUTEX, m, site))
        return call_real(call, m, clock, until);
    int result = call_real(call, m, clock, until);
    enum rouse_verdict verdict = rpi_wait_verdict(result);
    if (rpi_wait_end(&wait, verdict, &contest) && verdict == ROUSE_VERDICT_USEFUL)
        rpi_thread_held_put(self, m, site);
    return result;
}

void rpi_mutex_hold(pthread_mutex_t *m, const void *site)
{
    rpi_hold_begin(m, ROUSE_WAIT_MUTEX, is_nesting(m), site);
}

RSI_INLINE int lock(enum call call, pthread_mutex_t *m, clockid_t clock,
                    const struct timespec *until, const void *site)
{
    struct rpi_thread *self = rpi_self;
    if (rsi_unlikely(!self) && !(self = rpi_thread_enter()))
        return call_real(call, m, clock, until);
    if (call == CLOCK &&
        rpi_deadline_clock_is_wrong(clock)) /* times matter to libc only if it is held */
        return call_real(call, m, clock, until);
    int result = rpi_real.pthread_mutex_trylock(m);
    if (rsi_likely(is_got(result))) {
        rpi_thread_held_put(self, m, site);
        if (rsi_unlikely(rpi_hold_is_on))
            rpi_mutex_hold(m, site);
        return result;
    }
    return rsi_likely(result != EBUSY) ? result : contend(self, call, m, clock, until, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_lock(pthread_mutex_t *m)
{
    return lock(LOCK, m, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_timedlock(pthread_mutex_t *m,
                                                    const struct timespec *until)
{
    return lock(TIMED, m, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock,
                                                    const struct timespec *until)
{
    return lock(CLOCK, m, clock, until, RSI_CALLER());
}

int rpi_mutex_lock(pthread_mutex_t *m, const struct timespec *until, const void *site)
{
    return lock(until ? TIMED : LOCK, m, 0, until, site);
}

/* It never waits. */
int rpi_mutex_trylock(pthread_mutex_t *m, const void *site)
{
    int result = rpi_real.pthread_mutex_trylock(m);
    if (is_got(result) && rpi_self)
        rpi_thread_held_put(rpi_self, m, site);
    if (is_got(result) && rsi_unlikely(rpi_hold_is_on))
        rpi_mutex_hold(m, site);
    return result;
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_trylock(pthread_mutex_t *m)
{
    return rpi_mutex_trylock(m, RSI_CALLER());
}

static RSI_NOINLINE int wake(pthread_mutex_t *m, const void *site)
{
    rpi_waiters_note_wake(m, RPI_WAKES_HOLDER, site);
    return rpi_real.pthread_mutex_unlock(m);
}

RSI_INLINE int release(pthread_mutex_t *m, const void *site)
{
    return rsi_unlikely(rsi_load_relaxed(&m->__data.__lock) == 2)
               ? wake(m, site)
               : rpi_real.pthread_mutex_unlock(m);
}

/* It is counted when others can have the mutex already, which may be gone by then. */
static RSI_NOINLINE int end_hold(pthread_mutex_t *m, const void *site)
{
    struct rpi_hold_ended past = rpi_hold_end(rpi_self, m);
    int result = release(m, site);
    rpi_hold_count(&past);
    return result;
}

RSI_INLINE int unlock(pthread_mutex_t *m, const void *site)
{
    return rsi_unlikely(rpi_hold_is_on) ? end_hold(m, site) : release(m, site);
}

int rpi_mutex_unlock(pthread_mutex_t *m, const void *site)
{
    return unlock(m, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_unlock(pthread_mutex_t *m)
{
    return unlock(m, RSI_CALLER());
}
