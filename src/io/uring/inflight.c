/* SPDX-License-Identifier: MIT */
/* inflight.c - submit one operation, wait for its completion, stop it early. See inflight.h. */
#include "io/uring/inflight.h"

#include "core/turn.h"
#include "io/uring/ring.h"

#include <errno.h>
#include <sys/socket.h>

enum inflight_state { INFLIGHT_PENDING, INFLIGHT_DONE, INFLIGHT_STOPPING };

struct rsi_inflight {
    struct rsi_mail mail; /* asks the ring's worker to stop the operation */
    struct rsi_ring *ring;
    struct rouse_thread *thread;
    uint64_t ticket;
    uint64_t last_ticket; /* of the second wait, for the acknowledgement */
    int32_t result;
    uint32_t state;
    struct rsi_fd_ref ref;
    bool is_void;    /* not submitted, because its descriptor was closed first */
    bool is_attempt; /* its deadline had passed before: it does not wait in the kernel */
    /*
     * While STOPPING these two belong to the ring's worker (before, to the thread). The thread waits until is_over
     * is true and is_asked is false.
     */
    /* The operation has ended. */
    bool is_over;
    /* The kernel is asked, or will be asked, to stop it, and has not answered yet. */
    bool is_asked;
};

bool rsi_inflight_is_current(struct rsi_inflight *inflight)
{
    /* Acquire: pairs with end_generation in fdtable.c, as in ready.c. */
    inflight->is_void = rsi_load_acquire(&inflight->ref.entry->generation) !=
                        inflight->ref.generation;
    return !inflight->is_void;
}

void rsi_inflight_completed(struct rsi_inflight *inflight, int result, struct rsi_fd_batch *batch)
{
    struct rouse_thread *thread = inflight->thread;
    struct rsi_ring *ring = inflight->ring;
    uint64_t ticket = inflight->ticket;
    rsi_store_relaxed(&ring->ended, ring->ended + 1);
    inflight->result = result;
    rsi_test_delay();
    /* Releases the result, and acquires last_ticket; pairs with the exchange in stop. */
    if (rsi_exchange_acq_rel(&inflight->state, INFLIGHT_DONE) == INFLIGHT_STOPPING) {
        ticket = inflight->last_ticket; /* it still waits, so its stack is intact */
        inflight->is_over = true;
        if (inflight->is_asked)
            return;
    }
    (void)rsi_fdtable_claim(thread, ticket, 0, NULL, batch);
}

/*
 * Ask the kernel to stop the operation. Inside the ring's lock. The thread waits for the completion and for the
 * answer to this request, which arrive in either order.
 */
static void submit_stop(struct rsi_inflight *inflight)
{
    if (inflight->is_over) {
        if (rsi_park_claim(inflight->thread, inflight->last_ticket, 0, NULL))
            rsi_park_publish(inflight->thread);
        return;
    }
    /* This fails only while the kernel has no memory for a submission: retry until it has. */
    if (!rsi_ring_cancel(inflight->ring, inflight, RSI_RING_INFLIGHT, RSI_RING_INFLIGHT_CANCEL))
        rsi_mail_send(inflight->ring->index, &inflight->mail);
}

/* On the ring's worker. */
static void take_stop(struct rsi_mail *mail)
{
    struct rsi_inflight *inflight = rsi_container_of(mail, struct rsi_inflight, mail);
    struct rsi_ring *ring = inflight->ring; /* the thread may return at any time from now on */
    rsi_ring_enter(ring);
    submit_stop(inflight);
    rsi_ring_leave(ring);
}

void rsi_inflight_cancel_answered(struct rsi_inflight *inflight, int answer,
                                  struct rsi_fd_batch *batch)
{
    if (inflight->is_over)
        (void)rsi_fdtable_claim(inflight->thread, inflight->last_ticket, 0, NULL, batch);
    else if (rsi_ring_overlooked(answer))
        submit_stop(inflight);
    else
        inflight->is_asked = false;
}

