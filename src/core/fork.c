/* SPDX-License-Identifier: MIT */
/*
 * fork.c - fork from a program with rouse threads.
 *
 * The child has one thread, the one that forked, as POSIX has it. If that was a user thread, its worker
 * goes on with it alone; the others are started by the next call that needs them. The other threads'
 * stacks stay where they are, since data on them may be in use, and are never run. The runtime's own
 * locks are taken over the fork, or made anew where that would wait for a worker. epoll sets are the
 * parent's: the poller drops them and makes its own.
 */
#include "core/core.h"

static void on_prepare(void)
{
    rsi_runtime_fork_lock();
    rsi_blocking_fork_prepare();
}

static void on_parent(void)
{
    rsi_blocking_fork_parent();
    rsi_runtime_fork_unlock();
}

static void on_child(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rsi_worker *survivor = exec->worker;
    struct rouse_thread *self = exec->current;
    rsi_blocking_child();
    rsi_stack_child();
    rsi_block_child(self);
    rsi_runtime_child(survivor);
    if (self) {
        if (survivor)
            self->timer_word = 0;
        else
            self->tid = (int32_t)rsi_gettid();
    }
    const struct rsi_poller *poller = rsi_load_relaxed(&rsi_rt.poller);
    rsi_store_relaxed(&rsi_rt.poller, NULL);
    if (poller)
        poller->child();
    rsi_runtime_fork_unlock();
}

void rsi_fork_setup(void)
{
    if (pthread_atfork(on_prepare, on_parent, on_child) != 0)
        rsi_fatal("no memory for the fork handlers");
}
