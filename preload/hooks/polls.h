/* SPDX-License-Identifier: MIT */
/*
 * polls.h - a call of poll, select, epoll_wait or their kin as the program has made it.
 */
#ifndef RPI_HOOKS_POLLS_H
#define RPI_HOOKS_POLLS_H

#include "preload.h"

enum rpi_poll_call {
    RPI_POLL_POLL,
    RPI_POLL_PPOLL,
    RPI_POLL_SELECT,
    RPI_POLL_PSELECT,
    RPI_POLL_EPOLL,
    RPI_POLL_EPOLL_MASK,
    RPI_POLL_EPOLL_TIMESPEC
};

/* One call, whichever it is. */
struct rpi_poll {
    enum rpi_poll_call call;
    int fd; /* epoll's, or how many descriptors select looks at */
    void *entries;
    nfds_t count; /* of entries */
    fd_set *sets[3];
    struct timeval *timeval;
    const struct timespec *timespec;
    int ms;
    const sigset_t *mask;
};

/* Make it, by site: what it returns, with errno, is the program's. A cancellation point. */
int rpi_poll_wait(const struct rpi_poll *call, const void *site);

#endif
