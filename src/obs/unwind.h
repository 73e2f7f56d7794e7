/* SPDX-License-Identifier: MIT */
/*
 * unwind.h - unwinds a stack: from a set of registers to the addresses of the calls that led there.
 *
 * For backtraces of threads other than the caller. Only the given stacks and the program's .eh_frame are read, so
 * inconsistent registers or stacks give a short backtrace and not a fault. No locks, no memory allocation, nothing
 * of libc except _dl_find_object (glibc 2.35): async-signal-safe.
 */
#ifndef RSI_OBS_UNWIND_H
#define RSI_OBS_UNWIND_H

#include "base/base.h"

/* The DWARF numbers of registers. */
#if defined(__x86_64__)
#define RSI_REGS 17
#define RSI_REG_FP 6
#define RSI_REG_SP 7
#define RSI_REG_RETURN 16
#else
#define RSI_REGS 32
#define RSI_REG_FP 29
#define RSI_REG_SP 31
#define RSI_REG_RETURN 30
#endif

struct rsi_regs {
    uint64_t value[RSI_REGS];
    uint64_t known; /* a bit for each register whose value is known */
    uint64_t ip;
    bool is_exact; /* ip is where the thread was interrupted, not a return address */
};

/* Memory that may be read: [low, high). */
struct rsi_span {
    uintptr_t low, high;
};

enum rsi_unwound {
    RSI_UNWOUND_ALL,  /* up to the stack's first frame */
    RSI_UNWOUND_FULL, /* there were more frames than max */
    RSI_UNWOUND_LOST, /* code without unwind information, or an inconsistent stack */
};

/* Registers of a thread that is not running, from those that the context switch saved. */
struct rsi_regs rsi_regs_parked(const void *sp, const void *ip, const void *fp);

/* Registers from the context that a signal handler or getcontext received: a ucontext_t. */
void rsi_regs_from_context(struct rsi_regs *regs, const void *ucontext);

/*
 * Fill frames with addresses inside the call instructions, innermost first; the first is the current instruction.
 * spans has two elements. *count receives the number of frames.
 */
enum rsi_unwound rsi_unwind(const struct rsi_regs *start, const struct rsi_span *spans,
                            const void **frames, size_t max, size_t *count);

#endif
