/* SPDX-License-Identifier: MIT */
/*
 * order.h - `--accept`: whose turn it is to wait for a listener, among all threads and processes of a run.
 *
 * A thread that is about to wait enters the listener's queue. The thread that has the turn waits for the listener,
 * and all others wait for the turn. A thread that takes a connection, or stops waiting for another reason, passes the
 * turn on.
 */
#ifndef RPI_ACCEPT_ORDER_H
#define RPI_ACCEPT_ORDER_H

#include "accept/listener.h"

#include <poll.h>
#include <signal.h>

void rpi_order_setup(void); /* reads the order that `rouse run` requests */
void rpi_order_child(void);
void rpi_order_note(void); /* in the head of the file */

/* Whether threads accept in turn. */
bool rpi_order_is_on(void);

/* How long to delay this accept, in ns; 0: not. */
uint64_t rpi_order_delay_ns(void);

/*
 * self is about to wait for l. by_socket: also for other things, so only a message to its socket can report its turn.
 * False: there is no place, and self waits as the program asked. A thread that already has the turn keeps it.
 */
bool rpi_order_enter(struct rpi_thread *self, const struct rpi_listener *l, bool by_socket);

bool rpi_order_is_in(const struct rpi_thread *self);   /* it has entered a queue and not left it */
bool rpi_order_is_mine(const struct rpi_thread *self); /* it has the turn there */
bool rpi_order_is_anothers(const struct rpi_thread *self); /* another thread, which waits, has it */

/* self stops waiting, or has its connection. If it had the turn, the next thread gets it. */
void rpi_order_leave(struct rpi_thread *self);

/* self exits. */
void rpi_order_end(struct rpi_thread *self);

/*
 * Sleep until the turn may be self's. With others or a mask, by_socket must have been true. Returns 1: check the turn
 * and the others; 0: deadline_ns has passed; -EINTR. A cancellation point.
 */
struct rpi_order_wait {
    /* The caller's listeners: the turn lets it take a connection of any of them. */
    struct pollfd *listeners;
    nfds_t listener_count;
    /* Other descriptors: an event on any of them ends the sleep. With room for one more. */
    struct pollfd *others;
    nfds_t count; /* 0: no others */
    uint64_t deadline_ns;
    const sigset_t *mask;
};
int rpi_order_sleep(struct rpi_thread *self, const struct rpi_order_wait *wait);

/* The calling thread waits for a listener outside the order, and takes the connections that it finds. */
void rpi_order_refuse(void);

/* The calling thread is about to close fd: a connection that was reported there will not be taken. */
void rpi_order_close(int fd);

#endif
