/* SPDX-License-Identifier: MIT */
/*
 * mutex.c - pthread_mutex_lock and its kin.
 *
 * A free mutex costs a trylock instead of a lock, and two words that say where this thread acquired it. For every type
 * of mutex, trylock returns what lock would return, or EBUSY. On EBUSY libc's own lock is called, which sleeps, or
 * reports that this thread holds the mutex already.
 *
 * The wake-up happens inside libc's unlock. In glibc, on which this file depends, the lock word is 0 (free), 1 (held)
 * or 2 (held, and some thread may wait). So we see that a thread waits, but not which one: record/waiters.c infers it.
 * Kinds whose lock word holds a thread id (priority-inheriting, robust) are not read this way, so their wakers are
 * unknown.
 */
#include "hooks/mutex.h"

#include "hooks/deadline.h"
#include "obs/site.h"
#include "os/os.h"
#include "process/real.h"
#include "process/tuning.h"
#include "record/hold.h"
#include "record/init_site.h"
#include "record/wait.h"
#include "record/waiters.h"

/* Bits of glibc's __kind: robust, PTHREAD_PRIO_INHERIT, PTHREAD_PRIO_PROTECT. */
#define NO_SPIN_KINDS (16 | 32 | 64)
#define PAUSES_FIRST 4u /* pause instructions before the first try; doubled before each next one */
#define PAUSES_MOST 64u

enum call { LOCK, TIMED, CLOCK };

/* Whether its owner may lock it again. */
static bool is_nesting(const pthread_mutex_t *m)
{
    return (m->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP;
}

/* From the result of the call. A robust mutex may be acquired from a thread that died with it. */
RSI_INLINE bool is_acquired(int result)
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

static bool try(pthread_mutex_t *m, uint64_t until_ns)
{
    for (unsigned pauses = PAUSES_FIRST;;
         pauses = pauses < PAUSES_MOST ? 2 * pauses : PAUSES_MOST) {
        for (unsigned i = 0; i < pauses; i++)
            rsi_cpu_relax();
        if (rsi_load_relaxed(&m->__data.__lock) == 0 && rpi_real.pthread_mutex_trylock(m) == 0)
            return true;
        if (rpi_thread_waits(rsi_load_relaxed(&m->__data.__owner)) || rsi_now_ns() >= until_ns)
            return false;
    }
}

/*
 * Spin for m, which another thread held at contest->since, for at most rpi_tuning_spin_ns. On success, count the
 * contest. On failure, set contest->spin_ticks and return false. A thread that spins first loses no place in a queue,
 * since glibc's mutexes have none.
 * Mutexes that inherit or protect priority are not spun for, since their holder may need this very processor, and
 * neither are robust ones. The thread stops spinning when the holder is known to wait, since it cannot unlock then.
 */
static bool spin(struct rpi_thread *self, pthread_mutex_t *m, struct rpi_contest *contest,
                 const void *site)
{
    if (rpi_tuning_spin_ns == 0 || m->__data.__kind & NO_SPIN_KINDS || !rpi_thread_begin(self))
        return false;
    bool is_acquired = try(m, rsi_now_ns() + rpi_tuning_spin_ns);
    uint64_t now = rsi_tsc();
    contest->spin_ticks = now - contest->since;
    if (is_acquired) {
        contest->key.site = rsi_site_of(self->writer, site);
        contest->key.name = rpi_init_site_name(self->writer, m);
        rpi_contest_end(self, contest, true, now, true);
    }
    self->is_busy = false;
    return is_acquired;
}

/* The mutex was held on arrival. */
static RSI_NOINLINE int contend(struct rpi_thread *self, enum call call, pthread_mutex_t *m,
                                clockid_t clock, const struct timespec *until, const void *site)
{
    if (rpi_recording_is_confined())
        return call_real(call, m, clock, until); /* reading the clock may be forbidden too */
    int32_t owner = rsi_load_relaxed(&m->__data.__owner);
    struct rpi_contest contest = { { (uintptr_t)m, 0, (uintptr_t)rpi_thread_holder_site(owner, m),
                                     ROUSE_WAIT_MUTEX, 0 },
                                   rsi_tsc(),
                                   0 };
    struct rpi_wait wait;
    if (owner != self->tid && spin(self, m, &contest, site)) {
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
    /* libc checks the clock first, and the time only if the mutex is held. */
    if (call == CLOCK && rpi_deadline_clock_is_wrong(clock))
        return call_real(call, m, clock, until);
    int result = rpi_real.pthread_mutex_trylock(m);
    if (rsi_likely(is_acquired(result))) {
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

/* Never waits. */
int rpi_mutex_trylock(pthread_mutex_t *m, const void *site)
{
    int result = rpi_real.pthread_mutex_trylock(m);
    if (is_acquired(result) && rpi_self)
        rpi_thread_held_put(rpi_self, m, site);
    if (is_acquired(result) && rsi_unlikely(rpi_hold_is_on))
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

/* Count the hold after the unlock. m may be destroyed by then. */
static RSI_NOINLINE int end_hold(pthread_mutex_t *m, const void *site)
{
    struct rpi_hold_ended ended = rpi_hold_end(rpi_self, m);
    int result = release(m, site);
    rpi_hold_count(&ended);
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
