/* SPDX-License-Identifier: MIT */
/* scatter.h - where the bytes go that a receiving call asked for. */
#ifndef RSI_IO_SCATTER_H
#define RSI_IO_SCATTER_H

#include "io/backend.h"

#include <sys/socket.h>

struct rsi_scatter {
    const struct iovec *pieces;
    size_t count, offset; /* pieces left; bytes used of the first */
    struct iovec one;
    bool is_peek, is_dropped; /* MSG_PEEK, MSG_TRUNC */
};

/* Of a recvfrom or recvmsg. A message header gets what it has of a stream: no address, no control data. */
void rsi_scatter_begin(const struct rsi_io_op *op, struct rsi_scatter *to);

/* Returns how many of bytes found room. */
size_t rsi_scatter_put(struct rsi_scatter *to, const char *from, size_t bytes);

#endif
