/* SPDX-License-Identifier: MIT */
/* ready.h - operations over readiness: try, wait for an event, try again. */
#ifndef RSI_IO_READY_H
#define RSI_IO_READY_H

#include "io/backend.h"

/*
 * The epoll set. arm: have events of side bits reported for op's descriptor from now on, and once at once if
 * it is ready; returns 0 or -errno. start: make it, if there is none; returns its descriptor or -errno. fd:
 * its descriptor, -1 while there is none.
 */
int rsi_epoll_arm(const struct rsi_io_op *op, uint8_t bits);
int rsi_epoll_start(void);
int rsi_epoll_fd(void);
extern const struct rsi_poller rsi_epoll_poller;

/* Have events of these sides reported no longer, unless somebody waits for them. */
void rsi_epoll_disarm(const struct rsi_io_op *op, uint8_t bits);

/*
 * epoll_ctl on the set for a descriptor that stands for another: data is what its events report, generation
 * << 32 | number. With RSI_EPOLL_WATCH they are not events of the number: rsi_listener_look is called.
 * Returns 0 or -errno.
 */
#define RSI_EPOLL_WATCH (UINT64_C(1) << 31)
int rsi_epoll_control(int operation, int fd, uint32_t events, uint64_t data);

/* What an epoll backend's run does. */
long rsi_ready_run(struct rsi_io_op *op);

/*
 * Count an event of entry's generation; epoll_mask in epoll's terms. Claimed threads join the batch.
 * Returns the sides (1 << side) whose events come for nobody and should be switched off.
 */
uint8_t rsi_ready_event(struct rsi_fd *entry, uint32_t generation, uint32_t epoll_mask,
                        struct rsi_fd_batch *batch);

/* The same under the guard, for a descriptor that is known to be the right one. */
uint8_t rsi_ready_event_locked(struct rsi_fd *entry, uint32_t epoll_mask,
                               struct rsi_fd_batch *batch);

/*
 * poll.c: an operation on fd has ended with a result. If the thread was woken by an exclusive poll for fd,
 * it has seen to it; what is left is for the next. is_empty: it is known that nothing is left.
 */
void rsi_poll_served_owing(struct rouse_thread *self, int fd, bool is_empty);

RSI_INLINE void rsi_poll_served(struct rouse_thread *self, int fd, bool is_empty)
{
    if (rsi_unlikely(rsi_park_owes(self)))
        rsi_poll_served_owing(self, fd, is_empty);
}

#endif
