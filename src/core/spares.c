/* SPDX-License-Identifier: MIT */
/*
 * spares.c - adds and removes spare workers, and relieves stuck ones, for the monitor, which has a descriptor table of
 * its own.
 *
 * Problem: the monitor reads /proc while the program runs, and each file that it opens takes the lowest free
 * descriptor number for a moment. The program may just have closed that number while its threads still use
 * it, and prevent other opens until they have stopped, as POSIX requires of it. Those threads would then read
 * our file, and our own record of that number (fdtable.h) would describe a file that the program never
 * opened.
 *
 * So the monitor unshares its descriptor table, and empties it, before it first opens a file. Threads that it
 * creates afterwards would share that table. The poller's descriptors are not in it, so the monitor cannot wake a
 * worker that polls: the write would fail, and the wake-up would be lost. A kernel thread that it has started
 * earlier therefore adds and removes the spare workers, and sleeps otherwise. Where the kernel refuses to unshare
 * (before Linux 5.9, or by a filter) the monitor keeps the program's table. Rejected: a kernel thread that opens
 * files for the monitor (two switches for each look at a worker without a CPU); one descriptor per worker that
 * stays open (it uses numbers, and opening it for a spare would still take a number while the program runs).
 */
#include "core/core.h"

#include <linux/close_range.h>
#include <valgrind/valgrind.h>

enum order_state { ORDER_NONE, ORDER_ADD, ORDER_REMOVE, ORDER_RELIEVE };

static struct {
    /* futex: the monitor sets an order, spares_main ORDER_NONE; each releases what it wrote */
    uint32_t state;
    uint32_t is_running;
    struct rouse_cluster *cluster;
    const sigset_t *mask;
    int number;                /* of the worker that is to be removed */
    struct rsi_worker *worker; /* the one that is stuck */
    struct rsi_worker *to;     /* what waits for a stuck one moves here */
    int error;
} order;

/* A worker has the signal mask of the first workers. A helper blocks all signals. */
static int add(void)
{
    sigset_t own;
    struct rsi_worker *spare;
    pthread_sigmask(SIG_SETMASK, order.mask, &own);
    int error = rsi_workers_add(order.cluster, true, &spare);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    return error;
}

/* First the threads whose operations have finished, which become runnable on their last worker, the stuck one. */
static int relieve(void)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    if (poller && poller->rescue)
        (void)poller->rescue(order.worker->index);
    rsi_steal_for(order.to, order.worker, true);
    return 0;
}

static void *spares_main(void *unused)
{
    uint32_t state;
    pthread_setname_np(pthread_self(), "rouse-spares");
    for (;;) {
        while ((state = rsi_load_acquire(&order.state)) == ORDER_NONE) /* pairs with carried_out */
            rsi_futex_wait(&order.state, ORDER_NONE, UINT64_MAX);
        order.error = state == ORDER_ADD      ? add()
                      : state == ORDER_REMOVE ? rsi_workers_remove(order.cluster, order.number)
                                              : relieve();
        rsi_store_release(&order.state, ORDER_NONE); /* pairs with carried_out */
        rsi_futex_wake(&order.state, 1);
    }
    return unused;
}

bool rsi_spares_prepare(void)
{
    if (order.is_running)
        return true;
    rsi_store_relaxed(&order.is_running, 1u);
    if (!rsi_helper_start(spares_main)) {
        rsi_store_relaxed(&order.is_running, 0u);
        return false;
    }
    /* Under Valgrind all threads share one table. */
    if (!RUNNING_ON_VALGRIND)
        rsi_syscall3(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE);
    return true;
}

/* Give the order and wait until it is carried out. Returns its result. */
static int carried_out(enum order_state state)
{
    rsi_store_release(&order.state, (uint32_t)state); /* pairs with spares_main */
    rsi_futex_wake(&order.state, 1);
    while (rsi_load_acquire(&order.state) != ORDER_NONE) /* pairs with spares_main */
        rsi_futex_wait(&order.state, (uint32_t)state, UINT64_MAX);
    return order.error;
}

int rsi_spares_add(struct rouse_cluster *cluster, const sigset_t *mask)
{
    order.cluster = cluster;
    order.mask = mask;
    return carried_out(ORDER_ADD);
}

int rsi_spares_remove(struct rouse_cluster *cluster, uint32_t number)
{
    order.cluster = cluster;
    order.number = (int)number;
    return carried_out(ORDER_REMOVE);
}

void rsi_spares_relieve(struct rsi_worker *stuck, struct rsi_worker *to)
{
    order.worker = stuck;
    order.to = to;
    (void)carried_out(ORDER_RELIEVE);
}

unsigned rsi_spares_threads(void)
{
    return rsi_load_relaxed(&order.is_running);
}

void rsi_spares_child(void)
{
    order.is_running = 0;
    order.state = ORDER_NONE;
}
