/* SPDX-License-Identifier: MIT */
/* iov_cursor.h - copy received bytes into the buffers of a receiving call. */
#ifndef RSI_IO_URING_IOV_CURSOR_H
#define RSI_IO_URING_IOV_CURSOR_H

#include "io/backend.h"

#include <sys/socket.h>

struct rsi_iov_cursor {
    const struct iovec *pieces;
    size_t count, offset; /* remaining pieces; bytes already used in the first one */
    struct iovec one;
    bool is_peek, is_dropped; /* MSG_PEEK, MSG_TRUNC */
};

/*
 * Point the cursor at the buffers of op, a recvfrom or recvmsg. The message header is filled in as for a stream:
 * no address and no control data.
 */
void rsi_iov_cursor_begin(const struct rsi_io_op *op, struct rsi_iov_cursor *to);

/* Copy up to bytes from from. Returns how many fitted. */
size_t rsi_iov_cursor_put(struct rsi_iov_cursor *to, const char *from, size_t bytes);

#endif
