/* SPDX-License-Identifier: MIT */
/*
 * acquire.c - sleeps until a lock is acquired, one record per sleep.
 *
 * Problem: a thread that was woken inside libc's call may lose the lock to one that has just arrived, and sleep again,
 * any number of times. One record for the whole call knows neither how often, nor which of the wake-ups was the last.
 * Where threads arrive often, most of the wait for the lock then looks like time between a wake-up and running. So the
 * hooks of locks whose words we understand sleep here, by libc's own protocol.
 *
 * The wake-up of a sleep is the one that ended it. The time until the thread runs is spent in the kernel: delivering
 * the wake-up, and waiting in the run queue. While the thread is on its way, further releases wake nobody.
 *
 * A thread that cannot be recorded, such as the child of a fork in a signal handler, goes on here without a record.
 * libc's own call would forget that the thread was woken, and others that still sleep would sleep on.
 *
 * Rejected: counting from the last release before the acquisition. A free unlock would have to write a time to a shared
 * line, and a woken thread that waits for a processor while others use the lock would seem to wait for the lock.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "hooks/acquire.h"

#include "base/syscall.h"
#include "record/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>

int rpi_acquire_sleep(const struct rpi_acquire *a, uint32_t *word, uint32_t value)
{
    int operation = FUTEX_WAIT_BITSET | (a->is_shared ? 0 : FUTEX_PRIVATE_FLAG) |
                    (a->is_realtime ? FUTEX_CLOCK_REALTIME : 0);
    return (int)rsi_syscall6(SYS_futex, (long)word, operation, value, (long)a->until, 0,
                             (long)FUTEX_BITSET_MATCH_ANY);
}

struct attempt {
    int slept;  /* as rpi_acquire_sleep */
    int result; /* an error number; EBUSY: the lock is still held */
    bool has_slept;
};

/* Sleep, and try. A signal handler interrupts the sleep, which then goes on unless it ends with that. */
static struct attempt attempt(struct rpi_acquire *a)
{
    struct attempt made = { 0 };
    do {
        made.slept = a->sleep(a);
        made.has_slept |= made.slept == 0 || made.slept == -EINTR || made.slept == -ETIMEDOUT;
        a->was_woken |= made.slept == 0;
        made.result = made.slept == -ETIMEDOUT                      ? ETIMEDOUT
                      : made.slept == -EINTR && a->ends_with_signal ? EINTR
                                                                    : a->try(a);
    } while (made.result == EBUSY && made.slept == -EINTR);
    return made;
}

/* As attempt, recorded as one wait. contest: counted if this is the last sleep. */
static struct attempt attempt_recorded(struct rpi_acquire *a, struct rpi_contest *contest)
{
    struct rpi_wait wait;
    struct attempt made;
    if (!rpi_wait_begin(&wait, a->kind, a->object, a->site))
        return attempt(a);
    if (contest && a->owner && !a->is_shared)
        contest->holder_tid = rsi_load_relaxed(a->owner);
    if (contest)
        rpi_wait_show(&wait, contest);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    made = attempt(a);
    pthread_cleanup_pop(0);
    bool is_held = made.result == EBUSY;
    wait.has_lost = is_held && made.slept == 0;
    if (contest)
        contest->is_acquired = made.result == 0;
    /* The child of a fork that a signal handler has made ends nothing here: the wait belongs to its parent. */
    (void)rpi_wait_end(&wait,
                       !made.has_slept ? ROUSE_VERDICT_NONE
                       : is_held       ? ROUSE_VERDICT_LOST_RACE
                                       : rpi_wait_verdict(made.result),
                       is_held ? NULL : contest);
    return made;
}

int rpi_acquire(struct rpi_acquire *a, struct rpi_contest *contest)
{
    for (;;) {
        struct attempt made = attempt_recorded(a, contest);
        if (made.result != EBUSY || (made.slept != 0 && made.slept != -EAGAIN))
            return made.result;
    }
}
