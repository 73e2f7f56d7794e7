/* SPDX-License-Identifier: MIT */
/*
 * inflight.h - one operation on a ring, from submission to completion.
 *
 * The thread that wants it waits; the operation lies on its stack and owns its buffer until the kernel has
 * told of its end. A deadline, a cancel or a request to stop ends the wait and not the operation: the thread
 * then has it stopped and waits, this time for nothing else, until the kernel acknowledges that. If it had
 * succeeded all the same, that is its result, and a request to stop is kept for the next call.
 *
 * state: PENDING -> DONE by the completion; PENDING -> ALONE by the thread, when its wait ended otherwise
 * and it has prepared the second one; ALONE -> DONE by the completion, which then ends that second wait.
 * Both write it by an exchange, so that one of them sees the other's; whoever comes second acts. After its
 * exchange the completion does not touch the operation any more, unless the thread is ALONE. Model:
 * tests/model/inflight.pml.
 */
#ifndef RSI_IO_URING_INFLIGHT_H
#define RSI_IO_URING_INFLIGHT_H

#include "io/backend.h"

struct rsi_inflight;

/*
 * Carry out op on the calling worker's ring, if it is an operation that is better off there. Returns whether
 * it was; *result is then the call's.
 */
bool rsi_inflight_run(const struct rsi_io_op *op, long *result);

/* The same for a file's operation, which cannot be stopped. */
bool rsi_inflight_run_file(struct rsi_io_op *op, long *result);

/* Whether its descriptor is still open; if not, it will not be submitted. */
bool rsi_inflight_is_current(struct rsi_inflight *inflight);

void rsi_inflight_completed(struct rsi_inflight *inflight, int result, struct rsi_fd_batch *batch);

/* The answer to a request to stop it: rsi_ring_cancel. */
void rsi_inflight_cancel_answered(struct rsi_inflight *inflight, int answer,
                                  struct rsi_fd_batch *batch);

#endif
