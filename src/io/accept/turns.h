/* SPDX-License-Identifier: MIT */
/*
 * turns.h - processes that share a listener accept in turn.
 *
 * All calls except make and drop require the arming lock of the listener's entry. fd is the listener. data is the
 * value that the epoll set reports with its events (see epoll.c).
 */
#ifndef RSI_IO_ACCEPT_TURNS_H
#define RSI_IO_ACCEPT_TURNS_H

#include "base/base.h"

struct rsi_turns;

#define RSI_TURNS_MOST 256u /* processes */

/* Make turns for this many processes, before they are forked. Returns 0 or -errno. */
int rsi_turns_make(unsigned processes, struct rsi_turns **turns);

/* Close this process's copies of the descriptors and free its memory. */
void rsi_turns_drop(struct rsi_turns *t);

/*
 * Whether it is this process's turn: 1 or 0, or -errno (-EUSERS: all places are taken). The process takes part from
 * its first call on. was_woken: an event has announced the turn. *is_new is set if the descriptor to watch has
 * changed.
 */
int rsi_turns_ask(struct rsi_turns *t, int fd, uint64_t data, bool was_woken, bool *is_new);

/* Whether the turn word names this process. Neither joins nor checks anything else. */
bool rsi_turns_is_mine(const struct rsi_turns *t);

/* A connection was taken: pass the turn to the next process. */
void rsi_turns_pass(struct rsi_turns *t, int fd);

/* Leave. fd is still open. */
void rsi_turns_leave(struct rsi_turns *t, int fd);

/* A connection arrived out of turn, or the timer expired: check whether the current turn is overdue. */
void rsi_turns_look(struct rsi_turns *t, int fd);

/* The descriptor that is readable when it is this process's turn and a connection is there. */
int rsi_turns_fd(const struct rsi_turns *t);

/* After fork, in the child, which does not take part yet. */
void rsi_turns_child(struct rsi_turns *t);

#endif
