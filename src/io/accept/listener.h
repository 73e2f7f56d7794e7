/* SPDX-License-Identifier: MIT */
/*
 * listener.h - which of the threads that wait in accept gets the next connection.
 *
 * A listener that was given an order (rouse_listener_order) has a queue of its own for the user threads
 * that accept from it; its entry has RSI_FD_IS_ORDERED, set under the guard. All else (kernel threads,
 * pollers, listeners without an order) stays in the lists of fdtable.h.
 */
#ifndef RSI_IO_ACCEPT_LISTENER_H
#define RSI_IO_ACCEPT_LISTENER_H

#include "io/backend.h"

#include <errno.h>

struct rsi_caller;
struct rsi_turns;
struct epoll_event;

/* Belongs to its entry for good, and is used again with it. */
struct rsi_listener {
    struct rsi_listener *chain; /* of its bucket; both are written before it is published */
    struct rsi_fd *entry;
    /* under the entry's guard */
    struct rsi_caller *first, *last;
    uint64_t callers; /* numbers given out */
    uint64_t random;
    uint64_t inode; /* of the socket */
    uint32_t count; /* listed */
    uint32_t on_way;
    uint8_t order;
    bool is_exclusive; /* written under arming and the guard; so is turns */
    struct rsi_turns *turns;
};

/* That of an entry which is ordered, or was when the caller looked: there is one. */
struct rsi_listener *rsi_listener_of(const struct rsi_fd *entry);

RSI_INLINE bool rsi_listener_is_current(const struct rsi_io_op *op)
{
    return op->ref.entry->generation == op->ref.generation;
}

/*
 * What the epoll set is to have for op's listener, for the sides in armed: whether event, or the descriptor,
 * is another than for other descriptors. Arming is held.
 */
bool rsi_listener_arms(const struct rsi_io_op *op, uint8_t armed, struct epoll_event *event);
int rsi_listener_fd(const struct rsi_io_op *op);

/* An event that is about turns: see turns.h. */
void rsi_listener_look(const struct rsi_io_op *op);

/* Before fd is closed: it takes part in turns no longer. What is returned is to be dropped after the close. */
struct rsi_turns *rsi_listener_leave(int fd);

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
