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

#include "core/poller.h"
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
    /*
     * Have events of op's side reported for its descriptor from now on, and once at once if it is ready.
     * Returns 0 or -errno.
     */
    int (*arm)(const struct rsi_io_op *op);
    const struct rsi_poller *poller;
};

extern const struct rsi_io_backend rsi_epoll_backend, rsi_uring_backend;

/* The backend of this process: chosen at the first call that needs one. NULL until then. */
extern const struct rsi_io_backend *rsi_backend_chosen;
const struct rsi_io_backend *rsi_backend_choose(void);

/* In a child after fork: choose anew. */
void rsi_backend_child(void);

RSI_INLINE const struct rsi_io_backend *rsi_backend(void)
{
    const struct rsi_io_backend *backend = rsi_load_relaxed(&rsi_backend_chosen);
    return rsi_likely(backend != NULL) ? backend : rsi_backend_choose();
}

RSI_INLINE bool rsi_backend_has_rings(void)
{
    return rsi_backend() == &rsi_uring_backend;
}

RSI_INLINE long rsi_backend_run(struct rsi_io_op *op)
{
    long result = rsi_backend()->run(op);
    rsi_account_call(op->kind, result);
    return result;
}

#endif
