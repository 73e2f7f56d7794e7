/* SPDX-License-Identifier: MIT */
/*
 * fork.c - fork from a program with rouse threads.
 *
 * The child has one thread, the one that forked, as POSIX has it. If that was a user thread, its worker
 * goes on with it alone; the others are started by the next call that needs them. The other threads'
 * stacks stay where they are, since data on them may be in use, and are never run: no claim of their
 * waits succeeds any more. epoll sets are the parent's: the poller drops them and makes its own.
 *
 * The kernel copies page after page while the other threads run, so that the child may see a later store
 * and not an earlier one. What it goes on to use is therefore locked over the fork; all else, as the
 * workers' queues, is made anew.
 */
#include "core/core.h"

static void on_prepare(void)
{
    rsi_runtime_lock();
    rsi_blocking_fork_prepare();
    rsi_block_fork_prepare();
    rsi_keys_fork_prepare();
}

static void on_parent(void)
{
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
        rsi_store_relaxed(&self->waiter.home,
                          survivor->exec.home); /* if it was being moved: it stays */
    } else if (self) {
        self->tid = (int32_t)rsi_gettid();
    }
    if (self && self->join_word > RSI_JOIN_ENDED)
        self->join_word = RSI_JOIN_NONE; /* its joiner is not here */
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
