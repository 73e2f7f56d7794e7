/* SPDX-License-Identifier: MIT */
/*
 * tls_setxid.c - setuid, setgid, setgroups and their like beside threads with thread-local storage of their own.
 *
 * In Linux each kernel thread has a user and groups of its own. libc's setuid therefore sends SIGSETXID to every other
 * kernel thread. Its handler makes the same system call and confirms it in the thread block that the thread pointer
 * names, and setuid waits for that. Two things need care:
 * 1. A worker must confirm in its own block, though its thread has moved the thread pointer: the handler here goes
 * around libc's.
 * 2. libc sends no signal to the kernel thread whose block the caller uses. So the call must be made on the worker's own
 * block, as librouse.so does (tls_libc.c). Otherwise a lender, a kernel thread, would keep the old rights. A program that
 * is linked with librouse.a calls libc's setuid itself, and then ends with a message. Such a caller is recognised as libc
 * sends the signal to its worker: the handler interrupts the caller's own tgkill.
 */
#include "core/core.h"
#include "core/tls.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

struct kernel_action {
    void (*handler)(int number, siginfo_t *info, void *context);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static void (*libc_on_setxid)(int number, siginfo_t *info, void *context);
static uint32_t wrap_guard;

/* Whether the signal interrupted the system call that sent it. */
static bool is_sender(const ucontext_t *context, int32_t tid)
{
#if defined(__x86_64__)
    const greg_t *r = context->uc_mcontext.gregs;
    return r[REG_RAX] == 0 && r[REG_RDI] == getpid() && r[REG_RSI] == tid &&
           r[REG_RDX] == RSI_SIGSETXID;
#else
    const unsigned long long *r = context->uc_mcontext.regs;
    return r[0] == 0 && r[1] == (unsigned long long)tid && r[2] == RSI_SIGSETXID &&
           r[8] == SYS_tgkill;
#endif
}

/*
 * A lender finds the exec of the worker that uses its block, but has another tid. A worker that is about to start has
 * stored its thread pointer before its tid.
 */
static void on_setxid(int number, siginfo_t *info, void *context)
{
    const struct rsi_worker *w = rsi_exec_self()->worker;
    uintptr_t pointer = rsi_thread_pointer();
    int32_t tid = (int32_t)rsi_gettid();
    if (!w || rsi_load_relaxed(&w->tid) != tid || pointer == w->thread_pointer) {
        libc_on_setxid(number, info, context);
        return;
    }
    if (is_sender(context, tid))
        rsi_fatal(
            "setuid, or a call of its kind, in a thread with own_tls: link the program with librouse.so in "
            "place of librouse.a, or make the call in another thread");
    rsi_thread_pointer_set(w->thread_pointer);
    libc_on_setxid(number, info, context);
    rsi_thread_pointer_set(pointer);
}

/* libc installs its handler when it makes the first thread, and never again. */
void rsi_tls_setxid_wrap(void)
{
    struct kernel_action action = { 0 };
    rsi_guard_lock(&wrap_guard);
    if (!libc_on_setxid &&
        rsi_syscall4(SYS_rt_sigaction, RSI_SIGSETXID, NULL, &action, RSI_KERNEL_SIGSET_BYTES) ==
            0 &&
        action.handler) {
        libc_on_setxid = action.handler;
        action.handler = on_setxid;
        rsi_syscall4(SYS_rt_sigaction, RSI_SIGSETXID, &action, NULL, RSI_KERNEL_SIGSET_BYTES);
    }
    rsi_guard_unlock(&wrap_guard);
}

void rsi_tls_setxid_child(void)
{
    wrap_guard = 0;
}