/* The wait has ended, but perhaps not the operation: stop it, and return when the kernel no longer uses it. */
static void stop(struct rsi_inflight *inflight, const struct rsi_io_op *op)
{
    struct rouse_thread *self = inflight->thread;
    inflight->last_ticket = rsi_park_prepare(self, (enum rouse_wait_kind)op->kind,
                                             (const void *)(intptr_t)op->fd, op->site,
                                             ROUSE_FOREVER, 0);
    inflight->is_asked = true;
    rsi_test_delay();
    /* Acquires result; releases last_ticket and is_asked. Pairs with the exchange in rsi_inflight_completed. */
    if (rsi_exchange_acq_rel(&inflight->state, INFLIGHT_STOPPING) == INFLIGHT_DONE) {
        if (!rsi_park_abandon(self, inflight->last_ticket))
            (void)rsi_park_commit(self, inflight->last_ticket);
        return;
    }
    inflight->mail.take = take_stop;
    if (rouse_worker_index() == (int)inflight->ring->index)
        take_stop(&inflight->mail);
    else
        rsi_mail_send(inflight->ring->index, &inflight->mail);
    (void)rsi_park_commit(self, inflight->last_ticket);
}

/* Whether it was an attempt that transferred nothing. */
static bool has_failed(const struct rsi_inflight *inflight)
{
    return inflight->is_attempt && !inflight->is_void && inflight->result == -EAGAIN;
}

/* The result for the caller. waited is how the first wait ended. */
static long outcome(const struct rsi_inflight *inflight, int waited)
{
    long result = inflight->is_void ? -EBADF : inflight->result;
    if (has_failed(inflight))
        return waited < 0 ? waited : -ETIMEDOUT;
    if (result == -ECANCELED || result == -EINTR)
        return waited < 0 ? waited : -EINTR;
    if (waited == -ECANCELED)
        (void)rouse_thread_cancel(inflight->thread); /* for the next call */
    return result;
}

/* List the thread before it sleeps, so that a close finds it. Returns false if it is closed already. */
static bool list(const struct rsi_io_op *op, struct rsi_fd_waiter *waiter)
{
    struct rsi_fd *entry = op->ref.entry;
    rsi_guard_lock(&entry->guard);
    bool is_open = entry->generation == op->ref.generation;
    if (is_open)
        rsi_fdtable_list_locked(&entry->sides[op->side], waiter);
    rsi_guard_unlock(&entry->guard);
    return is_open;
}

static void unlist(const struct rsi_io_op *op, struct rsi_fd_waiter *waiter)
{
    rsi_guard_lock(&op->ref.entry->guard);
    rsi_fdtable_unlist_locked(&op->ref.entry->sides[op->side], waiter);
    rsi_guard_unlock(&op->ref.entry->guard);
}

/*
 * Fill one entry from what and wait for its completion. Returns as outcome does, or -ENOBUFS if the ring has no
 * free entry. is_stream: a close, a deadline or a cancel ends the operation.
 *
 * If the deadline has already passed, the kernel is not to wait (MSG_DONTWAIT), and the thread waits without a
 * deadline: the next round completes the operation in any case. A thread with that deadline would wake before the
 * round, and would have to stop the operation.
 */
static long submit_and_wait(struct rsi_ring *ring, const struct rsi_io_op *op,
                            const struct io_uring_sqe *what, bool is_stream)
{
    struct rsi_inflight inflight = { .ring = ring, .thread = rsi_self(), .ref = op->ref };
    inflight.is_attempt = is_stream && op->deadline_ns <= rsi_now_coarse_ns();
    struct rsi_fd_waiter waiter = { .thread = inflight.thread, .kind = RSI_FD_WATCHER };
    rsi_ring_enter(ring);
    struct io_uring_sqe *entry = rsi_ring_entry(ring, &inflight, RSI_RING_INFLIGHT);
    if (entry == NULL) {
        rsi_ring_leave(ring);
        return -ENOBUFS;
    }
    uint64_t user_data = entry->user_data;
    *entry = *what;
    entry->user_data = user_data;
    if (inflight.is_attempt)
        entry->msg_flags |= MSG_DONTWAIT;
    inflight.ticket = waiter.ticket = rsi_park_prepare(
        inflight.thread, (enum rouse_wait_kind)op->kind, (const void *)(intptr_t)op->fd, op->site,
        is_stream && !inflight.is_attempt ? op->deadline_ns : ROUSE_FOREVER,
        is_stream ? RSI_PARK_CANCELLABLE : 0);
    if (is_stream && !list(op, &waiter)) {
        *entry = (struct io_uring_sqe){ .opcode = IORING_OP_NOP,
                                        .flags = IOSQE_CQE_SKIP_SUCCESS,
                                        .user_data = RSI_RING_CANCEL };
        rsi_ring_leave(ring);
        if (!rsi_park_abandon(inflight.thread, inflight.ticket))
            (void)rsi_park_commit(inflight.thread, inflight.ticket);
        return -EBADF;
    }
    rsi_store_relaxed(&ring->begun, ring->begun + 1);
    rsi_ring_leave(ring);
    int waited = rsi_park_commit(inflight.thread, inflight.ticket);
    struct rsi_past past;
    bool has_past = waited != 0 && rsi_park_past(inflight.thread, &past);
    if (rsi_unlikely(waited != 0))
        stop(&inflight, op);
    if (is_stream)
        unlist(op, &waiter);
    long result = outcome(&inflight, waited);
    if (has_past && result >= 0) /* the wait ended early, but the operation succeeded */
        rsi_park_past_verdict(inflight.thread, &past, ROUSE_VERDICT_USEFUL);
    if (rsi_unlikely(has_failed(&inflight) && waited == 0))
        rsi_park_verdict(inflight.thread, ROUSE_VERDICT_TIMEOUT);
    return result;
}

