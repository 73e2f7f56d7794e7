/* SPDX-License-Identifier: MIT */
/* scatter.h - where the bytes go that a receiving call asked for. */
#ifndef RSI_IO_URING_IOV_CURSOR_H
#define RSI_IO_URING_IOV_CURSOR_H

#include "io/backend.h"

#include <sys/socket.h>

struct rsi_iov_cursor {
    const struct iovec *pieces;
    size_t count, offset; /* pieces left; bytes used of the first */
    struct iovec one;
    bool is_peek, is_dropped; /* MSG_PEEK, MSG_TRUNC */
};

/* Of a recvfrom or recvmsg. A message header gets what it has of a stream: no address, no control data. */
void rsi_iov_cursor_begin(const struct rsi_io_op *op, struct rsi_iov_cursor *to);

/* Returns how many of bytes found room. */
size_t rsi_iov_cursor_put(struct rsi_iov_cursor *to, const char *from, size_t bytes);

#endif
