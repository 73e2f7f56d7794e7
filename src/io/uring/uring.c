/* SPDX-License-Identifier: MIT */
/*
 * uring.c - the io_uring backend: rings for the operations that gain from them, the epoll set for the rest.
 *
 *   TCP streams     received into the ring's buffers as bytes arrive (multishot.c); sends are submitted once per
 *                   scheduling round (inflight.c)
 *   files           read, written and synchronised by the kernel's own workers, without helper threads
 *   everything else readiness, as with the epoll backend. The ring wakes a worker that sleeps in it when the
 *                   epoll set has events.
 * Threads that are not on a worker have no ring. They take data that the rings have received, and otherwise make
 * their system calls themselves. ring.c shows the way from a completion to the waiting thread.
 */
#include "io/ready.h"
#include "io/uring/inflight.h"
#include "io/uring/multishot.h"
#include "io/uring/ring.h"

/*
 * Start a multishot receive as soon as a stream has been read empty. (A stream that is only read when data is
 * already there never waits, so it would otherwise pay one system call per read for ever.)
 */
static void arm_early(const struct rsi_io_op *op)
{
    const struct rsi_fd_side *side = &op->ref.entry->sides[RSI_FD_READ];
    if (op->side == RSI_FD_READ && (op->rules & RSI_IO_SHORT_ENDS) != 0 &&
        (rsi_load_relaxed(&op->ref.entry->armed) & (1u << RSI_FD_READ)) == 0 &&
        rsi_load_relaxed(&side->spent) == rsi_load_relaxed(&side->edges))
        (void)rsi_multishot_arm(op);
}

static long run(struct rsi_io_op *op)
{
    long result;
    if (op->side == RSI_FD_WRITE && rsi_inflight_run(op, &result))
        return result;
    arm_early(op);
    return rsi_ready_run(op);
}

static int arm(const struct rsi_io_op *op)
{
    int result = rsi_multishot_arm(op);
    if (result != 0)
        return result < 0 ? result : 0;
    return rsi_epoll_arm(op, (uint8_t)(1u << op->side));
}

static void poll(uint64_t deadline_ns)
{
    if (deadline_ns != 0 || !rsi_ring_watches_set())
        rsi_epoll_poller.poll(deadline_ns);
}

static void interrupt(void)
{
    rsi_epoll_poller.interrupt();
}

static bool has_waiters(void)
{
    return rsi_ring_has_inflight() || rsi_fdtable_has_waiters();
}

static void child(void)
{
    rsi_ring_child();
    rsi_multishot_child();
    rsi_epoll_poller.child();
}

static const struct rsi_poller poller = {
    .poll = poll,
    .interrupt = interrupt,
    .has_waiters = has_waiters,
    .child = child,
    .own = rsi_ring_make,
    .round = rsi_ring_round,
    .sleep = rsi_ring_sleep,
    .is_inside = rsi_ring_is_inside,
    .needs_rescue = rsi_ring_needs_rescue,
    .rescue = rsi_ring_rescue,
};

const struct rsi_io_backend rsi_uring_backend = {
    .name = "io_uring",
    .run = run,
    .arm = arm,
    .poller = &poller,
};
