/* SPDX-License-Identifier: MIT */
/*
 * exec.h - what the calling kernel thread runs: its rouse thread, its worker, its counters.
 *
 * Public within librouse: sync/ and io/ may include it. rsi_self() returns the calling rouse thread.
 */
#ifndef RSI_CORE_EXEC_H
#define RSI_CORE_EXEC_H

#include "core/waiter.h"

struct rsi_worker;
struct rsi_writer;

/* State of the calling kernel thread, reached through one thread-local pointer. */
struct rsi_exec {
    struct rouse_thread *current;
    struct rsi_worker *worker; /* NULL on kernel and foreign threads */
    struct rsi_writer *writer; /* its counters while recording (account.c), or NULL */
    uint32_t turn_units;       /* left of the current turn: turn.h */
    uint16_t home;             /* of the threads that run here; RSI_HOME_NONE unless a worker */
    uint8_t in_ppoll;          /* kernel threads: a publisher must interrupt the call */
    bool is_writerless;        /* it asked for a writer and none was left */
};

#define RSI_HOME_NONE UINT16_MAX /* no thread has this home */

/*
 * The calling kernel thread's exec. If it has none yet, this is rsi_exec_none, whose current and worker are
 * NULL. Assembly reads it, so that the compiler can neither cache the address nor move it over a switch: a
 * thread that parks on one worker and resumes on another must not use the first worker's. (A noinline accessor
 * with a barrier would cost one more call.)
 */
extern __thread struct rsi_exec *rsi_tls_exec
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

RSI_INLINE struct rsi_exec *rsi_exec_self(void)
{
    struct rsi_exec *exec;
#if defined(__x86_64__)
    __asm__ volatile("movq rsi_tls_exec@GOTTPOFF(%%rip), %0\n\t"
                     "movq %%fs:(%0), %0"
                     : "=r"(exec)
                     :
                     : "memory");
#else
    __asm__ volatile("adrp %0, :gottprel:rsi_tls_exec\n\t"
                     "ldr %0, [%0, #:gottprel_lo12:rsi_tls_exec]\n\t"
                     "mrs x16, tpidr_el0\n\t"
                     "ldr %0, [x16, %0]"
                     : "=&r"(exec)
                     :
                     : "x16", "memory");
#endif
    return exec;
}

struct rouse_thread *rsi_foreign_adopt(void);

/* The calling thread, of any kind. A foreign kernel thread gets a control block at its first call. */
RSI_INLINE struct rouse_thread *rsi_self(void)
{
    struct rouse_thread *self = rsi_exec_self()->current;
    return rsi_likely(self != NULL) ? self : rsi_foreign_adopt();
}

#endif
