/* SPDX-License-Identifier: MIT */
/*
 * fork.c - fork from a program with rouse threads.
 *
 * As in POSIX, the child has one thread, the one that forked. If that was a user thread, its worker continues
 * with it alone, and the next call that needs the other workers starts them. The other threads' stacks stay
 * mapped, because data on them may be in use. They never run: no claim of their waits succeeds any more.
 * epoll sets belong to the parent: the poller drops them and makes its own.
 *
 * The kernel copies page after page while the other threads run, so the child may see a later store and not
 * an earlier one. Everything that the child continues to use is therefore locked over the fork. The rest,
 * such as the workers' queues, is made anew.
 */
#include "core/core.h"
#include "obs/trace.h"

static void on_prepare(void)
{
    rsi_runtime_lock();
    rsi_blocking_fork_prepare();
    rsi_block_fork_prepare();
    rsi_keys_fork_prepare();
    rsi_trace_fork_prepare();
}

static void on_parent(void)
{
    rsi_trace_fork_parent();
    rsi_keys_fork_parent();
    rsi_block_fork_parent();
    rsi_blocking_fork_parent();
    rsi_runtime_unlock();
}

static void on_child(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rsi_worker *survivor = exec->worker;
    struct rouse_thread *self = exec->current;
    rsi_blocking_child();
    rsi_fault_child();
    rsi_stack_child();
    rsi_trim_child();
    rsi_pressure_child();
    rsi_block_child(self);
    rsi_account_child();
    rsi_keys_fork_parent();
    rsi_monitor_child();
    rsi_runtime_child(survivor);
    if (self && survivor) {
        self->timer_word = 0;
        rsi_store_relaxed(&self->waiter.worker_index, survivor->index); /* renumbered */
        /* If it was being moved to another cluster, it stays here. */
        rsi_store_relaxed(&self->waiter.home, survivor->exec.home);
    } else if (self) {
        self->tid = (int32_t)rsi_gettid();
    }
    if (self && self->join_word > RSI_JOIN_ENDED)
        self->join_word = RSI_JOIN_NONE; /* its joiner does not exist in the child */
    const struct rsi_poller *poller = rsi_load_relaxed(&rsi_rt.poller);
    rsi_store_relaxed(&rsi_rt.poller, NULL);
    if (poller)
        poller->child();
    rsi_runtime_unlock();
}

void rsi_fork_setup(void)
{
    if (pthread_atfork(on_prepare, on_parent, on_child) != 0)
        rsi_fatal("no memory for the fork handlers");
}
