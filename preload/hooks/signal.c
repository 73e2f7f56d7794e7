/* SPDX-License-Identifier: MIT */
/*
 * signal.c - sigwait and its kin, sigsuspend and pause: waits for a signal.
 *
 * A call that returns the signal is first made with a time-out of 0. The others always wait, unless a signal is
 * pending.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "process/real.h"
#include "record/wait.h"

static const struct timespec at_once = { 0, 0 };

/* The wait ended by a signal, as the program wanted. */
static enum rouse_verdict verdict_of(int result)
{
    return result > 0        ? ROUSE_VERDICT_USEFUL
           : errno == EAGAIN ? ROUSE_VERDICT_TIMEOUT
                             : rpi_wait_verdict(errno);
}

static bool begin(struct rpi_wait *wait, const void *site)
{
    return rpi_wait_begin(wait, RSI_STORE_WAIT_SIGNAL, NULL, site);
}

RPI_EXPORT RSI_NOINLINE int sigwait(const sigset_t *set, int *number)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    int result, error = errno;
    rpi_real_find();
    result = rpi_real.sigtimedwait(set, NULL, &at_once);
    if (result > 0) {
        errno = error;
        *number = result;
        return 0;
    }
    errno = error;
    if (!begin(&wait, site))
        return rpi_real.sigwait(set, number);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.sigwait(set, number);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result), NULL);
    return result;
}

/* most: NULL: without a limit. */
static int wait_for(const sigset_t *set, siginfo_t *info, const struct timespec *most,
                    const void *site)
{
    struct rpi_wait wait;
    int result, error = errno;
    rpi_real_find();
    result = rpi_real.sigtimedwait(set, info, &at_once);
    if (result > 0 || errno != EAGAIN || (most && most->tv_sec == 0 && most->tv_nsec == 0))
        return result;
    errno = error;
    if (!begin(&wait, site))
        return rpi_real.sigtimedwait(set, info, most);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.sigtimedwait(set, info, most);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int sigwaitinfo(const sigset_t *set, siginfo_t *info)
{
    return wait_for(set, info, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int sigtimedwait(const sigset_t *set, siginfo_t *info,
                                         const struct timespec *most)
{
    return wait_for(set, info, most, RSI_CALLER());
}

/* mask: of sigsuspend. NULL: pause. */
static int suspend(const sigset_t *mask, const void *site)
{
    struct rpi_wait wait;
    int result;
    rpi_real_find();
    if (!begin(&wait, site))
        return mask ? rpi_real.sigsuspend(mask) : rpi_real.pause();
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = mask ? rpi_real.sigsuspend(mask) : rpi_real.pause();
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, errno == EINTR ? ROUSE_VERDICT_USEFUL : ROUSE_VERDICT_NONE, NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int sigsuspend(const sigset_t *mask)
{
    return suspend(mask, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pause(void)
{
    return suspend(NULL, RSI_CALLER());
}
