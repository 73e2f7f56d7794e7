/* SPDX-License-Identifier: MIT */
/*
 * rwlock.c - pthread_rwlock_rdlock and its variants.
 *
 * As with a mutex, a try comes first, and libc's own call only for a lock that is held. A writer that holds the lock is
 * identified by the thread id in the lock. Of the readers, the place where the last one acquired it is known
 * (record/reader_site.h). A writer's unlock marks all waiters as woken, a reader's unlock all waiting writers: the last
 * such call before a waiter returns is the one that gave it the lock.
 */
#include "hooks/deadline.h"
#include "process/real.h"
#include "record/hold.h"
#include "record/reader_site.h"
#include "record/wait.h"
#include "record/waiters.h"

enum call { LOCK, TIMED, CLOCK };

/* Note where self acquired the lock, for threads that find it held. Returns its place for the lock. */
RSI_INLINE struct rpi_held *note_acquired(struct rpi_thread *self, bool is_writer,
                                          const pthread_rwlock_t *l, const void *site)
{
    if (is_writer)
        return rpi_thread_held_put(self, l, site);
    rpi_reader_site_put(l, site);
    return &self->held[rpi_thread_held_at(l)];
}

/* The lock was free. A reader may acquire it again, which still is one hold. */
RSI_INLINE int note_free(int result, bool is_writer, const pthread_rwlock_t *l, const void *site)
{
    struct rpi_thread *self = rpi_self;
    if (result != 0 || (!self && !(self = rpi_thread_enter())))
        return result;
    struct rpi_held *held = note_acquired(self, is_writer, l, site);
    if (rsi_likely(!rpi_hold_is_timed(self)) || is_writer || !rpi_hold_nest(self, l))
        rpi_hold_acquired(self, held, l, is_writer ? ROUSE_WAIT_WRITE_LOCK : ROUSE_WAIT_READ_LOCK,
                          site);
    return result;
}

/* Where the thread that holds l acquired it: its writer, or else its last reader. NULL: not known. */
static const void *holder_site(const pthread_rwlock_t *l)
{
    int32_t writer = rsi_load_relaxed(&l->__data.__cur_writer);
    return writer ? rpi_thread_holder_site(writer, l) : rpi_reader_site_of(l);
}

static int call_real(bool is_writer, enum call call, pthread_rwlock_t *l, clockid_t clock,
                     const struct timespec *until)
{
    if (call == LOCK)
        return is_writer ? rpi_real.pthread_rwlock_wrlock(l) : rpi_real.pthread_rwlock_rdlock(l);
    if (call == TIMED)
        return is_writer ? rpi_real.pthread_rwlock_timedwrlock(l, until)
                         : rpi_real.pthread_rwlock_timedrdlock(l, until);
    return is_writer ? rpi_real.pthread_rwlock_clockwrlock(l, clock, until)
                     : rpi_real.pthread_rwlock_clockrdlock(l, clock, until);
}

/* The lock was held on arrival. */
static RSI_NOINLINE int contend(bool is_writer, enum call call, pthread_rwlock_t *l,
                                clockid_t clock, const struct timespec *until, const void *site)
{
    if (rpi_recording_is_confined())
        return call_real(is_writer, call, l, clock, until);
    enum rouse_wait_kind kind = is_writer ? ROUSE_WAIT_WRITE_LOCK : ROUSE_WAIT_READ_LOCK;
    struct rpi_contest contest = { .key = { (uintptr_t)l, 0, (uintptr_t)holder_site(l), kind, 0 },
                                   .since = rsi_tsc(),
                                   .holder_tid = l->__data.__shared
                                                     ? 0
                                                     : rsi_load_relaxed(&l->__data.__cur_writer) };
    struct rpi_wait wait;
    if (!rpi_wait_begin(&wait, kind, l, site))
        return call_real(is_writer, call, l, clock, until);
    rpi_wait_show(&wait, &contest);
    int result = call_real(is_writer, call, l, clock, until);
    rpi_wait_end(&wait, rpi_wait_verdict(result), &contest);
    if (result == 0)
        (void)note_acquired(wait.self, is_writer, l, site);
    return result;
}

RSI_INLINE int lock(bool is_writer, enum call call, pthread_rwlock_t *l, clockid_t clock,
                    const struct timespec *until, const void *site)
{
    rpi_real_find();
    /* libc refuses these even for a free lock. */
    if (call != LOCK && rpi_deadline_is_wrong(clock, until))
        return call_real(is_writer, call, l, clock, until);
    int result = is_writer ? rpi_real.pthread_rwlock_trywrlock(l)
                           : rpi_real.pthread_rwlock_tryrdlock(l);
    return rsi_likely(result != EBUSY) ? note_free(result, is_writer, l, site)
                                       : contend(is_writer, call, l, clock, until, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
    return lock(false, LOCK, l, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_timedrdlock(pthread_rwlock_t *l,
                                                       const struct timespec *until)
{
    return lock(false, TIMED, l, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_clockrdlock(pthread_rwlock_t *l, clockid_t clock,
                                                       const struct timespec *until)
{
    return lock(false, CLOCK, l, clock, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
    return lock(true, LOCK, l, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_timedwrlock(pthread_rwlock_t *l,
                                                       const struct timespec *until)
{
    return lock(true, TIMED, l, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_clockwrlock(pthread_rwlock_t *l, clockid_t clock,
                                                       const struct timespec *until)
{
    return lock(true, CLOCK, l, clock, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_tryrdlock(pthread_rwlock_t *l)
{
    rpi_real_find();
    return note_free(rpi_real.pthread_rwlock_tryrdlock(l), false, l, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_trywrlock(pthread_rwlock_t *l)
{
    rpi_real_find();
    return note_free(rpi_real.pthread_rwlock_trywrlock(l), true, l, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_unlock(pthread_rwlock_t *l)
{
    rpi_real_find();
    struct rpi_hold_ended ended = { 0 };
    if (rsi_unlikely(rpi_hold_is_timed(rpi_self)))
        ended = rpi_hold_end(rpi_self, l);
    bool is_writer = rsi_load_relaxed(&l->__data.__cur_writer) != 0;
    rpi_waiters_note_wake(l, is_writer ? RPI_WAKES_ALL_ANEW : RPI_WAKES_WRITERS_ANEW, RSI_CALLER());
    int result = rpi_real.pthread_rwlock_unlock(l);
    if (rsi_unlikely(ended.row))
        rpi_hold_count(&ended);
    return result;
}
