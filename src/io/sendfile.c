/* SPDX-License-Identifier: MIT */
/*
 * sendfile.c - send a file's bytes to a socket or pipe without copying them through the program.
 *
 * sendfile(2) has neither MSG_DONTWAIT nor MSG_NOSIGNAL: the socket is made O_NONBLOCK at its first sendfile, unless
 * accept has done so, and SIGPIPE is blocked around each call. Data that is not in the page cache is read from disk
 * while the worker waits: a helper thread per call would cost more than it saves when files are cached. A program with
 * large uncached files should read them with rouse_pread.
 */
#include "io/helper.h"

#include <rouse/io.h>

#include <errno.h>

static ssize_t do_sendfile(int out_fd, int in_fd, off_t *offset, size_t bytes, uint64_t deadline_ns,
                           const void *site)
{
    struct rsi_io_op op = {
        .fd = out_fd,
        .side = RSI_FD_WRITE,
        .kind = ROUSE_WAIT_WRITE,
        .number = SYS_sendfile,
        .arg = { out_fd, in_fd, (long)offset, (long)bytes },
        .bytes = bytes,
        .site = site,
        .deadline_ns = deadline_ns,
    };
    int type = rsi_fdtable_find(out_fd, &op.ref);
    if (type < 0)
        return type;
    if (rsi_fdtable_is_socket(type)) {
        int result = rsi_fdtable_nonblock(out_fd, &op.ref);
        if (result < 0)
            return result;
        op.rules = RSI_IO_MUTE;
    } else if (type == RSI_FD_FILE) {
        return rsi_helper_run(&op);
    }
    long result = type != RSI_FD_SLOW ? rsi_backend_run(&op) : -EPERM;
    return result == -EPERM ? rsi_helper_run_ready(&op) : result;
}

RSI_NOINLINE ssize_t rouse_sendfile(int out_fd, int in_fd, off_t *offset, size_t bytes)
{
    return do_sendfile(out_fd, in_fd, offset, bytes, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_sendfile_until(int out_fd, int in_fd, off_t *offset, size_t bytes,
                                          uint64_t deadline_ns)
{
    return do_sendfile(out_fd, in_fd, offset, bytes, deadline_ns, RSI_CALLER());
}
