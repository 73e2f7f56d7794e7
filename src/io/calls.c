/* SPDX-License-Identifier: MIT */
/*
 * calls.c - read, write, recv, send and their variants: each call becomes an operation.
 *
 * On sockets they all become recvfrom, recvmsg, sendto or sendmsg with MSG_DONTWAIT, so the socket's own flags stay
 * unchanged. Writes use MSG_NOSIGNAL. On a pipe, a write without a reader raises SIGPIPE, as POSIX requires.
 */
#include "io/helper.h"

#include <rouse/io.h>

#include <errno.h>
#include <limits.h>

/* The kernel moves at most this many bytes per call; a longer request gets a short result. */
#define TRANSFER_MAX ((size_t)0x7ffff000)

/* Flags of socket calls that do not concern the stream's next bytes. */
#define ASIDE_FLAGS (MSG_OOB | MSG_ERRQUEUE)

static size_t clamp(size_t bytes)
{
    return bytes < TRANSFER_MAX ? bytes : TRANSFER_MAX;
}

static size_t iov_bytes(const struct iovec *iov, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return clamp(bytes);
}

static void set_args(struct rsi_io_op *op, long number, long b, long c, long d)
{
    op->number = number;
    op->arg[0] = op->fd;
    op->arg[1] = b;
    op->arg[2] = c;
    op->arg[3] = d;
    op->arg[4] = 0;
    op->arg[5] = 0;
}

/* The rules for a socket call with the caller's flags. */
static uint8_t socket_rules(int type, int flags)
{
    uint8_t rules = (flags & MSG_DONTWAIT) != 0 ? RSI_IO_ONCE : 0;
    if ((flags & ASIDE_FLAGS) != 0)
        return rules | RSI_IO_ONCE | RSI_IO_KEEPS;
    if ((flags & MSG_PEEK) != 0)
        return rules | RSI_IO_KEEPS;
    /* MSG_ZEROCOPY is also short when the memory for its notifications is used up. */
    if ((flags & MSG_ZEROCOPY) != 0)
        return rules;
    return type == RSI_FD_TCP ? rules | RSI_IO_SHORT_ENDS : rules;
}

/* A read or write on any descriptor. socket_call and plain_call each set the system call of op. */
struct stream_call {
    struct rsi_io_op op;
    void (*socket_call)(struct stream_call *call);
    void (*plain_call)(struct stream_call *call);
    void *buffer; /* or the iovec */
    size_t count; /* bytes, or elements of the iovec */
    struct msghdr message;
};

static long run_stream_call(struct stream_call *call)
{
    struct rsi_io_op *op = &call->op;
    for (;;) {
        int type = rsi_fdtable_find(op->fd, &op->ref);
        if (rsi_unlikely(type < 0))
            return type;
        long result;
        if (rsi_likely(rsi_fdtable_is_socket(type))) {
            /* As in the kernel: reading 0 bytes from a socket does not wait. */
            if (op->bytes == 0 && op->side == RSI_FD_READ)
                return 0;
            op->rules = type == RSI_FD_TCP ? RSI_IO_SHORT_ENDS : 0;
            call->socket_call(call);
            result = rsi_backend_run(op);
            if (rsi_likely(result != -ENOTSOCK))
                return result;
            rsi_fdtable_forget(op->fd, op->ref.entry,
                               op->site); /* its close was not seen, and the number was reused */
            continue;
        }
        op->rules = 0;
        call->plain_call(call);
        if (type == RSI_FD_FILE)
            return rsi_helper_run(op);
        result = type == RSI_FD_POLLABLE ? rsi_backend_run(op) : -EPERM;
        return rsi_likely(result != -EPERM) ? result : rsi_helper_run_ready(op);
    }
}

static void socket_read(struct stream_call *call)
{
    set_args(&call->op, SYS_recvfrom, (long)call->buffer, (long)call->count, MSG_DONTWAIT);
}

