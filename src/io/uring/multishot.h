/* SPDX-License-Identifier: MIT */
/*
 * multishot.h - multishot receive and accept: one request, after which the kernel delivers data as it arrives.
 *
 * When a thread first has to wait on a TCP stream, its worker's ring starts a multishot receive. From then on the
 * kernel puts arriving bytes into one of the ring's buffers and posts a completion, without being asked again.
 * The buffers are held for the descriptor until a call takes them. Listeners use a multishot accept in the same
 * way, and hold accepted connections. To the rest of io this looks like readiness: each completion counts an edge
 * of the read side (fdtable.h), and a call that finds nothing held gets EAGAIN and waits for the next edge.
 *
 *   none    the descriptor has no struct rsi_multishot: calls go to the kernel
 *   on      the kernel receives for it. No call may receive directly, or bytes would overtake each other
 *   ending  a cancel has been requested. As on, except that no new buffers are expected
 *   ended   the kernel has stopped. When all held data has been taken the struct is freed: none
 *
 * A receive ends by itself when the stream ends or no buffer is free. It is cancelled when the descriptor is
 * closed, and when it does not pay: a stream that fills whole buffers would be copied twice, so plain calls read
 * it from then on (RSI_FD_IS_BULK).
 * The struct is written under its descriptor's guard. It is freed when the kernel no longer refers to it.
 */
#ifndef RSI_IO_URING_MULTISHOT_H
#define RSI_IO_URING_MULTISHOT_H

#include "io/backend.h"
#include "io/uring/ring.h"

struct rsi_multishot;

/*
 * Start a multishot receive or accept for op's descriptor, if it is suited; its read side is then armed. Returns 1
 * if it is armed, 0 if it is not suited, or -EBADF if it was closed. On a worker.
 */
int rsi_multishot_arm(const struct rsi_io_op *op);

/* Whether a ring receives for entry, or still holds data for it. */
RSI_INLINE bool rsi_multishot_is_on(const struct rsi_fd *entry)
{
    return rsi_unlikely((rsi_load_relaxed(&entry->flags) & RSI_FD_IS_MULTISHOT) != 0);
}

/* Take held data for op. Returns what the system call would return; -EAGAIN if nothing is held. */
long rsi_multishot_take(const struct rsi_io_op *op);

/*
 * Make the kernel deliver what has arrived by now, for a call that will not wait. If the ring belongs to another
 * worker, this waits for that worker for at most 1 ms.
 */
void rsi_multishot_refresh(const struct rsi_io_op *op);

/*
 * Hand the descriptor back: take held data for op (a recvfrom), and have the ring stop to receive for it. No ring
 * receives for it again. Returns the bytes taken; 0 once nothing is held and no ring receives; how the stream ended, if
 * by an error; -ENOBUFS if something is held and op takes no bytes; -EBUSY: a ring accepts; -EBADF; -EAGAIN if the
 * ring's worker has not answered by op's deadline.
 */
long rsi_multishot_release(const struct rsi_io_op *op);

/* The index of the worker whose ring receives for fd, or -1. */
int rsi_multishot_worker(struct rsi_fd *entry, int fd);

/* The events that poll would report for the held data, as epoll bits. 0 if nothing is held. */
uint32_t rsi_multishot_events(struct rsi_fd *entry, int fd);

/*
 * The descriptor is being closed, or its number now names another one: detach its struct. Called under the guard.
 * The caller passes the result to rsi_multishot_drop, with no guard held, before close(2). That drops what is held, and
 * returns the struct if the kernel still receives. Then one of these follows:
 *
 * cancel: ask the ring's worker to stop it.
 * stop:   the same, and park until it takes no more data, since what arrives after a close is for the copies of the
 *         descriptor. The worker submits the request with its round. This waits at most 100 ms, for a worker that does
 *         not end its turn. Data that arrives after that, before the worker submits the request, is lost.
 */
struct rsi_multishot *rsi_multishot_detach_locked(struct rsi_fd *entry, int fd);
struct rsi_multishot *rsi_multishot_drop(struct rsi_multishot *shot);
void rsi_multishot_cancel(struct rsi_multishot *shot);
void rsi_multishot_stop(struct rsi_multishot *shot, const void *site);

/*
 * Before submission: whether its descriptor is still open. If not, the entry is not submitted. On the ring's
 * worker.
 */
bool rsi_multishot_is_current(struct rsi_multishot *shot);

/*
 * A completion has arrived: hold what it brought and report an edge, whose claimed threads join batch. On the
 * ring's worker.
 */
void rsi_multishot_completed(struct rsi_ring *ring, struct rsi_multishot *shot,
                             const struct io_uring_cqe *completion, struct rsi_fd_batch *batch);

/* The kernel has answered a request to stop a detached receive (rsi_ring_cancel). Inside the ring's lock. */
void rsi_multishot_cancel_answered(struct rsi_multishot *shot, int answer,
                                   struct rsi_fd_batch *batch);

/* In a child after fork: forget what the parent's rings hold. */
void rsi_multishot_child(void);

#endif
