/* SPDX-License-Identifier: MIT */
/*
 * backend.h - how an I/O call is carried out: the contract between the calls and the two backends.
 *
 * An operation (struct rsi_io_op) is one system call, given by its number and arguments, to be carried out for a
 * thread without blocking the thread's worker. It lies on the thread's stack.
 *
 *   submitted   by run, on the thread's current worker, which owns the operation. From here on the operation owns its
 *               buffer, address and message header.
 *   completed   run returns the call's result. Only now does the caller own the buffer again.
 *   cancelled   by the deadline, a cancel of the thread or a close of the descriptor. run does not return before the
 *               cancel is acknowledged, that is, before the buffer is certain to be untouched. A result that came
 *               first is kept, so that no byte is lost.
 *
 * The readiness backend (epoll) needs no further state for this: the kernel touches the buffer only inside the system
 * call that run itself makes, first and again after each wake-up. So nothing is in flight while the thread sleeps, a
 * cancel needs no acknowledgement, and no worker has to own the operation. The completion backend (io_uring) fills an
 * entry of its worker's ring from number and arg, parks the thread, and stores the completion in the operation before
 * it claims the thread. After a claim by timer, cancel or close it submits an asynchronous cancel and waits for its
 * acknowledgement before run returns. For this reason an operation is data, and not a function to be called.
 */
#ifndef RSI_IO_BACKEND_H
#define RSI_IO_BACKEND_H

#include "core/poller.h"
#include "io/fdtable.h"
#include "os/os.h"

/* rules. SLICED and PROBE require KEEPS */
#define RSI_IO_SHORT_ENDS 1u /* a short result means that the queue is now empty, or full */
#define RSI_IO_KEEPS 2u      /* a peek: its result and EAGAIN say nothing about the queue */
#define RSI_IO_SLICED 4u     /* perhaps no event ends EAGAIN: try again from time to time */
#define RSI_IO_ONCE 8u       /* return EAGAIN to the caller */
#define RSI_IO_MUTE 16u      /* can raise SIGPIPE and has no MSG_NOSIGNAL: suppress the signal */
#define RSI_IO_PROBE 32u /* the call only asks whether the descriptor is ready: 0 means EAGAIN */

struct rsi_io_op {
    struct rsi_fd_ref ref; /* of fd, from rsi_fdtable_find */
    int fd;
    uint8_t side; /* RSI_FD_READ or RSI_FD_WRITE: what to wait for */
    uint8_t rules;
    uint8_t kind; /* enum rouse_wait_kind */
    long number;  /* system call, in a form that does not block */
    long arg[6];
    size_t bytes; /* requested, for RSI_IO_SHORT_ENDS */
    const void *site;
    uint64_t deadline_ns;
};

struct rsi_io_backend {
    const char *name;
    /*
     * Carry out op. Returns the call's result >= 0 or -errno: -ETIMEDOUT, -ECANCELED, -EBADF when the descriptor was
     * closed, or why it cannot be waited for (-ENOMEM, -ENOSPC, -EMFILE; -EPERM if its type cannot be polled). A past
     * deadline means one attempt.
     */
    long (*run)(struct rsi_io_op *op);
    /*
     * Report events of op's side for its descriptor from now on, and immediately if it is ready. Returns 0 or -errno.
     */
    int (*arm)(const struct rsi_io_op *op);
    const struct rsi_poller *poller;
};

extern const struct rsi_io_backend rsi_epoll_backend, rsi_uring_backend;

/* The backend of this process, chosen by the first call that needs one. NULL until then. */
extern const struct rsi_io_backend *rsi_backend_chosen;
const struct rsi_io_backend *rsi_backend_choose(void);

/* In a child after fork: choose again. */
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
