/* SPDX-License-Identifier: MIT */
/* helper.h - system calls on descriptors that the poller cannot watch, on helper kernel threads. */
#ifndef RSI_IO_HELPER_H
#define RSI_IO_HELPER_H

#include "io/backend.h"

/*
 * Carry out op on a helper thread (a kernel or foreign thread does it itself). A deadline, a cancel or a close does
 * not end it, since the kernel does not end such a call. Returns the call's result, or -EAGAIN if no helper is
 * available.
 */
long rsi_helper_run(struct rsi_io_op *op);

/*
 * The same for descriptors that may block for long and must not be made non-blocking, such as the standard streams:
 * wait in the poller until it is ready, with deadline, cancel and close, and then call rsi_helper_run. If another
 * process takes the data in between, the helper waits for more.
 */
long rsi_helper_run_ready(const struct rsi_io_op *op);

#endif
