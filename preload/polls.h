/* SPDX-License-Identifier: MIT */
/*
 * polls.h - a call of poll, select, epoll_wait or their kin as the program has made it.
 */
#ifndef RSI_PRELOAD_POLLS_H
#define RSI_PRELOAD_POLLS_H

#include "preload.h"

enum rsi_poll_call {
    RSI_POLL_POLL,
    RSI_POLL_PPOLL,
    RSI_POLL_SELECT,
    RSI_POLL_PSELECT,
    RSI_POLL_EPOLL,
    RSI_POLL_EPOLL_MASK,
    RSI_POLL_EPOLL_TIMESPEC
};

/* One call, whichever it is. */
struct rsi_poll {
    enum rsi_poll_call call;
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
int rsi_poll_wait(const struct rsi_poll *call, const void *site);

#endif
