/* SPDX-License-Identifier: MIT */
/*
 * sleep.c - nanosleep and its variants.
 *
 * A sleep that ends on time is a time-out. Its lateness is counted with that of timers, and includes the timer slack
 * that the kernel gives the thread.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "obs/site.h"
#include "process/real.h"
#include "record/wait.h"

#include <threads.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
/* Loops that poll sleep for less. Longer sleeps cost little, and are more often the program's own schedule. */
#define BRIEF_NS 5000000u
/* Calls of sched_yield, of which one records its site. */
#define SITES_EVERY 4096u

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SECOND + (uint64_t)time->tv_nsec;
}

/* Whether the clock can measure lateness. A clock of CPU time cannot. */
static bool is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME ||
           clock == CLOCK_TAI;
}

static uint64_t now_of(clockid_t clock)
{
    struct timespec now;
    return clock_gettime(clock, &now) == 0 ? ns_of(&now) : 0;
}

static void count_late(struct rpi_thread *self, uint64_t late_ns)
{
    struct rsi_store_writer *total = self->writer->shared;
    rsi_count(total->calls[ROUSE_WAIT_SLEEP], 1);
    rsi_count(total->lateness[rsi_log2(late_ns, RSI_STORE_LATENESS - 1)], 1);
    rsi_count(total->lateness_ns, late_ns);
    rsi_count_most(total->lateness_most_ns, late_ns);
}

/*
 * Whether such a sleep may be one of a loop that polls. Not with a deadline, which is the program's own schedule, and
 * not with a lock held, as far as known, since such a sleep is part of the work under the lock.
 */
static bool may_poll(const struct rpi_thread *self, bool is_absolute, uint64_t ns)
{
    return !is_absolute && ns <= BRIEF_NS && self->timed == 0;
}

/*
 * The thread sleeps briefly at site. If it did so before, for the same time, and did nothing else since than run, count
 * the last sleep. A time that differs is a deadline: C++'s sleep_until asks for the time that is left.
 */
static void judge_the_last(struct rpi_thread *self, const void *site, uint64_t ns)
{
    struct rsi_store_writer *total = self->writer->shared;
    if (self->slept_site != site || self->slept_ns != ns || self->slept_waits != self->slot->waits)
        return;
    rsi_count(total->repeated_sleeps, 1);
    rsi_count(total->repeated_ticks, self->slept_ticks);
    rsi_store_relaxed(&total->repeated_site, self->slot->wait_site);
}

static void note_slept(struct rpi_thread *self, const void *site, uint64_t ns, uint64_t since)
{
    self->slept_site = site;
    self->slept_ns = ns;
    self->slept_ticks = self->slot->run_tsc - since;
    self->slept_waits = self->slot->waits;
}

/* Returns an error number, as clock_nanosleep does. */
static int sleep_for(clockid_t clock, int flags, const struct timespec *time, struct timespec *left,
                     const void *site)
{
    struct rpi_wait wait;
    int result;
    rpi_real_find();
    if (rpi_recording_is_confined())
        return rpi_real.clock_nanosleep(clock, flags, time, left);
    bool is_absolute = flags & TIMER_ABSTIME;
    /* Setting the clock does not change a relative sleep. */
    clockid_t by = is_absolute ? clock : CLOCK_MONOTONIC;
    uint64_t begin = is_absolute ? 0 : now_of(by);
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_SLEEP, NULL, site))
        return rpi_real.clock_nanosleep(clock, flags, time, left);
    bool is_brief = may_poll(wait.self, is_absolute, ns_of(time));
    if (is_brief)
        judge_the_last(wait.self, site, ns_of(time));
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.clock_nanosleep(clock, flags, time, left);
    pthread_cleanup_pop(0);
    if (result == 0 && is_wall(clock) && rpi_wait_goes_on(&wait)) {
        uint64_t until = begin + ns_of(time), now = now_of(by);
        count_late(wait.self, now > until ? now - until : 0);
    }
    if (rpi_wait_end(&wait, rpi_wait_verdict(result == 0 ? ETIMEDOUT : result), NULL))
        note_slept(wait.self, is_brief ? site : NULL, ns_of(time), wait.since);
    return result;
}

RPI_EXPORT RSI_NOINLINE int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time,
                                            struct timespec *left)
{
    return sleep_for(clock, flags, time, left, RSI_CALLER());
}

/* libc implements nanosleep in the same way. */
static int as_nanosleep(const struct timespec *time, struct timespec *left, const void *site)
{
    int error = sleep_for(CLOCK_REALTIME, 0, time, left, site);
    if (error == 0)
        return 0;
    errno = error;
    return -1;
}

RPI_EXPORT RSI_NOINLINE int nanosleep(const struct timespec *time, struct timespec *left)
{
    return as_nanosleep(time, left, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int usleep(useconds_t us)
{
    struct timespec time = { us / 1000000, (long)(us % 1000000) * 1000 };
    return as_nanosleep(&time, NULL, RSI_CALLER());
}

/* Returns the remaining seconds, rounded down as libc does. */
RPI_EXPORT RSI_NOINLINE unsigned sleep(unsigned seconds)
{
    struct timespec time = { seconds, 0 };
    int error = errno;
    if (as_nanosleep(&time, &time, RSI_CALLER()) != 0)
        return (unsigned)time.tv_sec;
    errno = error;
    return 0;
}

RPI_EXPORT RSI_NOINLINE int thrd_sleep(const struct timespec *time, struct timespec *left)
{
    int error = sleep_for(CLOCK_REALTIME, 0, time, left, RSI_CALLER());
    return error == 0 ? 0 : error == EINTR ? -1 : -2;
}

/* Finding the site costs much more than to yield. So one in many calls records it. */
static RSI_NOINLINE void note_yield(struct rpi_thread *self, const void *site)
{
    struct rsi_store_writer *total = self->writer->shared;
    if (rsi_load_relaxed(&total->yields) % SITES_EVERY == 0)
        rsi_store_relaxed(&total->yield_site, rsi_site_of(self->writer, site));
    rsi_count(total->yields, 1);
    rsi_count(self->slot->yields, 1);
}

/* A thread that spins may call nothing else, so it is recorded from its first call on. */
RPI_EXPORT RSI_NOINLINE int sched_yield(void)
{
    const void *site = RSI_CALLER();
    struct rpi_thread *self = rpi_self;
    rpi_real_find();
    if ((self || (self = rpi_thread_enter())) && rpi_thread_begin(self)) {
        note_yield(self, site);
        self->is_busy = false;
    }
    return rpi_real.sched_yield();
}
