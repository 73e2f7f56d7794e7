/* SPDX-License-Identifier: MIT */
/*
 * fault.c - a stack overflow is told as one.
 *
 * A fault in the guard page of the thread that runs ends the program with a line that names the thread.
 * Every other fault goes to the handler that was there before; a handler that the program installs later
 * replaces ours, and overflows then reach it as plain SIGSEGV.
 */
#include "core/core.h"

#include <signal.h>
#include <stdlib.h>

#define SIGNAL_STACK_BYTES ((size_t)64 * 1024)

static struct sigaction old_segv, old_bus;

static bool in_guard(const struct rouse_thread *t, const char *address)
{
    return t && t->waiter.origin == RSI_ORIGIN_USER && address < t->stack.low &&
           address >= t->stack.low - RSI_PAGE;
}

static void pass_on(const struct sigaction *old, int number, siginfo_t *info, void *context)
{
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(number, info, context);
    } else if (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN) {
        /* The instruction faults again, without a handler. */
        struct sigaction action = { .sa_handler = SIG_DFL };
        sigemptyset(&action.sa_mask);
        sigaction(number, &action, NULL);
    } else {
        old->sa_handler(number);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rouse_thread *t = exec->current;
    if (number == SIGSEGV && in_guard(t, info->si_addr))
        rsi_fatal("stack overflow: %zu bytes were not enough; see stack_bytes in rouse_thread_attr",
                  rsi_stack_class_bytes(t->waiter.stack_class));
    pass_on(number == SIGSEGV ? &old_segv : &old_bus, number, info, context);
}

void rsi_fault_setup(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
}

/* Before w's kernel thread is started: nothing that it needs may be missing later. */
bool rsi_fault_prepare_worker(struct rsi_worker *w)
{
    if (!w->signal_stack)
        w->signal_stack = rsi_map(SIGNAL_STACK_BYTES);
    return w->signal_stack != NULL;
}

/* On the worker's kernel thread: handlers run on a stack of their own. */
void rsi_fault_setup_worker(struct rsi_worker *w)
{
    stack_t stack = { .ss_sp = w->signal_stack, .ss_size = SIGNAL_STACK_BYTES };
    sigaltstack(&stack, NULL);
}
