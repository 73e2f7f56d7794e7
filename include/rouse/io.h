/* SPDX-License-Identifier: MIT */
/*
 * rouse/io.h - blocking calls on descriptors that stop the calling thread only.
 *
 * Any descriptor may be given, wherever it came from; nothing is registered by hand. TCP, UDP and unix
 * sockets, pipes, eventfds, timerfds, signalfds and the like wait in the poller, or for a ring. Regular files
 * are served by the kernel's own workers with io_uring, else by helper kernel threads; terminals, devices and
 * the standard streams wait in the poller and are then served by a helper.
 *
 * Each call has the meaning and the arguments of its namesake in POSIX, but returns -errno, is never
 * ended by EINTR, and never raises SIGPIPE on sockets. _until gives up at deadline_ns (absolute
 * CLOCK_MONOTONIC; a past value: one attempt) with -ETIMEDOUT. -ECANCELED: the thread was cancelled
 * before anything was transferred. -EBADF: also when the descriptor is closed by rouse_close while the
 * call waits. Reads and writes may be short, as in POSIX. Deadlines, cancels and closes end waits, not
 * transfers of files, nor others that a helper has begun.
 *
 * A call whose descriptor is ready does not wait. With io_uring, though, a send on a TCP stream in company of
 * other runnable threads goes out with theirs: when they have had their turn, or after 100 us if that is
 * sooner. And an attempt that finds nothing of a stream or listener that another worker's ring serves waits
 * for that worker's answer, 1 ms at most.
 *
 * O_NONBLOCK: rouse sets it, for good, on pipes and the like at their first use, on a listener at its first
 * rouse_accept, and on a socket at its first rouse_sendfile; what rouse_accept returns is made with it;
 * rouse_connect sets it for the time of the call. Other calls on sockets leave it alone, and so do all on
 * the standard streams, files and terminals. It belongs to the open file: who shares that, by dup, fork
 * or a message, sees it too. Do not clear it: a call that finds nothing would hold up its worker.
 *
 * Close a descriptor that was used here with rouse_close, not with close: otherwise threads that wait
 * for it are not told, and the number's next user may inherit its type. As in POSIX, a call that is just
 * being made while another thread closes its descriptor may meet the number's next one; a call that has
 * begun to wait never does.
 */
#ifndef ROUSE_IO_H
#define ROUSE_IO_H

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rouse/thread.h>

struct addrinfo;

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

ssize_t rouse_read(int fd, void *buffer, size_t bytes);
ssize_t rouse_read_until(int fd, void *buffer, size_t bytes, uint64_t deadline_ns);
ssize_t rouse_write(int fd, const void *buffer, size_t bytes);
ssize_t rouse_write_until(int fd, const void *buffer, size_t bytes, uint64_t deadline_ns);
ssize_t rouse_readv(int fd, const struct iovec *iov, int count);
ssize_t rouse_readv_until(int fd, const struct iovec *iov, int count, uint64_t deadline_ns);
ssize_t rouse_writev(int fd, const struct iovec *iov, int count);
ssize_t rouse_writev_until(int fd, const struct iovec *iov, int count, uint64_t deadline_ns);

ssize_t rouse_recv(int fd, void *buffer, size_t bytes, int flags);
ssize_t rouse_recv_until(int fd, void *buffer, size_t bytes, int flags, uint64_t deadline_ns);
ssize_t rouse_send(int fd, const void *buffer, size_t bytes, int flags);
ssize_t rouse_send_until(int fd, const void *buffer, size_t bytes, int flags, uint64_t deadline_ns);
ssize_t rouse_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t rouse_recvmsg_until(int fd, struct msghdr *message, int flags, uint64_t deadline_ns);
ssize_t rouse_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t rouse_sendmsg_until(int fd, const struct msghdr *message, int flags, uint64_t deadline_ns);

/*
 * accept: the new descriptor is close-on-exec. Errors of a connection that died in the queue are passed
 * over. connect: after -ETIMEDOUT or -ECANCELED a TCP connection is still being made; such a socket is good
 * for rouse_close only.
 */
