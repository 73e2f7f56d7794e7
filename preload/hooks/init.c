/* SPDX-License-Identifier: MIT */
/*
 * init.c - pthread_mutex_init and its variants, and the calls that destroy what they initialised: where each lock,
 * condition, semaphore and barrier comes from.
 *
 * An initialisation alone is not recorded, since most objects are never waited for. A place gets a number in the file
 * with the first wait for an object that it initialised, or with the first hold where holds are recorded.
 */
#include "process/real.h"
#include "record/init_site.h"
#include "record/outside_wake.h"

/* After a call that was to initialise object. */
RSI_INLINE int begun(int result, const void *object, const void *site)
{
    if (rsi_likely(result == 0) && rsi_unlikely(!rpi_init_site_put(object, site)))
        rpi_init_site_lost();
    return result;
}

/* After a call that was to destroy it. The call may refuse while the object is in use. */
RSI_INLINE int ended(int result, const void *object)
{
    if (rsi_likely(result == 0))
        rpi_init_site_end(object);
    return result;
}

static void begin_if_shared(const pthread_mutexattr_t *how)
{
    int is_shared;
    if (pthread_mutexattr_getpshared(how, &is_shared) == 0 && is_shared)
        rpi_outside_begin();
}

/* Both work before any constructor has run: malloc may have mutexes. */
RPI_EXPORT RSI_NOINLINE int pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *how)
{
    int result = rpi_real.pthread_mutex_init(m, how);
    if (rsi_unlikely(how != NULL) && result == 0)
        begin_if_shared(how);
    return begun(result, m, RSI_CALLER());
}

RPI_EXPORT int pthread_mutex_destroy(pthread_mutex_t *m)
{
    return ended(rpi_real.pthread_mutex_destroy(m), m);
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_init(pthread_rwlock_t *l,
                                                const pthread_rwlockattr_t *how)
{
    rpi_real_find();
    return begun(rpi_real.pthread_rwlock_init(l, how), l, RSI_CALLER());
}

RPI_EXPORT int pthread_rwlock_destroy(pthread_rwlock_t *l)
{
    rpi_real_find();
    return ended(rpi_real.pthread_rwlock_destroy(l), l);
}

RPI_EXPORT RSI_NOINLINE int pthread_spin_init(pthread_spinlock_t *l, int is_shared)
{
    rpi_real_find();
    return begun(rpi_real.pthread_spin_init(l, is_shared), (const void *)l, RSI_CALLER());
}

RPI_EXPORT int pthread_spin_destroy(pthread_spinlock_t *l)
{
    rpi_real_find();
    return ended(rpi_real.pthread_spin_destroy(l), (const void *)l);
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *how)
{
    int is_shared = PTHREAD_PROCESS_PRIVATE;
    rpi_real_find();
    if (how && pthread_condattr_getpshared(how, &is_shared) == 0 && is_shared)
        rpi_outside_begin();
    return begun(rpi_real.pthread_cond_init(c, how), c, RSI_CALLER());
}

RPI_EXPORT int pthread_cond_destroy(pthread_cond_t *c)
{
    rpi_real_find();
    return ended(rpi_real.pthread_cond_destroy(c), c);
}

RPI_EXPORT RSI_NOINLINE int pthread_barrier_init(pthread_barrier_t *b,
                                                 const pthread_barrierattr_t *how, unsigned count)
{
    rpi_real_find();
    return begun(rpi_real.pthread_barrier_init(b, how, count), b, RSI_CALLER());
}

RPI_EXPORT int pthread_barrier_destroy(pthread_barrier_t *b)
{
    rpi_real_find();
    return ended(rpi_real.pthread_barrier_destroy(b), b);
}

RPI_EXPORT RSI_NOINLINE int sem_init(sem_t *s, int is_shared, unsigned value)
{
    rpi_real_find();
    if (is_shared)
        rpi_outside_begin();
    return begun(rpi_real.sem_init(s, is_shared, value), s, RSI_CALLER());
}

RPI_EXPORT int sem_destroy(sem_t *s)
{
    rpi_real_find();
    return ended(rpi_real.sem_destroy(s), s);
}

RPI_EXPORT RSI_NOINLINE int mtx_init(mtx_t *m, int kind)
{
    rpi_real_find();
    return begun(rpi_real.mtx_init(m, kind), m, RSI_CALLER());
}

RPI_EXPORT void mtx_destroy(mtx_t *m)
{
    rpi_real_find();
    rpi_real.mtx_destroy(m);
    rpi_init_site_end(m);
}

RPI_EXPORT RSI_NOINLINE int cnd_init(cnd_t *c)
{
    rpi_real_find();
    return begun(rpi_real.cnd_init(c), c, RSI_CALLER());
}

RPI_EXPORT void cnd_destroy(cnd_t *c)
{
    rpi_real_find();
    rpi_real.cnd_destroy(c);
    rpi_init_site_end(c);
}
