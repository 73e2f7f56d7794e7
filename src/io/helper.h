/* SPDX-License-Identifier: MIT */
/* helper.h - system calls on what the poller cannot watch, on helper kernel threads. */
#ifndef RSI_IO_HELPER_H
#define RSI_IO_HELPER_H

#include "io/backend.h"

/*
 * Carry op out on a helper thread (a kernel or foreign thread does it itself). type RSI_FD_SLOW waits
 * with ppoll before the call, until op's deadline; RSI_FD_FILE has no deadline: the kernel does not end
 * such a call. Not ended by a cancel or a close. Returns the call's result, -ETIMEDOUT or -EAGAIN (no
 * helper to be had).
 */
long rsi_helper_run(struct rsi_io_op *op, int type);

#endif
