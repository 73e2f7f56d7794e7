/* SPDX-License-Identifier: MIT */
/*
 * listener.h - which of the threads that wait in accept gets the next connection.
 *
 * A listener that was given an order (rouse_listener_order) has a queue of its own for the user threads
 * that accept from it; its entry has RSI_FD_IS_ORDERED, set under the guard. All else (kernel threads,
 * pollers, listeners without an order) stays in the lists of fdtable.h.
 */
#ifndef RSI_IO_LISTENER_H
#define RSI_IO_LISTENER_H

#include "io/backend.h"

#include <errno.h>

struct rsi_listener;

/* rouse_accept of a user thread on an ordered listener: as rsi_io_backend.run. */
long rsi_listener_accept(struct rsi_io_op *op);

/* -ERESTART: the listener was given an order before the caller was listed without one. Under the guard. */
RSI_INLINE bool rsi_listener_takes_over(const struct rsi_io_op *op)
{
    return rsi_unlikely(op->kind == ROUSE_WAIT_ACCEPT) &&
           (op->ref.entry->flags & RSI_FD_IS_ORDERED) != 0;
}

/* Of an ordered entry, under its guard. event: all if the listener has ended. end: it is closed. */
void rsi_listener_event_locked(struct rsi_fd *entry, bool all, struct rsi_fd_batch *batch);
void rsi_listener_end_locked(struct rsi_fd *entry, const void *site, struct rsi_fd_batch *batch);
bool rsi_listener_has_waiters_locked(struct rsi_fd *entry);

/* After fork, in the child; first this. */
void rsi_listener_reset(void);
/* Then for each ordered entry: nobody waits. Returns whether fd is still the listener that it was. */
bool rsi_listener_child(struct rsi_fd *entry, int fd);

/* Errors of a connection that died before it was accepted, which Linux reports by accept. */
RSI_INLINE bool rsi_listener_is_dead(long result)
{
    switch (result) {
    case -ECONNABORTED:
    case -EPROTO:
    case -ENOPROTOOPT:
    case -ENETDOWN:
    case -ENETUNREACH:
    case -EHOSTDOWN:
    case -EHOSTUNREACH:
    case -ENONET: return true;
    default: return false;
    }
}

#endif
