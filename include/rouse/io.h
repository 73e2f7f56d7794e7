/* SPDX-License-Identifier: MIT */
/*
 * rouse/io.h - blocking I/O calls that stop only the calling thread.
 *
 * The calls accept any descriptor, whatever created it. No registration is needed. TCP, UDP and unix sockets,
 * pipes, eventfds, timerfds, signalfds and the like wait in the poller (epoll) or in an io_uring. Regular files
 * are read and written by the kernel's io_uring workers, or else by helper kernel threads. Terminals, devices
 * and the standard streams wait in the poller, and a helper kernel thread then makes the call.
 *
 * Each call has the meaning and the arguments of its POSIX namesake, with these differences:
 *   - It returns -errno. It is never interrupted by a signal (no EINTR), and raises no SIGPIPE on sockets.
 *   - The _until forms return -ETIMEDOUT at deadline_ns (absolute CLOCK_MONOTONIC, ns; a past value: one attempt).
 *   - -ECANCELED: the thread was cancelled before anything was transferred.
 *   - -EBADF: also if rouse_close closes the descriptor while the call waits.
 *   - Deadlines, cancellation and rouse_close end waits. They do not interrupt transfers of regular files, nor
 *     other calls that a helper kernel thread has begun.
 * Reads and writes may be short, as in POSIX.
 *
 * A call on a ready descriptor does not wait, with three exceptions under io_uring. A send on a TCP stream, while
 * other threads are runnable, is submitted together with theirs: after they have run, or after 100 us if that is
 * sooner. A single attempt (a past deadline) on a stream or listener that another worker's io_uring serves waits
 * for that worker's answer if nothing is there yet, for at most 1 ms. rouse_close waits until the kernel receives no
 * more for the descriptor, for at most 100 ms.
 *
 * O_NONBLOCK: rouse sets it permanently on pipes and the like at their first use, on a listener at its first
 * rouse_accept, and on a socket at its first rouse_sendfile. Descriptors that rouse_accept returns have it.
 * rouse_connect sets it only while the call runs. Other calls on sockets do not change it, and no call changes
 * it on the standard streams, files and terminals. The flag belongs to the open file description: everyone who
 * shares it through dup, fork or a message sees it too. Do not clear it: a call that would block would then stop
 * its whole worker.
 *
 * Close a descriptor that these calls used with rouse_close, not with close. Otherwise threads that wait for it
 * are not woken, and a new descriptor with the same number may be handled as the old type. As in POSIX, a call
 * that starts while another thread closes its descriptor may act on a new descriptor with the same number. A call
 * that already waits never does.
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
 * accept: the new descriptor is close-on-exec. A connection that failed while it was queued is skipped.
 * connect: after -ETIMEDOUT or -ECANCELED the kernel still continues to connect a TCP socket. Such a socket can
 * only be closed.
 */
int rouse_accept(int fd, struct sockaddr *address, socklen_t *length);
int rouse_accept_until(int fd, struct sockaddr *address, socklen_t *length, uint64_t deadline_ns);

/*
 * Set the accept order: which of the user threads that wait in rouse_accept on fd receives the next connection.
 *
 * A listener without an order wakes the thread that has waited longest, but a thread that calls rouse_accept
 * while a connection is there takes it at once. With an order, a thread that calls while others wait queues too;
 * a call with a past deadline is still a single attempt outside the queue. A thread that has been passed over
 * for 100 ms goes first. Kernel threads and foreign threads wait in the kernel's order and ignore this one. The
 * order may be changed at any time.
 *
 * Returns  0; -EINVAL (unknown order, or fd does not listen); -EBADF; -ENOTSOCK; -ENOMEM; -EBUSY (threads already
 *          wait without an order).
 */
enum rouse_accept_order {
    /* The thread that has waited longest. */
    ROUSE_ACCEPT_FIFO,
    /* The thread that arrived last: its stack and data are still in the CPU's caches. */
    ROUSE_ACCEPT_LIFO,
    /* One of the 64 threads that have waited longest, at random. */
    ROUSE_ACCEPT_SCATTER,
};
int rouse_listener_order(int fd, enum rouse_accept_order order);

