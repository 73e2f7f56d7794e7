/* SPDX-License-Identifier: MIT */
/*
 * write.c - write, send and their kin, connect, fsync: calls that wait for room, for a peer, for a disk.
 *
 * Each call is made once, as the program asked. If we tried first without waiting and the kernel took a part, the rest
 * would be a second call, which signals, timeouts and errors end differently. The kernel's count of the thread's
 * voluntary switches shows whether the call waited, at the cost of two system calls. They are saved where a poll
 * reports room for a small write, and on sockets and pipes that take the data whole or not at all, if they take it
 * without waiting.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "accept/descriptor.h"
#include "process/real.h"
#include "record/wait.h"

#include <limits.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * In bytes. WHOLE: the kernel's smallest buffer has room for it. ADDED: the most that the kernel adds to what is sent.
 * MOST: larger than any buffer.
 */
#define WHOLE 2048u
#define ADDED 8192u
#define MOST (1u << 30)

enum call { WRITE, WRITEV, SEND, SENDTO, SENDMSG, SENDMMSG, CONNECT, SYNC, DATASYNC };

struct asked {
    enum call call;
    int fd, flags;
    const void *buffer; /* WRITEV, SENDMSG and SENDMMSG: the structure */
    size_t bytes;       /* WRITEV and SENDMMSG: the number of parts or messages */
    const struct sockaddr *to;
    socklen_t to_bytes;
};

static ssize_t call_real(const struct asked *a)
{
    switch (a->call) {
    case WRITE: return rpi_real.write(a->fd, a->buffer, a->bytes);
    case WRITEV: return rpi_real.writev(a->fd, a->buffer, (int)a->bytes);
    case SEND: return rpi_real.send(a->fd, a->buffer, a->bytes, a->flags);
    case SENDTO: return rpi_real.sendto(a->fd, a->buffer, a->bytes, a->flags, a->to, a->to_bytes);
    case SENDMSG: return rpi_real.sendmsg(a->fd, a->buffer, a->flags);
    case SENDMMSG:
        return rpi_real.sendmmsg(a->fd, (struct mmsghdr *)(uintptr_t)a->buffer, (unsigned)a->bytes,
                                 a->flags);
    case CONNECT: return rpi_real.connect(a->fd, a->to, a->to_bytes);
    case SYNC: return rpi_real.fsync(a->fd);
    default: return rpi_real.fdatasync(a->fd);
    }
}

static enum rouse_wait_kind kind_of(const struct asked *a)
{
    return a->call == CONNECT  ? ROUSE_WAIT_CONNECT
           : a->call > CONNECT ? RSI_STORE_WAIT_SYNC
                               : ROUSE_WAIT_WRITE;
}

static ssize_t done(const struct asked *a, ssize_t result)
{
    if (result >= 0)
        rpi_wait_count_call(kind_of(a));
    return result;
}

/* The program's call. It was a wait if the thread slept. */
static ssize_t wait_for(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    ssize_t result;
    if (rpi_recording_is_confined())
        return call_real(a);
    uint64_t before = rpi_thread_switches();
    if (!rpi_wait_begin(&wait, kind_of(a), (const void *)(intptr_t)a->fd, site))
        return call_real(a);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    enum rouse_verdict verdict = result >= 0       ? ROUSE_VERDICT_USEFUL
                                 : errno == EAGAIN ? ROUSE_VERDICT_TIMEOUT /* by SO_SNDTIMEO */
                                                   : ROUSE_VERDICT_CANCELLED;
    int error = errno;
    bool has_slept = rpi_wait_goes_on(&wait) && rpi_thread_switches() != before;
    errno = error;
    rpi_wait_end(&wait, has_slept ? verdict : ROUSE_VERDICT_NONE, NULL);
    return done(a, result);
}

static bool is_nonblock(const struct asked *a)
{
    return a->flags & MSG_DONTWAIT || rpi_fd_is_nonblock(a->fd);
}

/*
 * Whether there is room for a small write. A closed or still connecting descriptor has further events, and returns
 * false.
 */
static bool is_ready(int fd)
{
    struct pollfd entry = { fd, POLLOUT, 0 };
    return rpi_real.poll(&entry, 1, 0) == 1 && entry.revents == POLLOUT;
}

/* Whether the socket's buffer has room for bytes, with what the kernel adds to them. */
static bool has_room(int fd, size_t bytes)
{
    uint32_t memory[SK_MEMINFO_VARS];
    socklen_t size = sizeof memory;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) != 0 || size != sizeof memory)
        return false;
    uint64_t sent = memory[SK_MEMINFO_WMEM_ALLOC], queued = memory[SK_MEMINFO_WMEM_QUEUED];
    uint64_t used = sent > queued ? sent : queued;
    return bytes < MOST && used + 2 * bytes + ADDED < memory[SK_MEMINFO_SNDBUF];
}

