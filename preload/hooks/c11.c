/* SPDX-License-Identifier: MIT */
/*
 * c11.c - mtx_lock, cnd_wait, call_once, thrd_join and their kin.
 *
 * libc's own bypass the hooks of mutex.c and cond.c, although the objects are the same. Ours call those hooks on behalf
 * of the program's call site.
 */
#include "hooks/barrier_once_join.h"
#include "hooks/cond.h"
#include "hooks/mutex.h"
#include "process/real.h"

static int thrd_of(int error)
{
    return error == 0           ? thrd_success
           : error == EBUSY     ? thrd_busy
           : error == ETIMEDOUT ? thrd_timedout
           : error == ENOMEM    ? thrd_nomem
                                : thrd_error;
}

static pthread_mutex_t *mutex_of(mtx_t *m)
{
    return (pthread_mutex_t *)m;
}

static pthread_cond_t *cond_of(cnd_t *c)
{
    return (pthread_cond_t *)c;
}

RPI_EXPORT RSI_NOINLINE int mtx_lock(mtx_t *m)
{
    return thrd_of(rpi_mutex_lock(mutex_of(m), NULL, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int mtx_timedlock(mtx_t *m, const struct timespec *until)
{
    return thrd_of(rpi_mutex_lock(mutex_of(m), until, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int mtx_trylock(mtx_t *m)
{
    return thrd_of(rpi_mutex_trylock(mutex_of(m), RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int mtx_unlock(mtx_t *m)
{
    return thrd_of(rpi_mutex_unlock(mutex_of(m), RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int cnd_wait(cnd_t *c, mtx_t *m)
{
    return thrd_of(rpi_cond_wait(cond_of(c), mutex_of(m), NULL, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int cnd_timedwait(cnd_t *c, mtx_t *m, const struct timespec *until)
{
    return thrd_of(rpi_cond_wait(cond_of(c), mutex_of(m), until, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int cnd_signal(cnd_t *c)
{
    return thrd_of(rpi_cond_wake(cond_of(c), false, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int cnd_broadcast(cnd_t *c)
{
    return thrd_of(rpi_cond_wake(cond_of(c), true, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE void call_once(once_flag *flag, void (*routine)(void))
{
    (void)rpi_once((pthread_once_t *)flag, routine, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int thrd_join(thrd_t thread, int *result)
{
    void *value;
    int error = rpi_join(thread, &value, RSI_CALLER());
    if (error == 0 && result)
        *result = (int)(intptr_t)value;
    return thrd_of(error);
}