/*
 * Choose which of the processes that share the listener fd is woken for a connection. Create fd before the fork;
 * call one of these before the fork too, and before any thread waits. With neither, every process is woken and
 * the fastest takes the connection.
 *
 * exclusive: the kernel wakes one waiting process, usually the same one each time (EPOLLEXCLUSIVE).
 * turns: the processes accept in turn, one connection each, whether they are busy or not. At most `processes`
 * (1 to 256) take part at a time, each from its first rouse_accept until it calls rouse_close or ends. A turn that
 * is not used for 100 ms passes on, at the latest 200 ms after the connection arrived; the process that missed it
 * is skipped until it accepts again. In a process for which there is no room, rouse_accept returns -EUSERS.
 *
 * Both set the accept order to ROUSE_ACCEPT_FIFO if the listener has none.
 *
 * Returns  as rouse_listener_order. -EBUSY also if either was called before, or, with io_uring, if a thread has
 *          waited for a connection, since connections are then accepted ahead. turns also returns -EINVAL for
 *          an invalid number, and -EMFILE or -ENFILE (it uses one descriptor per process).
 */
int rouse_listener_exclusive(int fd);
int rouse_listener_turns(int fd, unsigned processes);

int rouse_connect(int fd, const struct sockaddr *address, socklen_t length);
int rouse_connect_until(int fd, const struct sockaddr *address, socklen_t length,
                        uint64_t deadline_ns);

/* Send from a regular file to a socket or pipe. offset is that of sendfile(2). */
ssize_t rouse_sendfile(int out_fd, int in_fd, off_t *offset, size_t bytes);
ssize_t rouse_sendfile_until(int out_fd, int in_fd, off_t *offset, size_t bytes,
                             uint64_t deadline_ns);

ssize_t rouse_pread(int fd, void *buffer, size_t bytes, off_t offset);
ssize_t rouse_pwrite(int fd, const void *buffer, size_t bytes, off_t offset);
int rouse_fsync(int fd);

int rouse_shutdown(int fd, int how);

/*
 * Hand a socket back to code that reads it by other calls than these: a library, read(2), a child, another process.
 * io_uring stops to receive for fd, for as long as fd is open, and bytes that it has received already are copied to
 * buffer, in order. Call it again until it returns 0. Nothing is lost or doubled, whatever it returns. Right after
 * rouse_accept or rouse_connect, rouse_release(fd, NULL, 0) keeps io_uring away from the start.
 *
 * The calls of this header still work on fd. O_NONBLOCK stays as it is.
 *
 * Returns  the bytes copied, at most `bytes`: call again; 0: the socket is released; -ENOBUFS (bytes is 0, and some have
 *          been received); -EAGAIN (the worker that receives was busy for 100 ms: call again); -EBUSY (a listener whose
 *          connections io_uring accepts already); the error that ended the stream, once; -EBADF; -ENOMEM.
 * Blocks   the calling thread only, for at most 100 ms.
 */
ssize_t rouse_release(int fd, void *buffer, size_t bytes);

/*
 * Close fd. Every thread that waits for it returns -EBADF. Returns 0 or -errno; the descriptor is closed in both
 * cases.
 *
 * Blocks  the calling thread only: until io_uring receives no more for fd, for at most 100 ms.
 */
int rouse_close(int fd);

/*
 * Run getaddrinfo(3) on a helper kernel thread. Returns its EAI_ code, or EAI_AGAIN if no helper could be started.
 */
int rouse_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                      struct addrinfo **result);

/*
 * Return how this process waits for I/O: "epoll" or "io_uring". *reason (may be NULL) receives one line that says
 * why. The first call of this header that needs a backend chooses it, from rouse_configure, ROUSE_IO and what the
 * kernel supports.
 *
 * With io_uring the kernel reads a TCP stream ahead into buffers of the runtime. This begins with the first call
 * that waits to read, or that follows a read which left nothing. From then on, read such a stream only with the
 * calls of this header, and only in this process, until rouse_release has handed it back.
 */
const char *rouse_io_backend(const char **reason);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
