/* SPDX-License-Identifier: MIT */
/* backlog.h - connections that a ring has accepted and that no thread has taken yet, oldest first. */
#ifndef RSI_IO_ACCEPT_BACKLOG_H
#define RSI_IO_ACCEPT_BACKLOG_H

#include "base/base.h"

#include <sys/socket.h>

struct rsi_backlog {
    int *fds; /* capacity of them, used as a circle; NULL until the first */
    uint32_t capacity, first, count;
};

/* Under the guard of whoever owns it, but for grow, and for drop when nobody else can find it any more. */

/*
 * Called before the guard is taken, by the thread that pushes: others take meanwhile, which makes room only, or drop
 * all, after which what is pushed goes nowhere. Room for one more than room. Returns memory to hand
 * to push, which owns it then; NULL: none is needed.
 */
bool rsi_backlog_grow(const struct rsi_backlog *backlog, int **memory);

/* Put fd at the end. memory: from grow, or NULL. Returns memory to free, or NULL. */
int *rsi_backlog_push(struct rsi_backlog *backlog, int fd, int *memory);

/*
 * The oldest, taken off; there is one. address, length: as accept's; a peer that is gone already has none. Returns
 * fd, or -errno of a bad address or length, which costs the caller its connection, as accept's do.
 */
int rsi_backlog_take(struct rsi_backlog *backlog, struct sockaddr *address, socklen_t *length);

/* Close all, and give the memory back. */
void rsi_backlog_drop(struct rsi_backlog *backlog);

#endif
