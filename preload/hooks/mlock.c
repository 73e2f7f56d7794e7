/* SPDX-License-Identifier: MIT */
/*
 * mlock.c - mlockall, which locks all that is mapped, and fails if that is more than may be locked: the record is as
 * long as it may ever be. So it is folded for as long as the call takes (obs/file.c), and unlocked after it. It is made
 * before, if it is not there yet: what is mapped later may be locked at once.
 *
 * No handler runs meanwhile, as none of this thread's does in the system call itself.
 */
#include "preload.h"

#include <signal.h>
#include <sys/syscall.h>

struct locking {
    bool is_held, is_folded;
    int cancel;
    sigset_t before;
};

static void begin(struct locking *locking, int flags)
{
    sigset_t all;
    *locking = (struct locking){ .is_held = false };
    if (rpi_self_is_vforked() || rpi_recording_is_confined())
        return;
    rpi_recording_settle();
    if (!(flags & MCL_CURRENT) || !rsi_load_relaxed(&rsi_file_head))
        return;
    sigfillset(&all);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &locking->cancel);
    pthread_sigmask(SIG_BLOCK, &all, &locking->before);
    locking->is_held = true;
    locking->is_folded = *rpi_recording_here && rsi_file_fold();
}

static void end(const struct locking *locking)
{
    if (locking->is_folded)
        rsi_file_unfold();
    if (!locking->is_held)
        return;
    pthread_sigmask(SIG_SETMASK, &locking->before, NULL);
    pthread_setcancelstate(locking->cancel, NULL);
}

RPI_EXPORT int mlockall(int flags)
{
    struct locking locking;
    rpi_real_find();
    begin(&locking, flags);
    int result = rpi_real.mlockall(flags);
    end(&locking);
    return result;
}

/* Jumped to by syscall: what returns is that. */
long rpi_syscall_mlockall(long number, long flags);
RSI_NOINLINE long rpi_syscall_mlockall(long number, long flags)
{
    struct locking locking;
    begin(&locking, (int)flags);
    long result = rpi_real.syscall(number, flags);
    end(&locking);
    return result;
}
