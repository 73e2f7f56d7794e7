/* SPDX-License-Identifier: MIT */
/*
 * mlock.c - mlockall, which locks all mapped memory.
 *
 * The call fails if more memory is mapped than the process may lock, and the record is mapped at its maximum length. So
 * the record is folded during the call (obs/file.c), and unlocked after it. If it does not exist yet, it is created
 * before the call, since later mappings may be locked at once.
 *
 * All signals are blocked meanwhile. This thread could not run a handler inside the system call either.
 */
#include "obs/ledger.h"
#include "process/real.h"
#include "process/recording.h"
#include "process/self.h"

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

/* Reached by a jump from syscall (hooks/futex.c), and returns to syscall's caller. */
long rpi_syscall_mlockall(long number, long flags);
RSI_NOINLINE long rpi_syscall_mlockall(long number, long flags)
{
    struct locking locking;
    begin(&locking, (int)flags);
    long result = rpi_real.syscall(number, flags);
    end(&locking);
    return result;
}
