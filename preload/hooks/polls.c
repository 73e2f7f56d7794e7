/* SPDX-License-Identifier: MIT */
/*
 * polls.c - poll, select, epoll_wait and their kin, by the names that programs call; poll.c does what they do.
 */
#include "hooks/polls.h"

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t bytes);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask,
                size_t bytes);

RPI_EXPORT RSI_NOINLINE int poll(struct pollfd *fds, nfds_t count, int ms)
{
    rpi_real_find();
    return rpi_poll_wait(
        &(struct rpi_poll){ .call = RPI_POLL_POLL, .entries = fds, .count = count, .ms = ms },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time,
                                  const sigset_t *mask)
{
    rpi_real_find();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_PPOLL,
                                             .entries = fds,
                                             .count = count,
                                             .timespec = time,
                                             .mask = mask },
                         RSI_CALLER());
}

/* What a program calls that was compiled with _FORTIFY_SOURCE: bytes is how much room there is. */
RPI_EXPORT RSI_NOINLINE int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t bytes)
{
    rpi_real_find();
    if (bytes / sizeof *fds < count)
        __chk_fail();
    return rpi_poll_wait(
        &(struct rpi_poll){ .call = RPI_POLL_POLL, .entries = fds, .count = count, .ms = ms },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int __ppoll_chk(struct pollfd *fds, nfds_t count,
                                        const struct timespec *time, const sigset_t *mask,
                                        size_t bytes)
{
    rpi_real_find();
    if (bytes / sizeof *fds < count)
        __chk_fail();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_PPOLL,
                                             .entries = fds,
                                             .count = count,
                                             .timespec = time,
                                             .mask = mask },
                         RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int select(int count, fd_set *reads, fd_set *writes, fd_set *excepts,
                                   struct timeval *time)
{
    rpi_real_find();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_SELECT,
                                             .fd = count,
                                             .sets = { reads, writes, excepts },
                                             .timeval = time },
                         RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pselect(int count, fd_set *reads, fd_set *writes, fd_set *excepts,
                                    const struct timespec *time, const sigset_t *mask)
{
    rpi_real_find();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_PSELECT,
                                             .fd = count,
                                             .sets = { reads, writes, excepts },
                                             .timespec = time,
                                             .mask = mask },
                         RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    rpi_real_find();
    return rpi_poll_wait(
        &(struct rpi_poll){
            .call = RPI_POLL_EPOLL, .fd = fd, .entries = events, .count = (nfds_t)most, .ms = ms },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_pwait(int fd, struct epoll_event *events, int most, int ms,
                                        const sigset_t *mask)
{
    rpi_real_find();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_EPOLL_MASK,
                                             .fd = fd,
                                             .entries = events,
                                             .count = (nfds_t)most,
                                             .ms = ms,
                                             .mask = mask },
                         RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_pwait2(int fd, struct epoll_event *events, int most,
                                         const struct timespec *time, const sigset_t *mask)
{
    rpi_real_find();
    return rpi_poll_wait(&(struct rpi_poll){ .call = RPI_POLL_EPOLL_TIMESPEC,
                                             .fd = fd,
                                             .entries = events,
                                             .count = (nfds_t)most,
                                             .timespec = time,
                                             .mask = mask },
                         RSI_CALLER());
}
