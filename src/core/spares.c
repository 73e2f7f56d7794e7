/* SPDX-License-Identifier: MIT */
/*
 * spares.c - starts spare workers for the monitor, which has a descriptor table of its own.
 *
 * Problem: the monitor reads /proc while the program runs, and each file that it opens takes the lowest free
 * descriptor number for a moment. The program may just have closed that number while its threads still use
 * it, and prevent other opens until they have stopped, as POSIX requires of it. Those threads would then read
 * our file, and our own record of that number (fdtable.h) would describe a file that the program never
 * opened.
 *
 * So the monitor unshares its descriptor table, and empties it, before it first opens a file. Threads that it
 * creates afterwards would share that table. A kernel thread that it has started earlier creates the spare
 * workers instead, and sleeps otherwise. Where the kernel refuses to unshare (before Linux 5.9, or by a
 * filter) the monitor keeps the program's table. Rejected: a kernel thread that opens files for the monitor
 * (two switches for each look at a worker without a CPU); one descriptor per worker that stays open (it uses
 * numbers, and opening it for a spare would still take a number while the program runs).
 */
#include "core/core.h"

#include <linux/close_range.h>
#include <valgrind/valgrind.h>

enum order_state { ORDER_NONE, ORDER_GIVEN };

static struct {
    /* futex: the monitor sets ORDER_GIVEN, the starter ORDER_NONE; each releases what it wrote */
    uint32_t state;
    uint32_t is_running;
    struct rouse_cluster *cluster;
    const sigset_t *mask;
    struct rsi_worker *worker;
    int error;
} order;

static void *spares_main(void *unused)
{
    sigset_t own;
    pthread_setname_np(pthread_self(), "rouse-spares");
    for (;;) {
        while (rsi_load_acquire(&order.state) != ORDER_GIVEN) /* pairs with rsi_spares_add */
            rsi_futex_wait(&order.state, ORDER_NONE, UINT64_MAX);
        /* A worker has the signal mask of the first workers; a helper blocks all signals. */
        pthread_sigmask(SIG_SETMASK, order.mask, &own);
        order.error = rsi_workers_add(order.cluster, &order.worker);
        pthread_sigmask(SIG_SETMASK, &own, NULL);
        rsi_store_release(&order.state, ORDER_NONE); /* pairs with rsi_spares_add */
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

int rsi_spares_add(struct rouse_cluster *cluster, const sigset_t *mask, struct rsi_worker **out)
{
    order.cluster = cluster;
    order.mask = mask;
    rsi_store_release(&order.state, ORDER_GIVEN); /* pairs with spares_main */
    rsi_futex_wake(&order.state, 1);
    while (rsi_load_acquire(&order.state) != ORDER_NONE) /* pairs with spares_main */
        rsi_futex_wait(&order.state, ORDER_GIVEN, UINT64_MAX);
    *out = order.worker;
    return order.error;
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
