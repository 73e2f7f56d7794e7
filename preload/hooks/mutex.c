/* SPDX-License-Identifier: MIT */
/*
 * mutex.c - pthread_mutex_lock and its variants.
 *
 * A free mutex costs a trylock instead of a lock, and two words that say where this thread acquired it. For every type
 * of mutex, trylock returns what lock would return, or EBUSY.
 *
 * A thread that finds the mutex held sleeps in hooks/acquire.c, by glibc's protocol, since other threads may wait or
 * unlock inside libc, as pthread_cond_wait does. This file depends on that protocol:
 *   the lock word is 0 (free), 1 (held) or 2 (held, and some thread may sleep);
 *   a thread sleeps only while the word is 2;
 *   an unlock that replaces 2 by 0 wakes one thread;
 *   a thread that was woken sets 2 before it unlocks or sleeps again, since others may still sleep.
 * We see that a thread waits, but not which one is woken: record/waiters.c infers it.
 *
 * Robust and priority-inheriting mutexes, whose word holds a thread id, those that protect priority, and elided ones
 * wait in libc. Their wakers are unknown, except of elided ones. All wait there if libc uses other words, or if another
 * library replaces libc's mutexes.
 */
#include "hooks/mutex.h"

#include "hooks/acquire.h"
#include "hooks/deadline.h"
#include "obs/site.h"
#include "os/os.h"
#include "process/real.h"
#include "process/tuning.h"
#include "record/hold.h"
#include "record/init_site.h"
#include "record/outside_wake.h"
#include "record/sample.h"
#include "record/wait.h"
#include "record/waiters.h"

/* Bits of glibc's __kind. */
#define ROBUST 16
#define INHERITS 32
#define PROTECTS 64
#define IS_SHARED 128
#define ELIDES 256
#define NO_SPIN_KINDS (ROBUST | INHERITS | PROTECTS)
#define LIBC_KINDS (NO_SPIN_KINDS | ELIDES)

/* Values of the lock word: held, and held while some thread may sleep. */
#define HELD 1u
#define AWAITED 2u

/* As glibc: an adaptive mutex is tried at most so often before the thread sleeps. */
#define ADAPTIVE_MOST 100

#define PAUSES_FIRST 4u /* pause instructions before the first try; doubled before each next one */
#define PAUSES_MOST 64u

enum call { LOCK, TIMED, CLOCK };