static void plain_read(struct stream_call *call)
{
    set_args(&call->op, SYS_read, (long)call->buffer, (long)call->count, 0);
}

static void socket_write(struct stream_call *call)
{
    set_args(&call->op, SYS_sendto, (long)call->buffer, (long)call->count,
             MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void plain_write(struct stream_call *call)
{
    set_args(&call->op, SYS_write, (long)call->buffer, (long)call->count, 0);
}

static void socket_readv(struct stream_call *call)
{
    call->message = (struct msghdr){ .msg_iov = call->buffer, .msg_iovlen = call->count };
    set_args(&call->op, SYS_recvmsg, (long)&call->message, MSG_DONTWAIT, 0);
}

static void plain_readv(struct stream_call *call)
{
    set_args(&call->op, SYS_readv, (long)call->buffer, (long)call->count, 0);
}

static void socket_writev(struct stream_call *call)
{
    call->message = (struct msghdr){ .msg_iov = call->buffer, .msg_iovlen = call->count };
    set_args(&call->op, SYS_sendmsg, (long)&call->message, MSG_DONTWAIT | MSG_NOSIGNAL, 0);
}

static void plain_writev(struct stream_call *call)
{
    set_args(&call->op, SYS_writev, (long)call->buffer, (long)call->count, 0);
}

static struct rsi_io_op op_init(int fd, uint8_t side, size_t bytes, uint64_t deadline_ns,
                                const void *site)
{
    return (struct rsi_io_op){ .fd = fd,
                               .side = side,
                               .kind = side == RSI_FD_READ ? ROUSE_WAIT_READ : ROUSE_WAIT_WRITE,
                               .bytes = bytes,
                               .site = site,
                               .deadline_ns = deadline_ns };
}

static ssize_t do_read(int fd, void *buffer, size_t bytes, uint64_t deadline_ns, const void *site)
{
    bytes = clamp(bytes);
    struct stream_call call = { .op = op_init(fd, RSI_FD_READ, bytes, deadline_ns, site),
                                .socket_call = socket_read,
                                .plain_call = plain_read,
                                .buffer = buffer,
                                .count = bytes };
    return run_stream_call(&call);
}

static ssize_t do_write(int fd, const void *buffer, size_t bytes, uint64_t deadline_ns,
                        const void *site)
{
    bytes = clamp(bytes);
    struct stream_call call = { .op = op_init(fd, RSI_FD_WRITE, bytes, deadline_ns, site),
                                .socket_call = socket_write,
                                .plain_call = plain_write,
                                .buffer = (void *)(uintptr_t)buffer,
                                .count = bytes };
    return run_stream_call(&call);
}

static ssize_t do_vector(int fd, uint8_t side, const struct iovec *iov, int count,
                         uint64_t deadline_ns, const void *site)
{
    if (count < 0 || count > IOV_MAX)
        return -EINVAL;
    if (!iov && count > 0)
        return -EFAULT;
    bool is_read = side == RSI_FD_READ;
    size_t bytes = iov_bytes(iov, (size_t)count);
    struct stream_call call = { .op = op_init(fd, side, bytes, deadline_ns, site),
                                .socket_call = is_read ? socket_readv : socket_writev,
                                .plain_call = is_read ? plain_readv : plain_writev,
                                .buffer = (void *)(uintptr_t)iov,
                                .count = (size_t)count };
    return run_stream_call(&call);
}

static long run_socket_call(struct rsi_io_op *op, int flags, long number, long b, long c, long d)
{
    int type = rsi_fdtable_find_socket(op->fd, &op->ref, op->site);
    if (rsi_unlikely(type < 0))
        return type;
    op->rules = socket_rules(type, flags);
    set_args(op, number, b, c, d);
    return rsi_backend_run(op);
}

static bool wants_all(int fd, int flags)
{
    struct rsi_fd_ref ref;
    if (rsi_likely((flags & MSG_WAITALL) == 0) ||
        (flags & (MSG_PEEK | MSG_DONTWAIT | ASIDE_FLAGS)) != 0)
        return false;
    int type = rsi_fdtable_find(fd, &ref);
    return type == RSI_FD_TCP || type == RSI_FD_STREAM;
}

static ssize_t recv_once(int fd, void *buffer, size_t bytes, int flags, uint64_t deadline_ns,
                         const void *site)
{
    bytes = clamp(bytes);
    struct rsi_io_op op = op_init(fd, RSI_FD_READ, bytes, deadline_ns, site);
    return run_socket_call(&op, flags, SYS_recvfrom, (long)buffer, (long)bytes,
                           flags | MSG_DONTWAIT);
}

/* A part was received and is returned, so the cancel that ended the call is kept for the next one. */
static void keep_cancel(ssize_t result, size_t done)
{
    if (result == -ECANCELED && done != 0)
        rouse_thread_cancel(rouse_thread_self());
}

/* MSG_WAITALL: receive until all bytes are there, the stream ends, or an error occurs. Returns what was received. */
static ssize_t recv_all(int fd, void *buffer, size_t bytes, int flags, uint64_t deadline_ns,
                        const void *site)
{
    size_t done = 0;
    do {
        ssize_t result =
            recv_once(fd, (char *)buffer + done, bytes - done, flags, deadline_ns, site);
        keep_cancel(result, done);
        if (result <= 0)
            return done != 0 ? (ssize_t)done : result;
        done += (size_t)result;
    } while (done < bytes);
    return (ssize_t)done;
}

static ssize_t do_recv(int fd, void *buffer, size_t bytes, int flags, uint64_t deadline_ns,
                       const void *site)
{
    if (rsi_unlikely(wants_all(fd, flags)))
        return recv_all(fd, buffer, clamp(bytes), flags & ~MSG_WAITALL, deadline_ns, site);
    return recv_once(fd, buffer, bytes, flags, deadline_ns, site);
}

/* MSG_WAITALL: fill the part of the vector behind the first done bytes. Returns the total. */
static ssize_t fill_rest(int fd, const struct msghdr *message, ssize_t done, int flags,
                         uint64_t deadline_ns, const void *site)
{
    size_t skip = (size_t)done;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *piece = &message->msg_iov[i];
        if (skip >= piece->iov_len) {
            skip -= piece->iov_len;
            continue;
        }
        size_t wanted = piece->iov_len - skip;
        ssize_t result =
            recv_all(fd, (char *)piece->iov_base + skip, wanted, flags, deadline_ns, site);
        done += result > 0 ? result : 0;
        keep_cancel(result, (size_t)done);
        if (result != (ssize_t)wanted)
            break;
        skip = 0;
    }
    return done;
}

static bool is_readable(const struct msghdr *message)
{
    return message && (message->msg_iov || message->msg_iovlen == 0);
}

static ssize_t do_recvmsg(int fd, struct msghdr *message, int flags, uint64_t deadline_ns,
                          const void *site)
{
    if (!is_readable(message))
        return -EFAULT;
    bool is_all = wants_all(fd, flags);
    size_t bytes = iov_bytes(message->msg_iov, message->msg_iovlen);
    struct rsi_io_op op = op_init(fd, RSI_FD_READ, bytes, deadline_ns, site);
    flags &= is_all ? ~MSG_WAITALL : ~0;
    ssize_t result =
        run_socket_call(&op, flags, SYS_recvmsg, (long)message, flags | MSG_DONTWAIT, 0);
    if (rsi_unlikely(is_all && result > 0 && (size_t)result < bytes))
        return fill_rest(fd, message, result, flags, deadline_ns, site);
    return result;
}

static ssize_t do_send(int fd, const void *buffer, size_t bytes, int flags, uint64_t deadline_ns,
                       const void *site)
{
    bytes = clamp(bytes);
    struct rsi_io_op op = op_init(fd, RSI_FD_WRITE, bytes, deadline_ns, site);
    return run_socket_call(&op, flags, SYS_sendto, (long)buffer, (long)bytes,
                           flags | MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * Whether no event announces room: for a datagram to a named unix socket, the kernel wakes only senders that are
 * connected to it, so the sender must retry.
 */
static bool is_unannounced(const struct rsi_io_op *op, int type, const struct msghdr *message)
{
    return type == RSI_FD_DATAGRAM && message->msg_name != NULL &&
           (rsi_load_relaxed(&op->ref.entry->flags) & RSI_FD_IS_UNIX) != 0;
}

static ssize_t do_sendmsg(int fd, const struct msghdr *message, int flags, uint64_t deadline_ns,
                          const void *site)
{
    if (!is_readable(message))
        return -EFAULT;
    size_t bytes = iov_bytes(message->msg_iov, message->msg_iovlen);
    struct rsi_io_op op = op_init(fd, RSI_FD_WRITE, bytes, deadline_ns, site);
    int type = rsi_fdtable_find_socket(fd, &op.ref, site);
    if (rsi_unlikely(type < 0))
        return type;
    op.rules = socket_rules(type, flags);
    /* The kernel refuses invalid ones immediately, however full the socket is: see is_spent in ready.c. */
    if (message->msg_control || message->msg_name)
        op.rules &= (uint8_t)~RSI_IO_SHORT_ENDS;
    if (rsi_unlikely(is_unannounced(&op, type, message)))
        op.rules |= RSI_IO_SLICED | RSI_IO_KEEPS;
    set_args(&op, SYS_sendmsg, (long)message, flags | MSG_DONTWAIT | MSG_NOSIGNAL, 0);
    return rsi_backend_run(&op);
}

RSI_NOINLINE ssize_t rouse_read(int fd, void *buffer, size_t bytes)
{
    return do_read(fd, buffer, bytes, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_read_until(int fd, void *buffer, size_t bytes, uint64_t deadline_ns)
{
    return do_read(fd, buffer, bytes, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_write(int fd, const void *buffer, size_t bytes)
{
    return do_write(fd, buffer, bytes, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_write_until(int fd, const void *buffer, size_t bytes,
                                       uint64_t deadline_ns)
{
    return do_write(fd, buffer, bytes, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_readv(int fd, const struct iovec *iov, int count)
{
    return do_vector(fd, RSI_FD_READ, iov, count, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_readv_until(int fd, const struct iovec *iov, int count,
                                       uint64_t deadline_ns)
{
    return do_vector(fd, RSI_FD_READ, iov, count, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_writev(int fd, const struct iovec *iov, int count)
{
    return do_vector(fd, RSI_FD_WRITE, iov, count, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_writev_until(int fd, const struct iovec *iov, int count,
                                        uint64_t deadline_ns)
{
    return do_vector(fd, RSI_FD_WRITE, iov, count, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_recv(int fd, void *buffer, size_t bytes, int flags)
{
    return do_recv(fd, buffer, bytes, flags, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_recv_until(int fd, void *buffer, size_t bytes, int flags,
                                      uint64_t deadline_ns)
{
    return do_recv(fd, buffer, bytes, flags, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_send(int fd, const void *buffer, size_t bytes, int flags)
{
    return do_send(fd, buffer, bytes, flags, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_send_until(int fd, const void *buffer, size_t bytes, int flags,
                                      uint64_t deadline_ns)
{
    return do_send(fd, buffer, bytes, flags, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_recvmsg(int fd, struct msghdr *message, int flags)
{
    return do_recvmsg(fd, message, flags, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_recvmsg_until(int fd, struct msghdr *message, int flags,
                                         uint64_t deadline_ns)
{
    return do_recvmsg(fd, message, flags, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return do_sendmsg(fd, message, flags, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_sendmsg_until(int fd, const struct msghdr *message, int flags,
                                         uint64_t deadline_ns)
{
    return do_sendmsg(fd, message, flags, deadline_ns, RSI_CALLER());
}
