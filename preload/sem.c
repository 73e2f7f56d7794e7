/* SPDX-License-Identifier: MIT */
/*
 * sem.c - sem_wait and its kin. A semaphore that is there costs a try; a post finds who waits, if anybody does. Whom
 * of several a post woke is inferred (queue.c). What another process posts is not seen.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "preload.h"

enum call { WAIT, TIMED, CLOCK };

static int call_real(enum call call, sem_t *s, clockid_t clock, const struct timespec *until)
{
    return call == WAIT    ? rsi_real.sem_wait(s)
           : call == TIMED ? rsi_real.sem_timedwait(s, until)
                           : rsi_real.sem_clockwait(s, clock, until);
}

static int wait_for(enum call call, sem_t *s, clockid_t clock, const struct timespec *until,
                    const void *site)
{
    struct rsi_wait wait;
    int result, error = errno;
    rsi_real_find();
    if (call != WAIT && rsi_time_is_wrong(clock, until)) /* libc's first look is at these */
        return call_real(call, s, clock, until);
    pthread_testcancel(); /* which libc's call does even if it does not wait */
    result = rsi_real.sem_trywait(s);
    if (result == 0 || errno != EAGAIN)
        return result;
    errno = error;
    if (!rsi_wait_begin(&wait, ROUSE_WAIT_SEM, s, site))
        return call_real(call, s, clock, until);
    pthread_cleanup_push(rsi_wait_cancelled, &wait);
    result = call_real(call, s, clock, until);
    pthread_cleanup_pop(0);
    rsi_wait_end(&wait, rsi_verdict_of(result == 0 ? 0 : errno), NULL);
    return result;
}

RSI_EXPORT RSI_NOINLINE int sem_wait(sem_t *s)
{
    return wait_for(WAIT, s, 0, NULL, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int sem_timedwait(sem_t *s, const struct timespec *until)
{
    return wait_for(TIMED, s, 0, until, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int sem_clockwait(sem_t *s, clockid_t clock, const struct timespec *until)
{
    return wait_for(CLOCK, s, clock, until, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int sem_post(sem_t *s)
{
    rsi_real_find();
    rsi_wake_note(s, RSI_WAKES_ONE, RSI_CALLER());
    return rsi_real.sem_post(s);
}
