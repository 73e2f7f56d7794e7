/* SPDX-License-Identifier: MIT */
/*
 * fault.c - reports stack overflows.
 *
 * A fault in the guard page of the running thread prints a line that names the thread, and ends the program
 * as the fault would. Every other fault goes to the handler that was installed before ours. A handler that
 * the program installs later replaces ours, and then receives overflows as plain SIGSEGV.
 *
 * On threads that rouse made, handlers run on a separate signal stack. We do not ask the C library where a
 * kernel thread's stack ends, because it would ask the kernel and allocate. Instead, a fault address counts
 * as the guard if it is mapped without access and near the stack pointer; other addresses are stray pointers.
 */
#include "core/core.h"

#include <signal.h>
#include <stdlib.h>

#define SIGNAL_STACK_BYTES ((size_t)64 * 1024)
#define FRAME_BYTES_LIKELY ((uintptr_t)64 * 1024)

static struct sigaction old_segv, old_bus;

/* Signal stacks of kernel threads that have ended, linked by their first word. */
static struct {
    uint32_t guard;
    void **free;
} pool;

static __thread struct {
    void *signal_stack;
    stack_t before;
} kernel;

void *rsi_fault_stack_take(void)
{
    rsi_guard_lock(&pool.guard);
    void **stack = pool.free;
    if (stack)
        pool.free = *stack;
    rsi_guard_unlock(&pool.guard);
    return stack ? (void *)stack : rsi_map(SIGNAL_STACK_BYTES);
}

void rsi_fault_stack_give(void *stack)
{
    rsi_guard_lock(&pool.guard);
    *(void **)stack = pool.free;
    pool.free = stack;
    rsi_guard_unlock(&pool.guard);
}

/* In a child after fork: fork may have copied the list in the middle of a change. */
void rsi_fault_child(void)
{
    pool.guard = 0;
    pool.free = NULL;
}

static bool in_user_guard(const struct rouse_thread *t, const char *address)
{
    return address < t->stack.low && address >= t->stack.low - RSI_PAGE;
}

static bool in_kernel_guard(const siginfo_t *info, const ucontext_t *context)
{
#if defined(__x86_64__)
    uintptr_t sp = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#else
    uintptr_t sp = (uintptr_t)context->uc_mcontext.sp;
#endif
    uintptr_t distance = (uintptr_t)info->si_addr - (sp - FRAME_BYTES_LIKELY);
    return kernel.signal_stack && info->si_code == SEGV_ACCERR && distance < 2 * FRAME_BYTES_LIKELY;
}

static void set_default(int number)
{
    struct sigaction action = { .sa_handler = SIG_DFL };
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

/* Call the old handler as the kernel would have, except for the stack. */
static void pass_on(const struct sigaction *old, int number, siginfo_t *info, void *context)
{
    /* Sent by kill(2) or similar: no instruction will fault again. */
    bool is_sent = info->si_code <= 0;
    if ((old->sa_flags & SA_SIGINFO) == 0 && old->sa_handler == SIG_IGN && is_sent)
        return;
    if ((old->sa_flags & SA_SIGINFO) == 0 &&
        (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN)) {
        set_default(number);
        if (is_sent)
            raise(number);
        return;
    }
    sigset_t mask = old->sa_mask, own;
    sigemptyset(&own);
    sigaddset(&own, number);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    if ((old->sa_flags & SA_NODEFER) != 0)
        pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    if ((old->sa_flags & SA_RESETHAND) != 0)
        set_default(number);
    if ((old->sa_flags & SA_SIGINFO) != 0)
        old->sa_sigaction(number, info, context);
    else
        old->sa_handler(number);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct rouse_thread *t = rsi_exec_self()->current;
    bool is_user = t && t->waiter.origin == RSI_ORIGIN_USER;
    if (number == SIGSEGV && is_user && in_user_guard(t, info->si_addr))
        rsi_report(
            "stack overflow: %zu bytes were not enough; see stack_bytes in rouse_thread_attr",
            rsi_stack_class_bytes(t->waiter.stack_class));
    else if (number == SIGSEGV && !is_user && in_kernel_guard(info, context))
        rsi_report(rsi_blocking_caller()
                       ? "stack overflow in a function that rouse_blocking runs; see ulimit -s"
                       : "stack overflow on a kernel thread; see stack_bytes in rouse_thread_attr");
    else {
        pass_on(number == SIGSEGV ? &old_segv : &old_bus, number, info, context);
        return;
    }
    set_default(number); /* the instruction faults again, without a handler */
}

void rsi_fault_setup(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
}

/* Called before w's kernel thread starts, so that everything that can fail has been done. */
bool rsi_fault_prepare_worker(struct rsi_worker *w)
{
    if (!w->signal_stack)
        w->signal_stack = rsi_map(SIGNAL_STACK_BYTES);
    return w->signal_stack != NULL;
}

/* On the worker's kernel thread. */
void rsi_fault_setup_worker(struct rsi_worker *w)
{
    stack_t stack = { .ss_sp = w->signal_stack, .ss_size = SIGNAL_STACK_BYTES };
    sigaltstack(&stack, NULL);
}

/* On a worker's kernel thread that is about to end. The next one may use its signal stack. */
void rsi_fault_end_worker(void)
{
    stack_t none = { .ss_flags = SS_DISABLE };
    sigaltstack(&none, NULL);
}

/* On a kernel thread that rouse made. */
void rsi_fault_begin_kernel(void *signal_stack)
{
    stack_t stack = { .ss_sp = signal_stack, .ss_size = SIGNAL_STACK_BYTES };
    kernel.signal_stack = signal_stack;
    sigaltstack(&stack, &kernel.before);
}

void rsi_fault_end_kernel(void)
{
    sigaltstack(&kernel.before, NULL);
    rsi_fault_stack_give(kernel.signal_stack);
    kernel.signal_stack = NULL;
}
