/* SPDX-License-Identifier: MIT */
/* order.h - the queue of threads that wait in accept on a listener with an order. */
#ifndef RSI_IO_ACCEPT_ORDER_H
#define RSI_IO_ACCEPT_ORDER_H

#include "io/accept/listener.h"

/* rouse_accept of a user thread on an ordered listener. Returns as rsi_io_backend.run does. */
long rsi_order_accept(struct rsi_io_op *op);

/*
 * Whether the listener was given an order before the caller was listed without one; the caller then returns
 * -ERESTART and starts again. Under the guard.
 */
RSI_INLINE bool rsi_order_takes_over(const struct rsi_io_op *op)
{
    return rsi_unlikely(op->kind == ROUSE_WAIT_ACCEPT) &&
           (op->ref.entry->flags & RSI_FD_IS_ORDERED) != 0;
}

/*
 * Both are for an ordered entry, under its guard.
 * event: a connection may be there: wake the next thread, or all of them if the listener has ended. Returns whether
 *        further events should go to another process.
 * end: the listener is closed: every wait ends with -EBADF.
 */
bool rsi_order_event_locked(struct rsi_fd *entry, bool all, struct rsi_fd_batch *batch);
void rsi_order_end_locked(struct rsi_fd *entry, const void *site, struct rsi_fd_batch *batch);

/* Whether threads wait in the queue of entry, which may be any entry. Under its guard. */
bool rsi_order_has_waiters_locked(const struct rsi_fd *entry);

#endif