int rouse_accept(int fd, struct sockaddr *address, socklen_t *length);
int rouse_accept_until(int fd, struct sockaddr *address, socklen_t *length, uint64_t deadline_ns);
/*
 * Which of the user threads that wait in rouse_accept on fd gets the next connection. A listener that was
 * given no order wakes the one that waits longest, but who calls while a connection is there takes it. With
 * an order whoever calls while others wait waits too; a call with a past deadline is an attempt, out of turn.
 * A thread over which others were preferred for 100 ms goes first. Kernel and foreign threads wait in the
 * kernel's order and take no notice of this one. The order may be changed at any time.
 *
 * Returns 0; -EINVAL: no such order, or fd does not listen; -EBADF, -ENOTSOCK; -ENOMEM; -EBUSY: threads
 * already wait without an order.
 */
enum rouse_accept_order {
    ROUSE_ACCEPT_FIFO,    /* the one that waits longest */
    ROUSE_ACCEPT_LIFO,    /* the one that came last: its stack and data are still in the caches */
    ROUSE_ACCEPT_SCATTER, /* one of the 64 that wait longest, by chance */
};
int rouse_listener_order(int fd, enum rouse_accept_order order);

/*
 * Which of the processes that share fd, which was made before they were forked, is woken for a connection;
 * to be called before the fork, and before a thread waits. Without either each one is, and the fastest gets it.
 *
 * exclusive: the kernel wakes one process that waits, as a rule always the same (EPOLLEXCLUSIVE).
 * turns: the processes accept in turn, each one connection, whether it is busy or not. Up to so many (1 to
 * 256) take part at a time, each from its first rouse_accept until rouse_close or its end. A turn that is not
 * taken for 100 ms passes on, at the latest 200 ms after the connection came; whoever missed it is left out
 * until it accepts again. rouse_accept returns -EUSERS to a process for which there is no room.
 *
 * Both give the listener the order fifo, if it has none. Return as rouse_listener_order; -EBUSY also if one of
 * both was called before, or, with io_uring, connections of fd are accepted ahead, since a thread has waited
 * for one. turns: also -EINVAL for the number, -EMFILE, -ENFILE (it takes a descriptor a process).
 */
int rouse_listener_exclusive(int fd);
int rouse_listener_turns(int fd, unsigned processes);

int rouse_connect(int fd, const struct sockaddr *address, socklen_t length);
int rouse_connect_until(int fd, const struct sockaddr *address, socklen_t length,
                        uint64_t deadline_ns);

/* From a regular file to a socket or pipe. offset as in sendfile(2). */
ssize_t rouse_sendfile(int out_fd, int in_fd, off_t *offset, size_t bytes);
ssize_t rouse_sendfile_until(int out_fd, int in_fd, off_t *offset, size_t bytes,
                             uint64_t deadline_ns);

ssize_t rouse_pread(int fd, void *buffer, size_t bytes, off_t offset);
ssize_t rouse_pwrite(int fd, const void *buffer, size_t bytes, off_t offset);
int rouse_fsync(int fd);

int rouse_shutdown(int fd, int how);

/* Every thread that waits for fd returns -EBADF. Returns 0 or -errno; the descriptor is gone either way. */
int rouse_close(int fd);

/* getaddrinfo on a helper thread; returns its EAI_ code, or EAI_AGAIN when no helper could be had. */
int rouse_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                      struct addrinfo **result);

/*
 * How this process waits for I/O: "epoll" or "io_uring"; *reason (may be NULL) gets one line of why. Settled
 * by the first call of this header that needs it, as rouse_configure, ROUSE_IO and the kernel allow.
 *
 * With io_uring the kernel reads a TCP stream ahead into buffers of the runtime, from the first call on that
 * waits to read or comes after one which left nothing: such a stream is to be read by the calls of this header
 * only, by this process only.
 */
const char *rouse_io_backend(const char **reason);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
