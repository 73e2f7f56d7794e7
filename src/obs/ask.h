/* SPDX-License-Identifier: MIT */
/* ask.h - the backtrace of a kernel thread that runs, or sits in a system call: it is asked for it. */
#ifndef RSI_OBS_ASK_H
#define RSI_OBS_ASK_H

#include "obs/ledger.h"
#include "obs/look.h"

/* Install the handler of the signal that asks. */
void rsi_ask_setup(void);

/* In a child after fork: nobody asks. */
void rsi_ask_child(void);

/*
 * Have the kernel thread tid walk its own stack, within limit_ns. *whose: the thread that it ran, NULL:
 * none, or it was between two. False: it is gone or did not answer. One caller at a time.
 */
bool rsi_ask(int32_t tid, uint64_t limit_ns, const struct rouse_thread **whose,
             struct rsi_backtrace *backtrace);

/* Between these two, kernel threads stay where they are once they have answered; for some microseconds. */
void rsi_ask_hold(void);
void rsi_ask_release(void);

/* The same for the calling kernel thread, from registers of its own. */
const struct rouse_thread *rsi_ask_self(const struct rsi_regs *regs,
                                        struct rsi_backtrace *backtrace);

/* The end of the stack that sp is on; 0: not known, a program's own, or a signal's. For rsi_sites_setup. */
uintptr_t rsi_ask_stack_end(struct rsi_writer *writer, uint64_t sp);

#endif
