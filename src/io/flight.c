/* SPDX-License-Identifier: MIT */
/* flight.c - see flight.h. */
#include "io/flight.h"

#include "core/turn.h"
#include "io/ring.h"

#include <errno.h>
#include <sys/socket.h>

enum flight_state { FLIGHT_PENDING, FLIGHT_DONE, FLIGHT_ALONE };

struct rsi_flight {
    struct rsi_mail mail; /* to the ring's worker: stop it */
    struct rsi_ring *ring;
    struct rouse_thread *thread;
    uint64_t ticket;
    uint64_t last_ticket; /* of the wait for the acknowledgement */
    int32_t result;
    uint32_t state;
    struct rsi_fd_ref ref;
    bool is_void; /* was not submitted: closed before */
    /* Of a flight that is alone, the ring's worker's: the thread waits until the one is true, the other false. */
    bool is_over; /* the operation has ended */
    bool
        is_asked; /* the kernel is asked, or is to be asked, to stop it; no answer yet. Before, the thread's */
};

bool rsi_flight_is_current(struct rsi_flight *flight)
{
    /* Acquire: pairs with end_generation, as in ready.c. */
    flight->is_void = rsi_load_acquire(&flight->ref.entry->generation) != flight->ref.generation;
    return !flight->is_void;
}

void rsi_flight_done(struct rsi_flight *flight, int result, struct rsi_fd_batch *batch)
{
    struct rouse_thread *thread = flight->thread;
    struct rsi_ring *ring = flight->ring;
    uint64_t ticket = flight->ticket;
    rsi_store_relaxed(&ring->flying, ring->flying - 1);
    flight->result = result;
    rsi_test_delay();
    /* Releases the result, and acquires last_ticket; pairs with the exchange in stop. */
    if (rsi_exchange_acq_rel(&flight->state, FLIGHT_DONE) == FLIGHT_ALONE) {
        ticket = flight->last_ticket; /* it waits: its stack is as it was */
        flight->is_over = true;
        if (flight->is_asked)
            return;
    }
    (void)rsi_fdtable_claim(thread, ticket, 0, NULL, batch);
}

/* On the ring's worker. The thread waits, for the completion and for the answer, which come in either order. */
static void submit_stop(struct rsi_mail *mail)
{
    struct rsi_flight *flight = rsi_container_of(mail, struct rsi_flight, mail);
    if (flight->is_over) {
        if (rsi_park_claim(flight->thread, flight->last_ticket, 0, NULL))
            rsi_park_publish(flight->thread);
        return;
    }
    /* Refused only when the kernel has no memory for a submission: try until it has. */
    if (!rsi_ring_cancel(flight->ring, flight, RSI_RING_FLIGHT, RSI_RING_FLIGHT_CANCEL))
        rsi_mail_send(flight->ring->index, mail);
}

void rsi_flight_cancelled(struct rsi_flight *flight, int answer, struct rsi_fd_batch *batch)
{
    if (flight->is_over)
        (void)rsi_fdtable_claim(flight->thread, flight->last_ticket, 0, NULL, batch);
    else if (rsi_ring_overlooked(answer))
        submit_stop(&flight->mail);
    else
        flight->is_asked = false;
}

/* The wait ended, but maybe not the operation: have it stopped, and return when the kernel has let go. */
static void stop(struct rsi_flight *flight, const struct rsi_io_op *op)
{
    struct rouse_thread *self = flight->thread;
    flight->last_ticket = rsi_park_prepare(self, (enum rouse_wait_kind)op->kind,
                                           (const void *)(intptr_t)op->fd, op->site, ROUSE_FOREVER,
                                           0);
    flight->is_asked = true;
    rsi_test_delay();
    /* Acquires the result, and releases the two; pairs with the exchange in rsi_flight_done. */
    if (rsi_exchange_acq_rel(&flight->state, FLIGHT_ALONE) == FLIGHT_DONE) {
        if (!rsi_park_abandon(self, flight->last_ticket))
            (void)rsi_park_commit(self, flight->last_ticket);
        return;
    }
    flight->mail.take = submit_stop;
    if (rouse_worker_index() == (int)flight->ring->index)
        submit_stop(&flight->mail);
    else
        rsi_mail_send(flight->ring->index, &flight->mail);
    (void)rsi_park_commit(self, flight->last_ticket);
}

/* What the caller is told: waited is how the wait ended. */
static long outcome(const struct rsi_flight *flight, int waited)
{
    long result = flight->is_void ? -EBADF : flight->result;
    if (result == -ECANCELED || result == -EINTR)
        return waited < 0 ? waited : -EINTR;
    if (waited == -ECANCELED)
        (void)rouse_thread_cancel(flight->thread); /* for the next call */
    return result;
}

