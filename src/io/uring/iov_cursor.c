/* SPDX-License-Identifier: MIT */
/* iov_cursor.c - copy received bytes into the pieces of an iovec. See iov_cursor.h. */
#include "io/uring/iov_cursor.h"

#include <string.h>

void rsi_iov_cursor_begin(const struct rsi_io_op *op, struct rsi_iov_cursor *to)
{
    long flags = op->number == SYS_recvfrom ? op->arg[3] : op->arg[2];
    *to = (struct rsi_iov_cursor){ .is_peek = (flags & MSG_PEEK) != 0,
                                   .is_dropped = (flags & MSG_TRUNC) != 0 };
    if (op->number == SYS_recvfrom) {
        to->one = (struct iovec){ (void *)op->arg[1], (size_t)op->arg[2] };
        to->pieces = &to->one;
        to->count = 1;
    } else {
        struct msghdr *message = (struct msghdr *)op->arg[1];
        to->pieces = message->msg_iov;
        to->count = message->msg_iovlen;
        message->msg_namelen = 0;
        message->msg_controllen = 0;
        message->msg_flags = 0;
    }
}

size_t rsi_iov_cursor_put(struct rsi_iov_cursor *to, const char *from, size_t bytes)
{
    size_t done = 0;
    while (done < bytes && to->count != 0) {
        size_t room = to->pieces->iov_len - to->offset, part = bytes - done;
        part = part < room ? part : room;
        if (part != 0 && !to->is_dropped)
            memcpy((char *)to->pieces->iov_base + to->offset, from + done, part);
        done += part;
        to->offset += part;
        if (to->offset == to->pieces->iov_len) {
            to->pieces++;
            to->count--;
            to->offset = 0;
        }
    }
    return done;
}
