/* SPDX-License-Identifier: MIT */
/*
 * spin.c - pthread_spin_lock and its variants.
 *
 * No thread sleeps, so the time counts as the caller's running time and as contention of the lock.
 */
#include "obs/site.h"
#include "process/real.h"
#include "record/contest.h"
#include "record/hold.h"
#include "record/init_site.h"

static RSI_NOINLINE int spin(pthread_spinlock_t *l, const void *site)
{
    struct rpi_thread *self = rpi_self;
    struct rpi_contest contest = { .key = { (uintptr_t)l, 0, 0, RSI_STORE_LOCK_SPIN, 0 } };
    if ((!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return rpi_real.pthread_spin_lock(l);
    contest.since = rsi_tsc(); /* not before: reading it may be forbidden */
    contest.key.site = rsi_site_of(self->writer, site);
    contest.key.name = rpi_init_site_name(self->writer, (const void *)l);
    int result = rpi_real.pthread_spin_lock(l);
    rpi_contest_end(self, &contest, result == 0, rsi_tsc(), true);
    self->is_busy = false;
    return result;
}

RSI_INLINE int try(pthread_spinlock_t *l, const void *site)
{
    rpi_real_find();
    int result = rpi_real.pthread_spin_trylock(l);
    struct rpi_thread *self = rpi_self;
    if (result == 0 && (self || (self = rpi_thread_enter())))
        rpi_hold_acquired(self, &self->held[rpi_thread_held_at((const void *)l)], (const void *)l,
                          (enum rouse_wait_kind)RSI_STORE_LOCK_SPIN, site);
    return result;
}

RPI_EXPORT RSI_NOINLINE int pthread_spin_lock(pthread_spinlock_t *l)
{
    int result = try(l, RSI_CALLER());
    return result == EBUSY ? spin(l, RSI_CALLER()) : result;
}

RPI_EXPORT RSI_NOINLINE int pthread_spin_trylock(pthread_spinlock_t *l)
{
    return try(l, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_spin_unlock(pthread_spinlock_t *l)
{
    rpi_real_find();
    if (rsi_likely(!rpi_hold_is_timed(rpi_self)))
        return rpi_real.pthread_spin_unlock(l);
    struct rpi_hold_ended ended = rpi_hold_end(rpi_self, (const void *)l);
    int result = rpi_real.pthread_spin_unlock(l);
    rpi_hold_count(&ended);
    return result;
}
