/* SPDX-License-Identifier: MIT */
/* spin.c - pthread_spin_lock and its kin. No thread sleeps: the time is the caller's own, and that of the lock. */
#include "preload.h"

static RSI_NOINLINE int spin(pthread_spinlock_t *l, const void *site)
{
    struct rsi_party *self = rsi_party_self;
    struct rsi_contest contest = { { (uintptr_t)l, 0, 0, ROUSE_WAIT_MUTEX, 0 }, rsi_tsc(), 0 };
    if ((!self && !(self = rsi_party_enter())) || !rsi_party_begin(self))
        return rsi_real.pthread_spin_lock(l);
    contest.key.site = rsi_site_of(self->writer, site);
    contest.key.name = rsi_init_name(self->writer, (const void *)l);
    int result = rsi_real.pthread_spin_lock(l);
    rsi_record_contest(self, &contest, result == 0, rsi_tsc(), true);
    self->is_busy = false;
    return result;
}

RSI_INLINE int try(pthread_spinlock_t *l, const void *site)
{
    rsi_real_find();
    int result = rsi_real.pthread_spin_trylock(l);
    if (result == 0 && rsi_unlikely(rsi_holds_are_on))
        rsi_hold_begin((const void *)l, ROUSE_WAIT_MUTEX, false, site);
    return result;
}

RSI_EXPORT RSI_NOINLINE int pthread_spin_lock(pthread_spinlock_t *l)
{
    int result = try(l, RSI_CALLER());
    return result == EBUSY ? spin(l, RSI_CALLER()) : result;
}

RSI_EXPORT RSI_NOINLINE int pthread_spin_trylock(pthread_spinlock_t *l)
{
    return try(l, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int pthread_spin_unlock(pthread_spinlock_t *l)
{
    rsi_real_find();
    if (rsi_likely(!rsi_holds_are_on))
        return rsi_real.pthread_spin_unlock(l);
    struct rsi_past past = rsi_hold_end(rsi_party_self, (const void *)l);
    int result = rsi_real.pthread_spin_unlock(l);
    rsi_hold_count(&past);
    return result;
}
