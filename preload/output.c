/* SPDX-License-Identifier: MIT */
/*
 * output.c - write, send and their kin, connect, fsync: calls that wait for room, for a peer, for a disk.
 *
 * On sockets those with one buffer are made without waiting first; what is left then is sent as the program has it. For
 * the others the kernel's count of the thread's own switches tells whether they have waited: two system calls more,
 * and only where there is no room for what is written at once.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "preload.h"

#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { WRITE, WRITEV, SEND, SENDTO, SENDMSG, CONNECT, SYNC, DATASYNC };

struct asked {
    enum call call;
    int fd, flags;
    const void *buffer; /* of WRITEV and SENDMSG: the structure */
    size_t bytes;
    const struct sockaddr *to;
    socklen_t to_bytes;
};

static ssize_t call_real(const struct asked *a)
{
    switch (a->call) {
    case WRITE: return rsi_real.write(a->fd, a->buffer, a->bytes);
    case WRITEV: return rsi_real.writev(a->fd, a->buffer, (int)a->bytes);
    case SEND: return rsi_real.send(a->fd, a->buffer, a->bytes, a->flags);
    case SENDTO: return rsi_real.sendto(a->fd, a->buffer, a->bytes, a->flags, a->to, a->to_bytes);
    case SENDMSG: return rsi_real.sendmsg(a->fd, a->buffer, a->flags);
    case CONNECT: return rsi_real.connect(a->fd, a->to, a->to_bytes);
    case SYNC: return rsi_real.fsync(a->fd);
    default: return rsi_real.fdatasync(a->fd);
    }
}

static enum rouse_wait_kind kind_of(const struct asked *a)
{
    return a->call == CONNECT  ? ROUSE_WAIT_CONNECT
           : a->call > CONNECT ? ROUSE_WAIT_BLOCKING
                               : ROUSE_WAIT_WRITE;
}

/* How often the thread has gone to sleep so far. */
static long switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

static ssize_t done(const struct asked *a, ssize_t result)
{
    if (result >= 0)
        rsi_record_call(kind_of(a));
    return result;
}

/* As the program has it. It is a wait if the thread slept. */
static ssize_t wait_for(const struct asked *a, const void *site)
{
    struct rsi_wait wait;
    ssize_t result;
    long before = switches();
    if (!rsi_wait_begin(&wait, kind_of(a), (const void *)(intptr_t)a->fd, site))
        return call_real(a);
    pthread_cleanup_push(rsi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    enum rouse_verdict verdict = result >= 0       ? ROUSE_VERDICT_USEFUL
                                 : errno == EAGAIN ? ROUSE_VERDICT_TIMEOUT /* of SO_SNDTIMEO */
                                                   : ROUSE_VERDICT_CANCELLED;
    int error = errno;
    bool has_slept = switches() != before;
    errno = error;
    rsi_wait_end(&wait, has_slept ? verdict : ROUSE_VERDICT_NONE, NULL);
    return done(a, result);
}

static bool is_nonblock(const struct asked *a)
{
    return a->flags & MSG_DONTWAIT || rsi_fd_is_nonblock(a->fd);
}

/* One buffer for a socket. */
static ssize_t send_one(const struct asked *a, const void *site)
{
    struct asked now = *a, rest = *a;
    int error = errno;
    now.call = a->call == WRITE ? SEND : a->call;
    now.flags |= MSG_DONTWAIT;
    ssize_t sent = call_real(&now);
    if (sent < 0 && errno == ENOTSOCK && a->call == WRITE) { /* it was one: see fds.c */
        rsi_fd_made(a->fd, RSI_FD_UNKNOWN);
        errno = error;
        return call_real(a);
    }
    bool is_full = sent < 0 && errno == EAGAIN;
    if ((sent < 0 && !is_full) || sent == (ssize_t)a->bytes || is_nonblock(a))
        return done(a, sent);
    errno = error;
    rest.buffer = is_full ? a->buffer : (const char *)a->buffer + sent;
    rest.bytes = is_full ? a->bytes : a->bytes - (size_t)sent;
    ssize_t result = wait_for(&rest, site);
    if (is_full)
        return result;
    errno = error;
    return sent + (result > 0 ? result : 0); /* an error is told by the next call */
}

static ssize_t put_out(const struct asked *a, const void *site)
{
    rsi_real_find();
    enum rsi_fd_class class = a->call <= WRITEV ? rsi_fd_class_of(a->fd) : RSI_FD_SOCKET;
    if (class == RSI_FD_FILE)
        return call_real(a);
    if (class == RSI_FD_SOCKET && a->call != WRITEV && a->call != SENDMSG)
        return send_one(a, site);
    bool is_little = a->call == WRITE && a->bytes <= PIPE_BUF && rsi_fd_is_ready(a->fd, POLLOUT);
    return is_little || is_nonblock(a) ? done(a, call_real(a)) : wait_for(a, site);
}

RSI_EXPORT RSI_NOINLINE ssize_t write(int fd, const void *buffer, size_t bytes)
{
    return put_out(&(struct asked){ WRITE, fd, 0, buffer, bytes, NULL, 0 }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return put_out(&(struct asked){ WRITEV, fd, 0, parts, (size_t)count, NULL, 0 }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE ssize_t send(int fd, const void *buffer, size_t bytes, int flags)
{
    return put_out(&(struct asked){ SEND, fd, flags, buffer, bytes, NULL, 0 }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE ssize_t sendto(int fd, const void *buffer, size_t bytes, int flags,
                                       const struct sockaddr *to, socklen_t to_bytes)
{
    return put_out(&(struct asked){ SENDTO, fd, flags, buffer, bytes, to, to_bytes }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return put_out(&(struct asked){ SENDMSG, fd, flags, message, 0, NULL, 0 }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int connect(int fd, const struct sockaddr *to, socklen_t to_bytes)
{
    rsi_real_find();
    struct asked a = { CONNECT, fd, 0, NULL, 0, to, to_bytes };
    return (int)(rsi_fd_is_nonblock(fd) ? call_real(&a) : wait_for(&a, RSI_CALLER()));
}

RSI_EXPORT RSI_NOINLINE int fsync(int fd)
{
    rsi_real_find();
    return (int)wait_for(&(struct asked){ .call = SYNC, .fd = fd }, RSI_CALLER());
}

RSI_EXPORT RSI_NOINLINE int fdatasync(int fd)
{
    rsi_real_find();
    return (int)wait_for(&(struct asked){ .call = DATASYNC, .fd = fd }, RSI_CALLER());
}
