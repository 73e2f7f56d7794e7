/* SPDX-License-Identifier: MIT */
/* order.h - the queue of threads that accept from a listener with an order. */
#ifndef RSI_IO_ACCEPT_ORDER_H
#define RSI_IO_ACCEPT_ORDER_H

#include "io/accept/listener.h"

/* rouse_accept of a user thread on an ordered listener: as rsi_io_backend.run. */
long rsi_order_accept(struct rsi_io_op *op);

/* -ERESTART: the listener was given an order before the caller was listed without one. Under the guard. */
RSI_INLINE bool rsi_order_takes_over(const struct rsi_io_op *op)
{
    return rsi_unlikely(op->kind == ROUSE_WAIT_ACCEPT) &&
           (op->ref.entry->flags & RSI_FD_IS_ORDERED) != 0;
}

/*
 * Of an ordered entry, under its guard. event: all if the listener has ended; returns whether further events
 * should go to another process. end: it is closed.
 */
bool rsi_order_event_locked(struct rsi_fd *entry, bool all, struct rsi_fd_batch *batch);
void rsi_order_end_locked(struct rsi_fd *entry, const void *site, struct rsi_fd_batch *batch);

/* Of any entry, under its guard. */
bool rsi_order_has_waiters_locked(const struct rsi_fd *entry);

#endif
