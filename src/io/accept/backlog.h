/* SPDX-License-Identifier: MIT */
/* backlog.h - connections that a ring has accepted and no thread has taken yet, oldest first. */
#ifndef RSI_IO_ACCEPT_BACKLOG_H
#define RSI_IO_ACCEPT_BACKLOG_H

#include "base/base.h"

#include <sys/socket.h>

struct rsi_backlog {
    int *fds; /* a ring buffer of capacity descriptors. NULL until the first */
    uint32_t capacity, first, count;
};

/*
 * All calls are made under the owner's guard, except grow, and drop once no other thread can reach the backlog.
 */

/*
 * Before push and without the guard: make sure that there is room for one more. Meanwhile other threads can only
 * take, which makes room, or drop everything, after which the push is discarded. *memory is to be passed to push,
 * which then owns it; NULL if no memory is needed. Returns false if there is no memory.
 */
bool rsi_backlog_grow(const struct rsi_backlog *backlog, int **memory);

/* Append fd. memory is from grow, or NULL. Returns memory to free, or NULL. */
int *rsi_backlog_push(struct rsi_backlog *backlog, int fd, int *memory);

/*
 * Remove the oldest connection; there must be one. address and length are as for accept. A peer that has already gone
 * has no address. Returns the descriptor, or -errno for a bad address or length, in which case the connection is
 * closed, as accept does.
 */
int rsi_backlog_take(struct rsi_backlog *backlog, struct sockaddr *address, socklen_t *length);

/* Close all connections and free the memory. */
void rsi_backlog_drop(struct rsi_backlog *backlog);

#endif
