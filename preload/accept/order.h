/* SPDX-License-Identifier: MIT */
/*
 * order.h - whose turn it is to wait for a listener, over the threads and processes of a run: `--accept`.
 *
 * A thread that is about to wait enters the listener's queue. Who has the turn waits for the listener, all others for the
 * turn. Who takes a connection, or stops waiting for another reason, passes the turn on.
 */
#ifndef RPI_ACCEPT_ORDER_H
#define RPI_ACCEPT_ORDER_H

#include "preload.h"

/* Begin with what `rouse run` asks for, if it does; a child of a fork goes on with it. */
void rpi_order_begin(void);
void rpi_order_child(void);
void rpi_order_note(void); /* in the file's head */

/* Whether turns are given at all. */
bool rpi_order_is_on(void);

/* How long accept is to be delayed now, in ns; 0: not. */
uint64_t rpi_order_delay_ns(void);

/*
 * self is about to wait for l, or for it and other things, and then it can only be told by a message to its socket
 * (by_socket). False: it has no place, and waits as the program has it. If it has the turn from before it keeps it.
 */
bool rpi_order_enter(struct rpi_thread *self, const struct rpi_listener *l, bool by_socket);

/* Whether self has entered a queue and not left it; and has the turn there; and another has, who waits. */
bool rpi_order_is_in(const struct rpi_thread *self);
bool rpi_order_is_mine(const struct rpi_thread *self);
bool rpi_order_is_anothers(const struct rpi_thread *self);

/* self waits no more, or has its connection: the turn, if it was its own, is the next one's. */
void rpi_order_leave(struct rpi_thread *self);

/* The thread ends. */
void rpi_order_end(struct rpi_thread *self);

/*
 * Sleep until the turn may be ours. With others or a mask, by_socket must have been said. Returns 1: look at turn and
 * others; 0: deadline_ns has come; -EINTR. A cancellation point.
 */
struct pollfd;
struct rpi_order_wait {
    struct pollfd *
        listeners; /* that the caller waits for: the turn is one to take a connection of any of them */
    nfds_t listener_count;
    struct pollfd
        *others; /* what else it waits for, of which one with events is enough; room for one more */
    nfds_t count; /* 0: nothing else */
    uint64_t deadline_ns;
    const sigset_t *mask;
};
int rpi_order_sleep(struct rpi_thread *self, const struct rpi_order_wait *wait);

/*
 * The socket that self is told of its turn by (bell.c): its descriptor, -1 if there is none; put it there, and its name
 * into name; a message to the one of that name; take the messages that have come; close it.
 */
#define RPI_NOTIFY_NAME_BYTES 8u
int rpi_notify_fd(const struct rpi_thread *self);
bool rpi_notify_open(struct rpi_thread *self, char name[RPI_NOTIFY_NAME_BYTES]);
void rpi_notify_send(struct rpi_thread *self, const char name[RPI_NOTIFY_NAME_BYTES]);
void rpi_notify_drain(const struct rpi_thread *self);
void rpi_notify_close(struct rpi_thread *self);

/* The calling thread waits for a listener as the program has it, and takes what it finds. */
void rpi_order_refuse(void);

/* The calling thread is about to close fd: if it has been told of a connection there, it will not take it. */
void rpi_order_close(int fd);

#endif