/* Returns false if the ring has no such operation. */
static bool fill_entry(const struct rsi_io_op *op, struct io_uring_sqe *entry)
{
    *entry = (struct io_uring_sqe){ .fd = op->fd, .addr = (uint64_t)op->arg[1] };
    entry->len = (uint32_t)op->arg[2];
    entry->off = UINT64_MAX; /* at the file position */
    switch (op->number) {
    case SYS_sendto:
        entry->opcode = IORING_OP_SEND;
        entry->msg_flags = (uint32_t)op->arg[3] & ~(uint32_t)MSG_DONTWAIT;
        entry->off = 0;
        return true;
    case SYS_sendmsg:
        entry->opcode = IORING_OP_SENDMSG;
        entry->len = 1;
        entry->msg_flags = (uint32_t)op->arg[2] & ~(uint32_t)MSG_DONTWAIT;
        entry->off = 0;
        return true;
    case SYS_read: entry->opcode = IORING_OP_READ; return true;
    case SYS_write: entry->opcode = IORING_OP_WRITE; return true;
    case SYS_readv: entry->opcode = IORING_OP_READV; return true;
    case SYS_writev: entry->opcode = IORING_OP_WRITEV; return true;
    case SYS_pread64:
    case SYS_pwrite64:
        entry->opcode = op->number == SYS_pread64 ? IORING_OP_READ : IORING_OP_WRITE;
        entry->off = (uint64_t)op->arg[3];
        return op->arg[3] >= 0; /* the kernel takes -1 to mean the file position */
    case SYS_fsync:
        entry->opcode = IORING_OP_FSYNC;
        entry->addr = entry->len = 0;
        entry->off = 0;
        return true;
    default: return false;
    }
}

/*
 * A lone send is made at once: a round for it alone would also cost a system call, and a switch on top. A send is
 * worth a round when other entries wait, or when several threads are runnable, which may send too. (One runnable
 * thread is not enough: it may just be yielding.)
 */
static bool is_worth_a_round(const struct rsi_ring *ring)
{
    return rsi_ring_has_entries(ring) || rsi_worker_others() > 1;
}

/*
 * Repeat until the operation is done, each time on the ring of the thread's current worker. Returns false if that
 * worker has no ring or the ring has no free entry.
 */
static bool run_until_done(const struct rsi_io_op *op, bool is_stream, long *result)
{
    struct io_uring_sqe entry;
    struct rsi_ring *ring;
    do {
        ring = rsi_ring_self();
        if (ring == NULL || (is_stream && !is_worth_a_round(ring)) || !fill_entry(op, &entry))
            return false;
        *result = submit_and_wait(ring, op, &entry, is_stream);
    } while (*result == -EINTR);
    return *result != -ENOBUFS;
}

bool rsi_inflight_run(const struct rsi_io_op *op, long *result)
{
    return (op->number == SYS_sendto || op->number == SYS_sendmsg) &&
           (op->rules & (RSI_IO_SHORT_ENDS | RSI_IO_ONCE)) == RSI_IO_SHORT_ENDS &&
           rsi_is_user(rsi_self()) && run_until_done(op, true, result);
}

bool rsi_inflight_run_file(struct rsi_io_op *op, long *result)
{
    /* Files only: on a pipe, for example, the ring would wait where pread fails. */
    return rsi_is_user(rsi_self()) && rsi_fdtable_find(op->fd, &op->ref) == RSI_FD_FILE &&
           run_until_done(op, false, result);
}