/* Whether the call passes one buffer and its length. */
static bool is_one_buffer(const struct asked *a)
{
    return a->call == WRITE || a->call == SEND || a->call == SENDTO;
}

/* Whether there is room for the whole buffer, so that the call will not wait. */
static bool fits(const struct asked *a, enum rpi_fd_class class)
{
    if (!is_one_buffer(a) || a->to || a->flags & (MSG_DONTWAIT | MSG_FASTOPEN))
        return false;
    int error = errno;
    bool is_it = a->bytes <= PIPE_BUF   ? is_ready(a->fd)
                 : class >= RPI_FD_PIPE ? false
                                        : has_room(a->fd, a->bytes);
    errno = error;
    return is_it;
}

/* Make the program's call, on any descriptor. */
static ssize_t put_out_any(const struct asked *a, enum rpi_fd_class class, const void *site)
{
    return fits(a, class) || is_nonblock(a) ? done(a, call_real(a)) : wait_for(a, site);
}

/* Send on a socket that takes the data whole or not at all. */
static ssize_t send_whole(const struct asked *a, const void *site)
{
    struct asked now = *a;
    int error = errno;
    now.call = a->call == WRITE ? SEND : a->call;
    now.flags |= MSG_DONTWAIT;
    ssize_t sent = call_real(&now);
    /* No longer a socket: see record/fd_class.c. */
    if (sent < 0 && errno == ENOTSOCK && a->call == WRITE) {
        rpi_descriptor_made(a->fd, RPI_FD_UNKNOWN);
        errno = error;
        return call_real(a);
    }
    if (sent >= 0 || errno != EAGAIN || is_nonblock(a))
        return done(a, sent);
    errno = error;
    return wait_for(a, site);
}

/* Write to a pipe so little that it takes all or nothing. */
static ssize_t write_to_pipe(const struct asked *a, const void *site)
{
    struct iovec part = { (void *)(uintptr_t)a->buffer, a->bytes };
    int error = errno;
    ssize_t written = pwritev2(a->fd, &part, 1, -1, RWF_NOWAIT);
    if (written < 0 && rpi_fd_lacks_nowait(a->fd, errno)) {
        errno = error;
        return put_out_any(a, RPI_FD_OTHER, site);
    }
    if (written >= 0 || errno != EAGAIN || is_nonblock(a))
        return done(a, written);
    errno = error;
    return wait_for(a, site);
}

static ssize_t put_out(const struct asked *a, const void *site)
{
    rpi_real_find();
    if (rpi_recording_is_confined())
        return call_real(a);
    enum rpi_fd_class class = rpi_fd_class_of(a->fd);
    if (class == RPI_FD_FILE && a->call <= WRITEV)
        return call_real(a);
    bool is_whole = class == RPI_FD_MESSAGE || (class == RPI_FD_WHOLE && a->bytes <= WHOLE);
    if (is_whole && is_one_buffer(a) && !(a->flags & ~MSG_NOSIGNAL))
        return send_whole(a, site);
    if (class == RPI_FD_PIPE && a->call == WRITE && a->bytes > 0 && a->bytes <= PIPE_BUF)
        return write_to_pipe(a, site);
    return put_out_any(a, class, site);
}

RPI_EXPORT RSI_NOINLINE ssize_t write(int fd, const void *buffer, size_t bytes)
{
    return put_out(&(struct asked){ WRITE, fd, 0, buffer, bytes, NULL, 0 }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return put_out(&(struct asked){ WRITEV, fd, 0, parts, (size_t)count, NULL, 0 }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t send(int fd, const void *buffer, size_t bytes, int flags)
{
    return put_out(&(struct asked){ SEND, fd, flags, buffer, bytes, NULL, 0 }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t sendto(int fd, const void *buffer, size_t bytes, int flags,
                                       const struct sockaddr *to, socklen_t to_bytes)
{
    return put_out(&(struct asked){ SENDTO, fd, flags, buffer, bytes, to, to_bytes }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return put_out(&(struct asked){ SENDMSG, fd, flags, message, 0, NULL, 0 }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    struct asked a = { SENDMMSG, fd, flags, messages, count, NULL, 0 };
    return (int)put_out(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int connect(int fd, const struct sockaddr *to, socklen_t to_bytes)
{
    rpi_real_find();
    struct asked a = { CONNECT, fd, 0, NULL, 0, to, to_bytes };
    return (int)(rpi_recording_is_confined() || rpi_fd_is_nonblock(fd)
                     ? call_real(&a)
                     : wait_for(&a, RSI_CALLER()));
}

RPI_EXPORT RSI_NOINLINE int fsync(int fd)
{
    rpi_real_find();
    return (int)wait_for(&(struct asked){ .call = SYNC, .fd = fd }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int fdatasync(int fd)
{
    rpi_real_find();
    return (int)wait_for(&(struct asked){ .call = DATASYNC, .fd = fd }, RSI_CALLER());
}
