/* SPDX-License-Identifier: MIT */
/*
 * barrier_once_join.c - threads that wait for others to come to a place: pthread_barrier_wait, pthread_once, pthread_join.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "preload.h"

#include <string.h>

/* How many the barrier waits for: its third word, since libc 2.25. */
static unsigned count_of(const pthread_barrier_t *b)
{
    unsigned words[3];
    memcpy(words, b, sizeof words);
    return words[2];
}

/*
 * The last to come waits for nobody, and wakes the rest. libc tells it so only when they may have gone; so the queue
 * decides. Of two that come at once it may take one for the other.
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

/* The routine of the call that this thread is in, and what others wait for meanwhile. */
static __thread struct {
    void (*routine)(void);
    const void *control, *site;
} once;

static void run_and_tell(void)
{
    const void *control = once.control, *site = once.site;
    once.routine();
    rpi_waiters_note_wake(control, RPI_WAKES_ALL, site);
}

/* libc's word: bit 1 when it has been done, bit 0 while somebody does it. */
int rpi_once(pthread_once_t *control, void (*routine)(void), const void *site)
{
    struct rpi_wait wait;
    int word = rsi_load_acquire(control),
        result; /* pairs with libc's, in the thread that has done it */
    rpi_real_find();
    if (word & 2)
        return rpi_real.pthread_once(control, routine);
    if (!(word & 1) || !rpi_wait_begin(&wait, ROUSE_WAIT_ONCE, control, site)) {
        once.routine = routine;
        once.control = control;
        once.site = site;
        return rpi_real.pthread_once(control, run_and_tell);
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
    if (pthread_equal(thread, pthread_self()) || /* an error; TSan dies of trying it */
        (call == CLOCK && rpi_deadline_clock_is_wrong(clock)))
        return call_real(call, thread, value, clock, until);
    pthread_testcancel(); /* which libc's call does even if it does not wait */
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
