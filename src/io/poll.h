/* SPDX-License-Identifier: MIT */
/* poll.h - wait for any of many descriptors: the part that poll and select share. */
#ifndef RSI_IO_POLL_H
#define RSI_IO_POLL_H

#include "core/park.h"

#include <poll.h>

#define RSI_POLL_EXCLUSIVE 1u
/* Errors and hang-ups count as in select, and an invalid descriptor ends the call with -EBADF. */
#define RSI_POLL_SELECT 2u

/* The events that select's three sets request, and the events that make a descriptor ready in them. */
#define RSI_POLL_IN (POLLIN | POLLRDNORM | POLLRDBAND)
#define RSI_POLL_OUT (POLLOUT | POLLWRNORM | POLLWRBAND)
#define RSI_POLL_EXCEPT POLLPRI
#define RSI_POLL_IN_COUNTS (RSI_POLL_IN | POLLHUP | POLLERR)
#define RSI_POLL_OUT_COUNTS (RSI_POLL_OUT | POLLERR)

/* self has been given events by the set with this index and has not handled them yet: record the debt. */
void rsi_poll_owe_set(struct rouse_thread *self, uint32_t index);

/* self begins a wait on the set with this index: settle a debt that it has elsewhere. */
void rsi_poll_turn_away(struct rouse_thread *self, uint32_t index);

/* Fill in revents without waiting, including data that rings hold. Returns as ppoll does, but never -EINTR. */
long rsi_poll_look(struct pollfd *fds, nfds_t count);

/* rouse_poll_until with flags. */
int rsi_poll_wait(struct pollfd *fds, nfds_t count, uint64_t deadline_ns, unsigned flags,
                  const void *site);

#endif
