/* SPDX-License-Identifier: MIT */
/*
 * barrier_once_join.c - calls that wait until other threads reach a point: pthread_barrier_wait, pthread_once,
 * pthread_join.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "hooks/barrier_once_join.h"

#include "hooks/deadline.h"
#include "process/real.h"
#include "record/wait.h"
#include "record/waiters.h"

#include <string.h>

/* How many threads the barrier waits for: its third word, since libc 2.25. */
static unsigned count_of(const pthread_barrier_t *b)
{
    unsigned words[3];
    memcpy(words, b, sizeof words);
    return words[2];
}

/*
 * The last thread to arrive waits for no other, and wakes the rest. libc identifies it only after the others may have
 * left, so our list of waiters decides. If two threads arrive at the same time, it may confuse them.
 */
RPI_EXPORT RSI_NOINLINE int pthread_barrier_wait(pthread_barrier_t *b)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    rpi_real_find();
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_BARRIER, b, site))
        return rpi_real.pthread_barrier_wait(b);
    size_t count = rpi_waiters_gather(wait.self, b, count_of(b));
    if (count > 1)
        rsi_count(wait.self->writer->shared->herds[rsi_log2(count - 1, RSI_STORE_HERDS - 1)], 1);
    wait.is_queued = count == 0;
    int result = rpi_real.pthread_barrier_wait(b);
    rpi_wait_end(&wait, count ? ROUSE_VERDICT_NONE : ROUSE_VERDICT_USEFUL, NULL);
    return result;
}

/* The routine of the pthread_once call that this thread is in, and the control that others wait for meanwhile. */
static __thread struct {
    void (*routine)(void);
    const void *control, *site;
} once;

static void run_and_note_wake(void)
{
    const void *control = once.control, *site = once.site;
    once.routine();
    rpi_waiters_note_wake(control, RPI_WAKES_ALL, site);
}

/* libc's word has bit 1 set when the routine has finished, and bit 0 while a thread runs it. */
int rpi_once(pthread_once_t *control, void (*routine)(void), const void *site)
{
    struct rpi_wait wait;
    /* Pairs with libc's store, in the thread that ran the routine. */
    int word = rsi_load_acquire(control), result;
    rpi_real_find();
    if (word & 2)
        return rpi_real.pthread_once(control, routine);
    if (!(word & 1) || !rpi_wait_begin(&wait, ROUSE_WAIT_ONCE, control, site)) {
        once.routine = routine;
        once.control = control;
        once.site = site;
        return rpi_real.pthread_once(control, run_and_note_wake);
    }
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.pthread_once(control, routine);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, ROUSE_VERDICT_USEFUL, NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int pthread_once(pthread_once_t *control, void (*routine)(void))
{
    return rpi_once(control, routine, RSI_CALLER());
}

enum call { JOIN, TIMED, CLOCK };

static int call_real(enum call call, pthread_t thread, void **value, clockid_t clock,
                     const struct timespec *until)
{
    return call == JOIN    ? rpi_real.pthread_join(thread, value)
           : call == TIMED ? rpi_real.pthread_timedjoin_np(thread, value, until)
                           : rpi_real.pthread_clockjoin_np(thread, value, clock, until);
}

static int join(enum call call, pthread_t thread, void **value, clockid_t clock,
                const struct timespec *until, const void *site)
{
    struct rpi_wait wait;
    int result;
    rpi_real_find();
    if (pthread_equal(thread, pthread_self()) || /* an error; TSan crashes on a try */
        (call == CLOCK && rpi_deadline_clock_is_wrong(clock)))
        return call_real(call, thread, value, clock, until);
    pthread_testcancel(); /* libc's call is a cancellation point even if it does not wait */
    result = rpi_real.pthread_tryjoin_np(thread, value);
    if (result != EBUSY)
        return result;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_JOIN, (const void *)thread, site))
        return call_real(call, thread, value, clock, until);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(call, thread, value, clock, until);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result), NULL);
    return result;
}

int rpi_join(pthread_t thread, void **value, const void *site)
{
    return join(JOIN, thread, value, 0, NULL, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_join(pthread_t thread, void **value)
{
    return join(JOIN, thread, value, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_timedjoin_np(pthread_t thread, void **value,
                                                 const struct timespec *until)
{
    return join(TIMED, thread, value, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_clockjoin_np(pthread_t thread, void **value, clockid_t clock,
                                                 const struct timespec *until)
{
    return join(CLOCK, thread, value, clock, until, RSI_CALLER());
}
