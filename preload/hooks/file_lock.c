/* SPDX-License-Identifier: MIT */
/*
 * file_lock.c - flock, lockf and fcntl: waits for a lock on a file.
 *
 * A call that may wait is first made without waiting. The holder is not recorded: it is another process, or a thread
 * that has opened the file by itself.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#undef _FILE_OFFSET_BITS /* otherwise fcntl and lockf would be other names for fcntl64 and lockf64 */

#include "process/real.h"
#include "record/wait.h"

#include <stdarg.h>

_Static_assert(sizeof(off_t) == sizeof(off64_t), "fcntl and lockf are fcntl64 and lockf64");

enum call { FLOCK, FCNTL, LOCKF };

/* How a call that waits is made, and its command that does not wait. */
struct asked {
    enum call call;
    int fd, command, at_once;
    void *lock;   /* of FCNTL */
    off_t length; /* of LOCKF */
};

static int call_real(const struct asked *a, int command)
{
    switch (a->call) {
    case FLOCK: return rpi_real.flock(a->fd, command);
    case FCNTL: return rpi_real.fcntl(a->fd, command, a->lock);
    default: return rpi_real.lockf(a->fd, command, a->length);
    }
}

static int lock(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    int result, error = errno;
    result = call_real(a, a->at_once);
    if (result == 0 || (errno != EAGAIN && errno != EACCES))
        return result;
    errno = error;
    if (!rpi_wait_begin(&wait, RSI_STORE_WAIT_FILE_LOCK, (const void *)(intptr_t)a->fd, site))
        return call_real(a, a->command);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a, a->command);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result == 0 ? 0 : errno), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int flock(int fd, int command)
{
    const struct asked a = { FLOCK, fd, command, command | LOCK_NB, NULL, 0 };
    rpi_real_find();
    if (command & (LOCK_NB | LOCK_UN))
        return rpi_real.flock(fd, command);
    return lock(&a, RSI_CALLER());
}

/* The command that does not wait. The command itself, if it does not. */
static int at_once(int command)
{
    return command == F_SETLKW ? F_SETLK : command == F_OFD_SETLKW ? F_OFD_SETLK : command;
}

RPI_EXPORT RSI_NOINLINE int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *third = va_arg(list, void *);
    va_end(list);
    const struct asked a = { FCNTL, fd, command, at_once(command), third, 0 };
    rpi_real_find();
    if (a.at_once == command)
        return rpi_real.fcntl(fd, command, third);
    return lock(&a, RSI_CALLER());
}

RPI_EXPORT int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

RPI_EXPORT RSI_NOINLINE int lockf(int fd, int command, off_t length)
{
    const struct asked a = { LOCKF, fd, command, F_TLOCK, NULL, length };
    rpi_real_find();
    if (command != F_LOCK)
        return rpi_real.lockf(fd, command, length);
    return lock(&a, RSI_CALLER());
}

RPI_EXPORT int lockf64(int fd, int command, off64_t length) __attribute__((alias("lockf")));