/* The thread is about to sleep: a close is to find it. False: closed already. */
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
 * Send one entry on its way and wait for it. Returns as outcome; -ENOBUFS: there is no entry to be had.
 * is_stream: a close, a deadline or a request to stop ends it.
 */
static long fly(struct rsi_ring *ring, const struct rsi_io_op *op, const struct io_uring_sqe *what,
                bool is_stream)
{
    struct rsi_flight flight = { .ring = ring, .thread = rsi_self(), .ref = op->ref };
    struct rsi_fd_waiter waiter = { .thread = flight.thread, .kind = RSI_FD_WATCHER };
    struct io_uring_sqe *entry = rsi_ring_entry(ring, &flight, RSI_RING_FLIGHT);
    if (entry == NULL)
        return -ENOBUFS;
    uint64_t user_data = entry->user_data;
    *entry = *what;
    entry->user_data = user_data;
    flight.ticket = waiter.ticket = rsi_park_prepare(
        flight.thread, (enum rouse_wait_kind)op->kind, (const void *)(intptr_t)op->fd, op->site,
        is_stream ? op->deadline_ns : ROUSE_FOREVER, is_stream ? RSI_PARK_CANCELLABLE : 0);
    if (is_stream && !list(op, &waiter)) {
        *entry = (struct io_uring_sqe){ .opcode = IORING_OP_NOP,
                                        .flags = IOSQE_CQE_SKIP_SUCCESS,
                                        .user_data = RSI_RING_CANCEL };
        if (!rsi_park_abandon(flight.thread, flight.ticket))
            (void)rsi_park_commit(flight.thread, flight.ticket);
        return -EBADF;
    }
    rsi_store_relaxed(&ring->flying, ring->flying + 1);
    int waited = rsi_park_commit(flight.thread, flight.ticket);
    struct rsi_past past;
    bool has_past = waited != 0 && rsi_park_past(flight.thread, &past);
    if (rsi_unlikely(waited != 0))
        stop(&flight, op);
    if (is_stream)
        unlist(op, &waiter);
    long result = outcome(&flight, waited);
    if (has_past && result >= 0) /* the time was over, and it was done all the same */
        rsi_park_past_verdict(flight.thread, &past, ROUSE_VERDICT_USEFUL);
    return result;
}

/* False: the ring has no such operation. */
static bool describe(const struct rsi_io_op *op, struct io_uring_sqe *entry)
{
    *entry = (struct io_uring_sqe){ .fd = op->fd, .addr = (uint64_t)op->arg[1] };
    entry->len = (uint32_t)op->arg[2];
    entry->off = UINT64_MAX; /* where the file stands */
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
        return op->arg[3] >= 0; /* the kernel would take -1 for where the file stands */
    case SYS_fsync:
        entry->opcode = IORING_OP_FSYNC;
        entry->addr = entry->len = 0;
        entry->off = 0;
        return true;
    default: return false;
    }
}

/*
 * A send that has no company is made at once: a round for it alone would be a system call too, and a switch
 * more. Company are threads that have yet to run, and may send too: several, for one may just be yielding.
 */
static bool is_worth_a_round(const struct rsi_ring *ring)
{
    return rsi_ring_has_entries(ring) || rsi_worker_others() > 1;
}

/* Each time on the ring of the worker that the thread is on by then. False: there is none, or no entry. */
static bool fly_until_done(const struct rsi_io_op *op, bool is_stream, long *result)
{
    struct io_uring_sqe entry;
    struct rsi_ring *ring;
    do {
        ring = rsi_ring_self();
        if (ring == NULL || (is_stream && !is_worth_a_round(ring)) || !describe(op, &entry))
            return false;
        *result = fly(ring, op, &entry, is_stream);
    } while (*result == -EINTR);
    return *result != -ENOBUFS;
}

bool rsi_flight_run(const struct rsi_io_op *op, long *result)
{
    return (op->number == SYS_sendto || op->number == SYS_sendmsg) &&
           (op->rules & (RSI_IO_SHORT_ENDS | RSI_IO_ONCE)) == RSI_IO_SHORT_ENDS &&
           rsi_is_user(rsi_self()) && fly_until_done(op, true, result);
}

bool rsi_flight_run_file(struct rsi_io_op *op, long *result)
{
    /* Of a pipe, say, the ring would wait where pread fails. */
    return rsi_is_user(rsi_self()) && rsi_fdtable_find(op->fd, &op->ref) == RSI_FD_FILE &&
           fly_until_done(op, false, result);
}
