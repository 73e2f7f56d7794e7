/* SPDX-License-Identifier: MIT */
/*
 * backend.h - how an I/O call is carried out: the contract between the calls and what waits for them.
 *
 * An operation (struct rsi_io_op) is one system call, named by its number and arguments, that is to be
 * carried out for a thread without blocking that thread's worker. It lies on its thread's stack.
 *
 *   submitted   by run, on the worker that the thread runs on: the operation's owner. From here the
 *               operation owns its buffer, address and message header.
 *   completed   run returns the call's result. Only now does the caller own the buffer again.
 *   cancelled   by the deadline, a cancel of the thread or a close of the descriptor. run does not
 *               return before the cancel is acknowledged, that is, before nobody will touch the buffer
 *               any more; a result that came first is kept, so that no byte is lost.
 *
 * A backend of readiness (epoll) meets this without further state: the kernel touches the buffer only
 * inside the call that run makes itself, which is tried first and again after each wake-up. So nothing
 * is in flight while a thread sleeps, a cancel needs no acknowledgement, and no worker needs to own the
 * operation. A backend of completion (io_uring) fills an entry of its worker's ring from number and arg,
 * parks the thread, and stores the completion in the operation before it claims the thread; after a
 * claim by timer, cancel or close it submits an asynchronous cancel and waits for its acknowledgement
 * before run returns. That is why an operation is described as data and not as a function to be called.
 */
#ifndef RSI_IO_BACKEND_H
#define RSI_IO_BACKEND_H

#include "io/fdtable.h"
#include "os/os.h"

/* rules; SLICED and PROBE come with KEEPS */
#define RSI_IO_SHORT_ENDS 1u /* a short result means that the queue is now empty, or full */
#define RSI_IO_KEEPS 2u  /* does not consume (peek): neither result nor EAGAIN tells of the queue */
#define RSI_IO_SLICED 4u /* no event may announce the end of EAGAIN: try again from time to time */
#define RSI_IO_ONCE 8u   /* EAGAIN is the caller's answer */
#define RSI_IO_MUTE 16u  /* can raise SIGPIPE and has no MSG_NOSIGNAL: keep it from doing so */
#define RSI_IO_PROBE 32u /* the call tells whether the descriptor is ready: 0 means EAGAIN */

struct rsi_io_op {
    struct rsi_fd_ref ref; /* of fd, from rsi_fdtable_find */
    int fd;
    uint8_t side; /* RSI_FD_READ or RSI_FD_WRITE: what to wait for */
    uint8_t rules;
    uint8_t kind; /* enum rouse_wait_kind */
    long number;  /* of the system call, which does not block */
    long arg[6];
    size_t bytes; /* wanted, for RSI_IO_SHORT_ENDS */
    const void *site;
    uint64_t deadline_ns;
};

struct rsi_io_backend {
    const char *name;
    /*
     * Carry out op. Returns the call's result >= 0 or -errno, -ETIMEDOUT, -ECANCELED, -EBADF when the
     * descriptor was closed, or why it cannot be waited for (-ENOMEM, -ENOSPC, -EMFILE; -EPERM if it is
     * of a sort that cannot be polled). Past deadlines: one attempt.
     */
    long (*run)(struct rsi_io_op *op);
    struct rsi_poller poller;
};

extern const struct rsi_io_backend rsi_epoll_backend;

RSI_INLINE long rsi_backend_run(struct rsi_io_op *op)
{
    return rsi_epoll_backend.run(op);
}

#endif
