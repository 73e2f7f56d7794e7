/* SPDX-License-Identifier: MIT */
/*
 * sem.c - sem_wait and its kin.
 *
 * A semaphore that is available costs one try. record/waiters.c infers which waiter a post woke. A post by another
 * process is not seen.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "hooks/deadline.h"
#include "process/real.h"
#include "record/wait.h"
#include "record/waiters.h"

enum call { WAIT, TIMED, CLOCK };

static int call_real(enum call call, sem_t *s, clockid_t clock, const struct timespec *until)
{
    return call == WAIT    ? rpi_real.sem_wait(s)
           : call == TIMED ? rpi_real.sem_timedwait(s, until)
                           : rpi_real.sem_clockwait(s, clock, until);
}

static int wait_for(enum call call, sem_t *s, clockid_t clock, const struct timespec *until,
                    const void *site)
{
    struct rpi_wait wait;
    int result, error = errno;
    rpi_real_find();
    if (call != WAIT && rpi_deadline_is_wrong(clock, until)) /* libc checks these first */
        return call_real(call, s, clock, until);
    pthread_testcancel(); /* libc's call is a cancellation point even if it does not wait */
    result = rpi_real.sem_trywait(s);
    if (result == 0 || errno != EAGAIN)
        return result;
    errno = error;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_SEM, s, site))
        return call_real(call, s, clock, until);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(call, s, clock, until);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result == 0 ? 0 : errno), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int sem_wait(sem_t *s)
{
    return wait_for(WAIT, s, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int sem_timedwait(sem_t *s, const struct timespec *until)
{
    return wait_for(TIMED, s, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int sem_clockwait(sem_t *s, clockid_t clock, const struct timespec *until)
{
    return wait_for(CLOCK, s, clock, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int sem_post(sem_t *s)
{
    rpi_real_find();
    rpi_waiters_note_wake(s, RPI_WAKES_ONE, RSI_CALLER());
    return rpi_real.sem_post(s);
}
