/* SPDX-License-Identifier: MIT */
/*
 * cond.c - pthread_cond_wait and its variants.
 *
 * The wait for the mutex at the end happens inside libc and is not seen. A thread that has signalled the condition with
 * the mutex locked, or was woken there itself, notes with the waiters that were woken before for how long it has held
 * the mutex: they could not have returned meanwhile. If that is more than half of their way, it counts as a wait for the
 * mutex. Otherwise a thread may have come later, and all of it counts as time from the wake-up until the thread runs.
 * Rejected: all time until the last release. Of many threads that are woken at once, and lock for moments, most wait for
 * a processor.
 *
 * A wake-up is false if its thread waits for the same condition again, within RPI_WAIT_WORK_NS and before it has
 * locked the mutex anew. To detect that, the thread notes the place of the wait as the place where it acquired the
 * mutex, which the next lock would overwrite. A worker that keeps the mutex while it works, and then waits again, ran
 * for longer. Not known: a thread that took its work within that time looks falsely woken, and one that was preempted
 * meanwhile looks usefully woken.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "hooks/cond.h"

#include "hooks/mutex.h"
#include "os/os.h"
#include "process/real.h"
#include "record/hold.h"
#include "record/outside_wake.h"
#include "record/wait.h"
#include "record/waiters.h"

enum call { WAIT, TIMED, CLOCK };

static int call_real(enum call call, pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
                     const struct timespec *until)
{
    rpi_real_find();
    return call == WAIT    ? rpi_real.pthread_cond_wait(c, m)
           : call == TIMED ? rpi_real.pthread_cond_timedwait(c, m, until)
                           : rpi_real.pthread_cond_clockwait(c, m, clock, until);
}

static void judge_the_last(struct rpi_thread *self, const pthread_cond_t *c,
                           const pthread_mutex_t *m, uint64_t now)
{
    unsigned at = rpi_thread_held_at(m);
    if (self->again_mutex == m && self->again.object == (uintptr_t)c && self->held[at].lock == m &&
        self->held[at].site == self->again_site && rsi_now_ns() - self->again_ns < RPI_WAIT_WORK_NS)
        rpi_wait_was_useless(self, &self->again, ROUSE_VERDICT_FALSE, now);
    self->again_mutex = NULL;
}

static RSI_NOINLINE int wait_for(enum call call, pthread_cond_t *c, pthread_mutex_t *m,
                                 clockid_t clock, const struct timespec *until, const void *site)
{
    struct rpi_wait wait;
    int result;
    rpi_mutex_note_unlock(m, site);
    if (rpi_self && !rpi_self->is_busy)
        rpi_self->mutex = m;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_COND, c, site))
        return call_real(call, c, m, clock, until);
    if (rpi_waiters_may_await(wait.self))
        rpi_waiters_release(wait.self, m, wait.self->slot->wait_site);
    judge_the_last(wait.self, c, m, wait.since);
    if (rsi_unlikely(rpi_hold_is_timed(wait.self)))
        rpi_hold_pause(wait.self, m);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(call, c, m, clock, until);
    pthread_cleanup_pop(0);
    if (!rpi_wait_end(&wait, rpi_wait_verdict(result), NULL))
        return result;
    wait.self->woken_at = c;
    if (wait.for_mutex)
        (void)rpi_thread_held_put(wait.self, m,
                                  (const void *)(uintptr_t)wait.self->slot->wait_site);
    else
        rpi_mutex_hold(wait.self, m, site);
    wait.self->returned_tsc = wait.self->slot->run_tsc;
    wait.self->returned_acquired = wait.self->held[rpi_thread_held_at(m)].acquired;
    if (result == 0) {
        wait.self->again = (struct rsi_wake_key){ wait.self->slot->wait_site,
                                                  wait.self->slot->wake_site, (uintptr_t)c,
                                                  ROUSE_WAIT_COND, wait.self->name };
        wait.self->again_site = wait.self->held[rpi_thread_held_at(m)].site;
        wait.self->again_ns = rsi_now_ns();
        wait.self->again_mutex = m;
    }
    return result;
}

int rpi_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until,
                  const void *site)
{
    return wait_for(until ? TIMED : WAIT, c, m, 0, until, site);
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    return wait_for(WAIT, c, m, 0, NULL, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                                   const struct timespec *until)
{
    return wait_for(TIMED, c, m, 0, until, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m,
                                                   clockid_t clock, const struct timespec *until)
{
    return wait_for(CLOCK, c, m, clock, until, RSI_CALLER());
}

#define IS_SHARED 1u /* a bit of glibc's __wrefs */

/* Before the call itself, since the woken threads may return before we do. */
static void note(pthread_cond_t *c, bool is_broadcast, const void *site)
{
    struct rpi_thread *self = rpi_self;
    if ((!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return;
    bool is_shared = rsi_unlikely(rsi_load_relaxed(&rpi_outside_table) != NULL) &&
                     rsi_load_relaxed(&c->__data.__wrefs) & IS_SHARED;
    size_t count = rpi_waiters_wake(self, c, is_broadcast ? RPI_WAKES_ALL : RPI_WAKES_ONE, site);
    struct rsi_store_writer *total = self->writer->shared;
    if (is_shared) /* processes share it: whether any thread waits is not known */
        rpi_outside_put(self, rpi_outside_object(c), site);
    else if (count == 0)
        rsi_count(*(is_broadcast ? &total->broadcasts_unheard : &total->signals_unheard), 1);
    else if (is_broadcast)
        rsi_count(total->herds[rsi_log2(count, RSI_STORE_HERDS - 1)], 1);
    if (count > 0)
        self->woken_at = c;
    self->is_busy = false;
}

int rpi_cond_wake(pthread_cond_t *c, bool is_broadcast, const void *site)
{
    note(c, is_broadcast, site);
    rpi_real_find();
    return is_broadcast ? rpi_real.pthread_cond_broadcast(c) : rpi_real.pthread_cond_signal(c);
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_signal(pthread_cond_t *c)
{
    return rpi_cond_wake(c, false, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_broadcast(pthread_cond_t *c)
{
    return rpi_cond_wake(c, true, RSI_CALLER());
}
