/* SPDX-License-Identifier: MIT */
/* notify.h - the socket by which a thread learns of its turn to accept while it polls other descriptors too. */
#ifndef RPI_ACCEPT_NOTIFY_H
#define RPI_ACCEPT_NOTIFY_H

#include "record/thread.h"

#define RPI_NOTIFY_NAME_BYTES 8u

/* self's socket; -1: it has none. */
int rpi_notify_fd(const struct rpi_thread *self);

/* Open self's socket unless it is open, and write its name into name. */
bool rpi_notify_open(struct rpi_thread *self, char name[RPI_NOTIFY_NAME_BYTES]);

/* Send a message to the socket of this name. */
void rpi_notify_send(struct rpi_thread *self, const char name[RPI_NOTIFY_NAME_BYTES]);
void rpi_notify_drain(const struct rpi_thread *self); /* discard all messages that have arrived */
void rpi_notify_close(struct rpi_thread *self);

#endif