/* Whether its owner may lock it again. */
static bool is_nesting(const pthread_mutex_t *m)
{
    return (m->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP;
}

/* Whether libc refuses to lock it again for its owner, which would wait for ever. */
static bool is_checked(const pthread_mutex_t *m)
{
    return (m->__data.__kind & 3) == PTHREAD_MUTEX_ERRORCHECK_NP;
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

static bool is_adaptive(const pthread_mutex_t *m)
{
    return (m->__data.__kind & (3 | LIBC_KINDS)) == PTHREAD_MUTEX_ADAPTIVE_NP;
}

/* Try as often as glibc would, by a running mean of how many tries have sufficed. */
static bool try_adaptive(pthread_mutex_t *m)
{
    int mean = m->__data.__spins, tries = 0;
    int most = mean * 2 + 10 < ADAPTIVE_MOST ? mean * 2 + 10 : ADAPTIVE_MOST;
    bool is_acquired = false;
    while (!is_acquired && tries++ < most) {
        rsi_cpu_relax();
        is_acquired = rpi_real.pthread_mutex_trylock(m) == 0;
    }
    m->__data.__spins = (__typeof__(m->__data.__spins))(mean + (tries - mean) / 8);
    return is_acquired;
}

/*
 * Spin for m, which another thread held at contest->since: for at most rpi_tuning_spin_ns if that is set, else only for
 * an adaptive mutex, as libc does. On success, count the contest. On failure, set contest->spin_ticks and return
 * false. A thread that spins first loses no place in a queue, since glibc's mutexes have none.
 * Mutexes that inherit or protect priority are not spun for, since their holder may need this very processor, and
 * neither are robust ones. The thread stops spinning when the holder is known to wait, since it cannot unlock then.
 */
static bool spin(struct rpi_thread *self, pthread_mutex_t *m, struct rpi_contest *contest,
                 const void *site)
{
    bool is_tuned = rpi_tuning_spin_ns != 0 && !(m->__data.__kind & NO_SPIN_KINDS);
    if ((!is_tuned && !is_adaptive(m)) || !rpi_thread_begin(self))
        return false;
    bool is_acquired = is_tuned ? try(m, rsi_now_ns() + rpi_tuning_spin_ns) : try_adaptive(m);
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

/* Whether mutexes are libc's, and have the words that this file expects. Asked once. */
static bool knows_words(void)
{
    static uint32_t answer; /* 0: not asked yet; 1: yes; 2: no */
    if (rsi_likely(rsi_load_relaxed(&answer) != 0))
        return rsi_load_relaxed(&answer) == 1;
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    rpi_real_find();
    bool knows = rpi_real.mutexes_are_libc && rpi_real.pthread_mutex_trylock(&m) == 0 &&
                 (uint32_t)m.__data.__lock == HELD && m.__data.__owner == (int)rsi_gettid();
    m.__data.__lock = (int)AWAITED;
    knows = knows && rpi_real.pthread_mutex_unlock(&m) == 0 && m.__data.__lock == 0;
    rsi_store_relaxed(&answer, knows ? 1u : 2u);
    return knows;
}

static int try_of(struct rpi_acquire *a)
{
    pthread_mutex_t *m = (pthread_mutex_t *)(uintptr_t)a->object;
    int result = rpi_real.pthread_mutex_trylock(m);
    if (result == 0 && a->was_woken) /* others would only store the same */
        rsi_store_relaxed((uint32_t *)&m->__data.__lock, AWAITED);
    return result;
}

static int sleep_of(struct rpi_acquire *a)
{
    pthread_mutex_t *m = (pthread_mutex_t *)(uintptr_t)a->object;
    uint32_t *word = (uint32_t *)&m->__data.__lock, state = rsi_load_relaxed(word);
    /* Relaxed: the kernel compares the word again, under a lock that futex_wake takes too. */
    while (state == HELD && !rsi_cas_relaxed(word, &state, AWAITED))
        continue;
    return state == 0 ? -EAGAIN : rpi_acquire_sleep(a, word, AWAITED);
}

/* Wait for m. Returns EBUSY if the kernel refuses to wait, else what pthread_mutex_lock would. */
static int wait_here(enum call call, pthread_mutex_t *m, clockid_t clock,
                     const struct timespec *until, struct rpi_contest *contest, const void *site)
{
    struct rpi_acquire acquire = {
        .kind = ROUSE_WAIT_MUTEX,
        .object = m,
        .site = site,
        .until = call == LOCK ? NULL : until,
        .is_realtime = call == TIMED || (call == CLOCK && clock == CLOCK_REALTIME),
        .is_shared = m->__data.__kind & IS_SHARED,
        .owner = &m->__data.__owner,
        .try = try_of,
        .sleep = sleep_of,
    };
    return rpi_acquire(&acquire, contest);
}

/* Wait for m inside libc: one record for the whole call. */
static int wait_in_libc(enum call call, pthread_mutex_t *m, clockid_t clock,
                        const struct timespec *until, struct rpi_contest *contest, const void *site)
{
    struct rpi_wait wait;
    bool is_recorded = rpi_wait_begin(&wait, ROUSE_WAIT_MUTEX, m, site);
    if (is_recorded)
        rpi_wait_show(&wait, contest);
    int result = call_real(call, m, clock, until);
    if (is_recorded)
        (void)rpi_wait_end(&wait, rpi_wait_verdict(result), contest);
    return result;
}

/* The mutex was held on arrival. */
static RSI_NOINLINE int contend(struct rpi_thread *self, enum call call, pthread_mutex_t *m,
                                clockid_t clock, const struct timespec *until, const void *site)
{
    int32_t owner = rsi_load_relaxed(&m->__data.__owner);
    bool is_own = owner == self->tid;
    /* libc returns at once, or the call is not recorded: reading our clock may be forbidden too. */
    if ((call != LOCK && (rpi_deadline_is_wrong(clock, until) || until->tv_sec < 0)) ||
        (is_own && is_checked(m)) || rpi_recording_is_confined())
        return call_real(call, m, clock, until);
    struct rpi_contest contest = { .key = { (uintptr_t)m, 0,
                                            (uintptr_t)rpi_thread_holder_site(owner, m),
                                            ROUSE_WAIT_MUTEX, 0 },
                                   .since = rsi_tsc(),
                                   .holder_tid = m->__data.__kind & IS_SHARED ? 0 : owner };
    int result = !is_own && spin(self, m, &contest, site) ? 0 : EBUSY;
    if (result == EBUSY && !(m->__data.__kind & LIBC_KINDS) && knows_words())
        result = wait_here(call, m, clock, until, &contest, site);
    if (result == EBUSY)
        result = wait_in_libc(call, m, clock, until, &contest, site);
    /* The record of the contest has walked the stack, which others show as the holder's. */
    if (is_acquired(result))
        (void)rpi_thread_held_put(
            self, m, contest.key.site ? (const void *)(uintptr_t)contest.key.site : site);
    return result;
}

/* Whether the caller, which has locked m, had locked it before. */
static bool is_nested(const pthread_mutex_t *m)
{
    return is_nesting(m) && m->__data.__count > 1;
}

RSI_INLINE void note_free(struct rpi_thread *self, pthread_mutex_t *m, const void *site)
{
    struct rpi_held *held = rpi_thread_held_put(self, m, site);
    if (rsi_likely(--held->gap > 0))
        return;
    if (is_nested(m))
        (void)rpi_sample_next(self, held); /* it is no acquisition of its own */
    else
        rpi_hold_begin(self, held, m, ROUSE_WAIT_MUTEX, site);
}

void rpi_mutex_hold(struct rpi_thread *self, pthread_mutex_t *m, const void *site)
{
    note_free(self, m, site);
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
        note_free(self, m, site);
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
    struct rpi_thread *self = rpi_self;
    if (is_acquired(result) && (self || (self = rpi_thread_enter())))
        note_free(self, m, site);
    return result;
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_trylock(pthread_mutex_t *m)
{
    return rpi_mutex_trylock(m, RSI_CALLER());
}

static bool is_awaited(const pthread_mutex_t *m)
{
    return (uint32_t)rsi_load_relaxed(&m->__data.__lock) == AWAITED;
}

void rpi_mutex_note_unlock(pthread_mutex_t *m, const void *site)
{
    if (rsi_likely(!is_awaited(m)))
        return;
    rpi_waiters_note_wake(m, RPI_WAKES_ONE, site);
    if (m->__data.__kind & IS_SHARED)
        rpi_outside_note(rpi_outside_object(m), site);
}

static RSI_NOINLINE int wake(pthread_mutex_t *m, const void *site)
{
    struct rpi_thread *self = rpi_self;
    rpi_mutex_note_unlock(m, site);
    if (self && rpi_waiters_may_await(self) && rpi_thread_begin(self)) {
        rpi_waiters_release(self, m, (uintptr_t)site);
        self->is_busy = false;
    }
    return rpi_real.pthread_mutex_unlock(m);
}

RSI_INLINE int release(pthread_mutex_t *m, const void *site)
{
    return rsi_unlikely(is_awaited(m)) ? wake(m, site) : rpi_real.pthread_mutex_unlock(m);
}

/* Count the hold after the unlock. m may be destroyed by then. */
static RSI_NOINLINE int end_hold(pthread_mutex_t *m, const void *site)
{
    if (is_nested(m))
        return release(m, site);
    struct rpi_hold_ended ended = rpi_hold_end(rpi_self, m);
    int result = release(m, site);
    rpi_hold_count(&ended);
    return result;
}

RSI_INLINE int unlock(pthread_mutex_t *m, const void *site)
{
    if (rsi_unlikely(m == rpi_tuning_delayed))
        rpi_tuning_delay();
    return rsi_unlikely(rpi_hold_is_timed(rpi_self)) ? end_hold(m, site) : release(m, site);
}

int rpi_mutex_unlock(pthread_mutex_t *m, const void *site)
{
    return unlock(m, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_mutex_unlock(pthread_mutex_t *m)
{
    return unlock(m, RSI_CALLER());
}
