/* SPDX-License-Identifier: MIT */
/*
 * listener.h - listeners with an order: which of the threads in accept gets the next connection.
 *
 * A listener that was given an order (rouse_listener_order) has its own queue of the user threads that accept from
 * it (order.h), and its entry has RSI_FD_IS_ORDERED, set under the guard. Everything else (kernel threads, polls,
 * listeners without an order) stays in the lists of fdtable.h. Processes may share a listener in turn (gates.h).
 */
#ifndef RSI_IO_ACCEPT_LISTENER_H
#define RSI_IO_ACCEPT_LISTENER_H

#include "io/backend.h"

#include <errno.h>

struct rsi_caller;
struct rsi_gates;
struct epoll_event;

/* Belongs to its entry for ever, and is reused with it. */
struct rsi_listener {
    /* next in its bucket. chain and entry are written before it is listed */
    struct rsi_listener *chain;
    struct rsi_fd *entry;
    /* under the entry's guard */
    struct rsi_caller *first, *last;
    uint64_t callers; /* arrival numbers given out */
    uint64_t random;
    uint64_t inode;  /* of the socket */
    uint32_t count;  /* threads in the queue */
    uint32_t on_way; /* woken threads that have not tried yet */
    uint8_t order;
    bool is_exclusive; /* is_exclusive and turns are written under arming and the guard */
    struct rsi_gates *gates;
};

/* The listener of an entry that is ordered, or was when the caller looked. Never NULL. */
struct rsi_listener *rsi_listener_of(const struct rsi_fd *entry);

RSI_INLINE bool rsi_listener_is_current(const struct rsi_io_op *op)
{
    return op->ref.entry->generation == op->ref.generation;
}

/*
 * Fill in the event that the epoll set needs for op's listener, for the sides in armed. Returns false if the listener
 * is registered like any other descriptor. rsi_listener_fd is the descriptor to register. Arming is held.
 */
bool rsi_listener_arms(const struct rsi_io_op *op, uint8_t armed, struct epoll_event *event);
int rsi_listener_fd(const struct rsi_io_op *op);

/* Handle an event that concerns turns: see gates.h. */
void rsi_listener_look(const struct rsi_io_op *op);

/* Before fd is closed: leave its turns. The caller drops the result (rsi_gates_drop) after the close. NULL: none. */
struct rsi_gates *rsi_listener_leave(int fd);

/* After fork, in the child, before rsi_listener_child. */
void rsi_listener_reset(void);
/* Then, for each ordered entry: forget all waiters. Returns whether fd is still the same listener. */
bool rsi_listener_child(struct rsi_fd *entry, int fd);

/* Errors of a connection that died before it was accepted. Linux reports them from accept. */
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
