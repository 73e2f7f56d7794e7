/* SPDX-License-Identifier: MIT */
/*
 * spares.c - spare workers for the monitor, which has a table of descriptors of its own.
 *
 * Problem: the monitor looks into /proc while the program runs, and a file that is opened takes the lowest free
 * number for a moment. The program may have closed that number under threads that use it still, and keep others
 * from opening until they have turned away, as POSIX asks of it. They would read our file in its place, and what
 * is believed of the number from then on (fdtable.h) would be of a file that the program never opened.
 *
 * So the monitor leaves the program's table for an empty one when it first has a doubt. What it creates would have
 * that one too; a kernel thread that it has started before, and that sleeps else, creates spares in its stead.
 * Where the kernel refuses a table (before Linux 5.9, or by a filter) the monitor stays in the program's.
 * Rejected: a kernel thread that opens for the monitor (it is asked at every look: two switches for each worker
 * that is without a CPU); a descriptor for each worker, kept open (one number each, and a spare's would still be
 * taken while the program runs).
 */
#include "core/core.h"

#include <linux/close_range.h>
#include <valgrind/valgrind.h>

enum order_state { ORDER_NONE, ORDER_GIVEN };

static struct {
    uint32_t
        state; /* futex: given by the monitor, taken back by the hirer; each releases what it wrote */
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
        /* A worker has the signals that the first ones had; a helper blocks all. */
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
    /* Valgrind has all threads in one table. */
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
