/* SPDX-License-Identifier: MIT */
/*
 * inflight.h - one operation on a ring, from submission to completion.
 *
 * The operation lies on the stack of the thread that waits for it, and owns its buffer until the kernel has
 * reported its end. A deadline, a cancel or a close ends the wait but not the operation: the thread then asks
 * the kernel to stop it and waits a second time, only for the acknowledgement. If the operation succeeded
 * anyway, its result is returned, and a pending cancel is kept for the next call. An operation whose deadline has
 * passed before is an attempt: it does not wait in the kernel, so its deadline never stops it.
 *
 * state:
 *   PENDING  -> DONE      by the completion
 *   PENDING  -> STOPPING  by the thread, when something else ended its wait and it has prepared the second wait
 *   STOPPING -> DONE      by the completion, which then ends the second wait
 * Both sides write state by an exchange, so one of them sees the other's value, and the second one acts. After
 * its exchange the completion touches the operation only if the thread was STOPPING.
 * Model: tests/model/inflight.pml, which calls STOPPING ALONE.
 */
#ifndef RSI_IO_URING_INFLIGHT_H
#define RSI_IO_URING_INFLIGHT_H

#include "io/backend.h"

struct rsi_inflight;

/*
 * Carry out op on the calling worker's ring, if it is an operation that gains from it. Returns whether it did;
 * *result is then the result of the call.
 */
bool rsi_inflight_run(const struct rsi_io_op *op, long *result);

/* The same for a file operation, which cannot be stopped. */
bool rsi_inflight_run_file(struct rsi_io_op *op, long *result);

/* Before submission: whether its descriptor is still open. If not, the entry is not submitted. */
bool rsi_inflight_is_current(struct rsi_inflight *inflight);

/* A completion has arrived: store the result and claim the waiting thread, which joins batch. On the ring's worker. */
void rsi_inflight_completed(struct rsi_inflight *inflight, int result, struct rsi_fd_batch *batch);

/* The kernel has answered the request to stop it (rsi_ring_cancel). On the ring's worker. */
void rsi_inflight_cancel_answered(struct rsi_inflight *inflight, int answer,
                                  struct rsi_fd_batch *batch);

#endif
