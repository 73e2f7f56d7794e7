/* SPDX-License-Identifier: MIT */
/* ready.h - operations over readiness: try, wait for an event, try again. Also the epoll set (epoll.c). */
#ifndef RSI_IO_READY_H
#define RSI_IO_READY_H

#include "io/backend.h"

/*
 * The epoll set.
 * arm:   report events of the sides in bits for op's descriptor from now on, and immediately if it is ready. Returns 0
 *        or -errno.
 * start: make the set if there is none. Returns its descriptor or -errno.
 * fd:    its descriptor, -1 while there is none.
 */
int rsi_epoll_arm(const struct rsi_io_op *op, uint8_t bits);
int rsi_epoll_start(void);
int rsi_epoll_fd(void);
extern const struct rsi_poller rsi_epoll_poller;

/* Stop reporting events of these sides, unless a thread waits for them. */
void rsi_epoll_disarm(const struct rsi_io_op *op, uint8_t bits);

/*
 * epoll_ctl on the set for a descriptor that stands for another. data is the value that its events report:
 * generation << 32 | number. With RSI_EPOLL_WATCH in data they are not events of that number, and call
 * rsi_listener_look instead. Returns 0 or -errno.
 */
#define RSI_EPOLL_WATCH (UINT64_C(1) << 31)
int rsi_epoll_control(int operation, int fd, uint32_t events, uint64_t data);

/* Carry out op by readiness: the run of the epoll backend. */
long rsi_ready_run(struct rsi_io_op *op);

/*
 * Count an event of entry, if its generation is still this one. epoll_mask are epoll bits. Claimed threads join the
 * batch. Returns the sides (1 << side) whose events no thread waits for and that should be switched off.
 */
uint8_t rsi_ready_event(struct rsi_fd *entry, uint32_t generation, uint32_t epoll_mask,
                        struct rsi_fd_batch *batch);

/* The same under the guard, when the generation is known to match. */
uint8_t rsi_ready_event_locked(struct rsi_fd *entry, uint32_t epoll_mask,
                               struct rsi_fd_batch *batch);

/*
 * An operation on fd has ended with a result (poll.c). If an exclusive poll had woken the thread for fd, its debt is
 * settled, and what is left is for the next thread. is_empty: nothing is known to be left.
 */
void rsi_poll_served_owing(struct rouse_thread *self, int fd, bool is_empty);

RSI_INLINE void rsi_poll_served(struct rouse_thread *self, int fd, bool is_empty)
{
    if (rsi_unlikely(rsi_park_owes(self)))
        rsi_poll_served_owing(self, fd, is_empty);
}

#endif
