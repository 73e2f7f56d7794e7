/* SPDX-License-Identifier: MIT */
/* listener.h - which descriptors are listening sockets, and the counts of each. Nothing here sets errno. */
#ifndef RPI_ACCEPT_LISTENER_H
#define RPI_ACCEPT_LISTENER_H

#include "record/thread.h"

/* A listening socket, as this process knows it. Never removed. */
struct rpi_listener {
    uint64_t cookie; /* from the kernel; the same in all processes */
    bool is_tcp;
    char name[sizeof(((struct rsi_store_listener *)0)->name)];
};

/* The listener that fd refers to. NULL: none, or the caller is the child of a vfork. */
const struct rpi_listener *rpi_listener_of(int fd);

/* Whether the kernel confirms that fd is l, and not another file that has the number by now. */
bool rpi_listener_is(int fd, const struct rpi_listener *l);

/* It is no longer known what fd refers to, or known that it is no listener. fd < 0: no effect. */
void rpi_listener_ask_anew(int fd);
void rpi_listener_is_none(int fd);

/* The row of self, which is busy, for l. NULL: no room. */
struct rsi_store_listener *rpi_listener_row(struct rpi_thread *self, const struct rpi_listener *l);

/* The calling thread's accept has found no connection, has taken one without a sleep, or after a sleep. */
enum rpi_accept { RPI_ACCEPT_NONE, RPI_ACCEPT_AT_ONCE, RPI_ACCEPT_WOKEN };
void rpi_listener_accepted(int fd, enum rpi_accept how);

/* The calling thread's poll reported a connection of l without a sleep. */
void rpi_listener_reported(const struct rpi_listener *l);

/*
 * The calling thread has waited for l, and perhaps for other things, since its count of voluntary switches was
 * switches. found: the listener that has a connection, or NULL.
 */
void rpi_listener_waited(const struct rpi_listener *l, uint64_t switches,
                         const struct rpi_listener *found);

/* An accept was delayed on request since since_tsc. */
void rpi_listener_delayed(const struct rpi_listener *l, uint64_t since_tsc);

void rpi_listener_child(void);

#endif
