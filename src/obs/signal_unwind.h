/* SPDX-License-Identifier: MIT */
/*
 * signal_unwind.h - the backtrace of a kernel thread that runs or is in a system call, requested by a signal.
 */
#ifndef RSI_OBS_SIGNAL_UNWIND_H
#define RSI_OBS_SIGNAL_UNWIND_H

#include "obs/ledger.h"
#include "obs/inspect.h"

/* Install the signal handler. */
void rsi_signal_unwind_setup(void);

/* Reset, in a child after fork: no request is pending. */
void rsi_signal_unwind_child(void);

/*
 * Let the kernel thread tid unwind its own stack, within limit_ns. *whose receives the rouse thread that it ran;
 * NULL: none, or it was between two. False: the kernel thread has ended or did not answer. One caller at a time.
 */
bool rsi_signal_unwind(int32_t tid, uint64_t limit_ns, const struct rouse_thread **whose,
                       struct rsi_backtrace *backtrace);

/*
 * Between these two calls, kernel threads wait in the handler after they have answered; for some microseconds.
 */
void rsi_signal_unwind_hold(void);
void rsi_signal_unwind_release(void);

/* The same for the calling kernel thread, from the given registers. */
const struct rouse_thread *rsi_signal_unwind_self(const struct rsi_regs *regs,
                                                  struct rsi_backtrace *backtrace);

/*
 * The end of the stack that contains sp. 0: unknown, a stack of the program's own, or a signal stack. For
 * rsi_sites_setup.
 */
uintptr_t rsi_signal_unwind_stack_end(struct rsi_writer *writer, uint64_t sp);

#endif
