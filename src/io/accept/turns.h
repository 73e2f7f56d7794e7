/* SPDX-License-Identifier: MIT */
/*
 * turns.h - processes that share a listener accept in turn.
 *
 * All calls but make and drop are made with the listener's entry's arming held. fd is the listener, data what
 * the epoll set reports with its events (see epoll.c).
 */
#ifndef RSI_IO_ACCEPT_TURNS_H
#define RSI_IO_ACCEPT_TURNS_H

#include "base/base.h"

struct rsi_turns;

#define RSI_TURNS_MOST 256u /* processes */

/* For so many processes, before they are forked. Returns 0 or -errno. */
int rsi_turns_make(unsigned processes, struct rsi_turns **turns);

/* This process's copy of the descriptors, and its memory. */
void rsi_turns_drop(struct rsi_turns *t);

/*
 * Whether it is this process's turn: 1 or 0, or -errno (-EUSERS: as many processes take part as there is room
 * for). Takes part from the first call on. was_woken: the caller was told that it is. *is_new: the descriptor
 * to be watched is another than before.
 */
int rsi_turns_ask(struct rsi_turns *t, int fd, uint64_t data, bool was_woken, bool *is_new);

/* It is this process's turn, as far as it knows, without more ado. */
bool rsi_turns_is_mine(const struct rsi_turns *t);

/* A connection was taken: the next one's turn. */
void rsi_turns_pass(struct rsi_turns *t, int fd);

/* Take part no longer. fd is still open. */
void rsi_turns_leave(struct rsi_turns *t, int fd);

/* A connection came out of turn, or the timer rang: is somebody's turn overdue? */
void rsi_turns_look(struct rsi_turns *t, int fd);

/* Readable when it is this process's turn and a connection is there. */
int rsi_turns_fd(const struct rsi_turns *t);

/* After fork, in the child: it does not take part yet. */
void rsi_turns_child(struct rsi_turns *t);

#endif
