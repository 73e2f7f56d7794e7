/* SPDX-License-Identifier: MIT */
/* helper.h - system calls on what the poller cannot watch, on helper kernel threads. */
#ifndef RSI_IO_HELPER_H
#define RSI_IO_HELPER_H

#include "io/backend.h"

/*
 * Carry op out on a helper thread (a kernel or foreign thread does it itself). Not ended by a deadline, a
 * cancel or a close: the kernel does not end such a call. Returns the call's result, or -EAGAIN (no helper
 * to be had).
 */
long rsi_helper_run(struct rsi_io_op *op);

/*
 * The same for what may block for long and is not ours to make non-blocking: wait until it is ready, by
 * the poller, with deadline, cancel and close; then rsi_helper_run. If another process takes what was
 * there in between, the helper waits for more.
 */
long rsi_helper_run_ready(const struct rsi_io_op *op);

#endif
