/* SPDX-License-Identifier: MIT */
/*
 * multishot.h - receives that go on: bytes of a TCP stream that the kernel has already put into a buffer.
 *
 * A stream on which a thread had to wait once gets a multishot receive on the ring of that thread's worker:
 * from then on the kernel puts what arrives into one of the ring's buffers and says so, without being asked
 * again. What it brought hangs at the descriptor until a call takes it. To the rest of io this looks like
 * readiness: each completion counts an edge of the read side (fdtable.h), and a call that finds nothing
 * held gets EAGAIN and waits for the next edge.
 *
 *   none    the descriptor has no struct rsi_multishot: calls go to the kernel
 *   on      the kernel receives for it; no call may, or bytes would pass each other
 *   ending  a cancel is on its way; as on, but for new buffers
 *   ended   the kernel receives no more: when what is held is taken the struct goes: none
 *
 * It ends by itself when the stream does or no buffer is left, and is ended when it is of no use: a stream
 * that fills whole buffers would be copied twice for nothing, so it is read by plain calls from then on
 * (RSI_FD_IS_BULK); and by the close of the descriptor.
 * The struct is written under its descriptor's guard; it is released when the kernel knows of it no more.
 */
#ifndef RSI_IO_URING_MULTISHOT_H
#define RSI_IO_URING_MULTISHOT_H

#include "io/backend.h"
#include "io/uring/ring.h"

struct rsi_multishot;

/*
 * Begin to receive for op's descriptor, if that is of use; its side is then armed. Returns 1; 0: not here; or
 * -EBADF: it was closed. On a worker.
 */
int rsi_multishot_arm(const struct rsi_io_op *op);

/* Whether a ring receives, or has received, for entry. */
RSI_INLINE bool rsi_multishot_is_on(const struct rsi_fd *entry)
{
    return rsi_unlikely((rsi_load_relaxed(&entry->flags) & RSI_FD_IS_MULTISHOT) != 0);
}

/* What the kernel has brought for op, as the call would have it; -EAGAIN if there is nothing. */
long rsi_multishot_take(const struct rsi_io_op *op);

/*
 * refresh.c: have the kernel bring what has arrived by now, for a call that will not wait for it. Waits for the ring's
 * worker, if that is another, for a millisecond at most.
 */
void rsi_multishot_refresh(const struct rsi_io_op *op);

/* The index of the worker whose ring receives for fd, or -1. */
int rsi_multishot_worker(struct rsi_fd *entry, int fd);

/* What poll would say of what is held, in epoll's terms; 0: nothing. */
uint32_t rsi_multishot_events(struct rsi_fd *entry, int fd);

/*
 * The descriptor is being closed, or its number is another's: take its struct off. Under the guard; then, with
 * no guard held, rsi_multishot_drop with what it returned.
 */
struct rsi_multishot *rsi_multishot_detach_locked(struct rsi_fd *entry, int fd);
void rsi_multishot_drop(struct rsi_multishot *shot);

/* Whether its descriptor is still open; if not, it will not be submitted. On the ring's worker. */
bool rsi_multishot_is_current(struct rsi_multishot *shot);

void rsi_multishot_completed(struct rsi_ring *ring, struct rsi_multishot *shot,
                             const struct io_uring_cqe *completion, struct rsi_fd_batch *batch);

/* The answer to a request to stop one that was detached: rsi_ring_cancel. */
void rsi_multishot_cancel_answered(struct rsi_multishot *shot, int answer);

/* In a child after fork: what the parent's kernel brought is the parent's. */
void rsi_multishot_child(void);

#endif
