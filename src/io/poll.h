/* SPDX-License-Identifier: MIT */
/* poll.h - waiting for any of many descriptors, as poll and select share it. */
#ifndef RSI_IO_POLL_H
#define RSI_IO_POLL_H

#include "core/park.h"

#include <poll.h>

#define RSI_POLL_EXCLUSIVE 1u
/* Errors and hang-ups count as select has it; a descriptor that is none ends it with -EBADF. */
#define RSI_POLL_SELECT 2u

/* What select's three sets ask of a descriptor, and what of its answer counts for them. */
#define RSI_POLL_IN (POLLIN | POLLRDNORM | POLLRDBAND)
#define RSI_POLL_OUT (POLLOUT | POLLWRNORM | POLLWRBAND)
#define RSI_POLL_EXCEPT POLLPRI
#define RSI_POLL_IN_COUNTS (RSI_POLL_IN | POLLHUP | POLLERR)
#define RSI_POLL_OUT_COUNTS (RSI_POLL_OUT | POLLERR)

/* What self was told of by the set with this index is not seen to yet. */
void rsi_poll_owe_set(struct rouse_thread *self, uint32_t index);

/* self turns to the set with this index: what it owes elsewhere is handed on. */
void rsi_poll_turn_away(struct rouse_thread *self, uint32_t index);

/* What is ready now, wherever it has been received: ppoll's result, never -EINTR. */
long rsi_poll_look(struct pollfd *fds, nfds_t count);

/* As rouse_poll_until. */
int rsi_poll_wait(struct pollfd *fds, nfds_t count, uint64_t deadline_ns, unsigned flags,
                  const void *site);

#endif
