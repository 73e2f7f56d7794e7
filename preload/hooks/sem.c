/* SPDX-License-Identifier: MIT */
/*
 * sem.c - sem_wait and its variants.
 *
 * A semaphore that is available costs one try. A thread that finds none sleeps in hooks/acquire.c, by the protocol of
 * glibc on 64-bit machines: the low half of the first word is the value, the high half the number of waiters; a post
 * adds 1 and wakes one thread if there are waiters. record/waiters.c infers which waiter a post woke, and
 * record/outside_wake.c which post of another process ended a wait. If libc uses other words, or if another library replaces its semaphores, the thread sleeps
 * there.
 *
 * sem_wait is a cancellation point, also while it sleeps. Only libc can make a system call that is one, so the sleep
 * allows cancellation at any instruction, as libc does. A cancelled thread leaves by unwinding: this file is compiled
 * with -fexceptions.
 */
#include "hooks/acquire.h"
#include "hooks/deadline.h"
#include "os/os.h"
#include "process/real.h"
#include "record/outside_wake.h"
#include "record/wait.h"
#include "record/waiters.h"

#include <linux/futex.h>
#include <sys/syscall.h>

#define ONE_WAITER (UINT64_C(1) << 32)

/* glibc's sem_t. */
struct semaphore {
    uint64_t value_and_waiters;
    int shared; /* 0: only this process uses it */
};
_Static_assert(sizeof(struct semaphore) <= sizeof(sem_t), "a sem_t has room for it");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the value is the first half");

enum call { WAIT, TIMED, CLOCK };

static int call_real(enum call call, sem_t *s, clockid_t clock, const struct timespec *until)
{
    return call == WAIT    ? rpi_real.sem_wait(s)
           : call == TIMED ? rpi_real.sem_timedwait(s, until)
                           : rpi_real.sem_clockwait(s, clock, until);
}

/* Whether semaphores are libc's, and have the words that this file expects. Asked once. */
static bool knows_words(void)
{
    static uint32_t answer; /* 0: not asked yet; 1: yes; 2: no */
    if (rsi_likely(rsi_load_relaxed(&answer) != 0))
        return rsi_load_relaxed(&answer) == 1;
    sem_t one;
    const struct semaphore *s = (const struct semaphore *)(const void *)&one;
    bool knows = rpi_real.semaphores_are_libc && rpi_real.sem_init(&one, 0, 0) == 0 &&
                 s->value_and_waiters == 0 && s->shared == 0 && rpi_real.sem_post(&one) == 0 &&
                 rsi_load_relaxed(&s->value_and_waiters) == 1;
    rsi_store_relaxed(&answer, knows ? 1u : 2u);
    return knows;
}

static uint32_t *value_of(const struct semaphore *s)
{
    return (uint32_t *)(uintptr_t)&s->value_and_waiters;
}

/* Take one unit, and stop counting the caller as a waiter. */
static int try_of(struct rpi_acquire *a)
{
    struct semaphore *s = (struct semaphore *)(uintptr_t)a->object;
    uint64_t now = rsi_load_relaxed(&s->value_and_waiters);
    while ((uint32_t)now != 0)
        /* pairs with sem_post */
        if (rsi_cas_acquire(&s->value_and_waiters, &now, now - 1 - ONE_WAITER))
            return 0;
    return EBUSY;
}

/* A function of its own, so that its caller's cleanup covers each of its instructions. */
static RSI_NOINLINE int sleep_of(struct rpi_acquire *a)
{
    const struct semaphore *s = a->object;
    int type, result = -EAGAIN;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    if (rsi_load_relaxed(value_of(s)) == 0)
        result = rpi_acquire_sleep(a, value_of(s), 0);
    pthread_setcanceltype(type, NULL);
    return result;
}

/* The caller no longer waits, and took nothing. It may have used up a wake-up: pass that on. */
static void give_up(void *semaphore)
{
    struct semaphore *s = semaphore;
    uint64_t before = __atomic_fetch_sub(&s->value_and_waiters, ONE_WAITER, __ATOMIC_RELAXED);
    if ((uint32_t)before != 0 && before >= 2 * ONE_WAITER)
        rsi_syscall3(SYS_futex, value_of(s), FUTEX_WAKE | (s->shared ? 0 : FUTEX_PRIVATE_FLAG), 1);
}

/* As libc's call, with its result as an error number; EBUSY if the kernel refuses to wait. */
static int wait_here(enum call call, struct semaphore *s, clockid_t clock,
                     const struct timespec *until, const void *site)
{
    struct rpi_acquire acquire = {
        .kind = ROUSE_WAIT_SEM,
        .object = s,
        .site = site,
        .until = call == WAIT ? NULL : until,
        .is_realtime = call == TIMED || (call == CLOCK && clock == CLOCK_REALTIME),
        .is_shared = s->shared != 0,
        .ends_with_signal = true,
        .try = try_of,
        .sleep = sleep_of,
    };
    int result;
    __atomic_fetch_add(&s->value_and_waiters, ONE_WAITER, __ATOMIC_RELAXED);
    pthread_cleanup_push(give_up, s);
    result = rpi_acquire(&acquire, NULL);
    pthread_cleanup_pop(result != 0);
    return result;
}

/* One record for the whole call. */
static int wait_in_libc(enum call call, sem_t *s, clockid_t clock, const struct timespec *until,
                        const void *site)
{
    struct rpi_wait wait;
    int result;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_SEM, s, site))
        return call_real(call, s, clock, until);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(call, s, clock, until);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result == 0 ? 0 : errno), NULL);
    return result;
}

static int wait_for(enum call call, sem_t *s, clockid_t clock, const struct timespec *until,
                    const void *site)
{
    int error = errno;
    rpi_real_find();
    if (call != WAIT && rpi_deadline_is_wrong(clock, until)) /* libc checks these first */
        return call_real(call, s, clock, until);
    pthread_testcancel(); /* libc's call is a cancellation point even if it does not wait */
    if (rpi_real.sem_trywait(s) == 0)
        return 0;
    if (errno != EAGAIN)
        return -1;
    errno = error;
    bool is_refused = call != WAIT && until->tv_sec < 0; /* libc does not ask the kernel then */
    int result = rpi_recording_is_confined() || is_refused || !knows_words()
                     ? EBUSY
                     : wait_here(call, (struct semaphore *)(void *)s, clock, until, site);
    if (result == EBUSY)
        return wait_in_libc(call, s, clock, until, site);
    if (result != 0)
        errno = result;
    return result == 0 ? 0 : -1;
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

/* Whether a thread waits for a semaphore that processes share. */
static bool is_awaited(const sem_t *semaphore)
{
    const struct semaphore *s = (const struct semaphore *)(const void *)semaphore;
    return knows_words() && s->shared != 0 && rsi_load_relaxed(&s->value_and_waiters) >= ONE_WAITER;
}

RPI_EXPORT RSI_NOINLINE int sem_post(sem_t *s)
{
    rpi_real_find();
    rpi_waiters_note_wake(s, RPI_WAKES_ONE, RSI_CALLER());
    if (rsi_unlikely(rsi_load_relaxed(&rpi_outside_table) != NULL) && is_awaited(s))
        rpi_outside_note(rpi_outside_object(s), RSI_CALLER());
    return rpi_real.sem_post(s);
}
