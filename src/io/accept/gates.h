/* SPDX-License-Identifier: MIT */
/*
 * gates.h - processes that share a listener accept in turn: see turns/turns.h for whose turn it is.
 *
 * All calls except make and drop require the arming lock of the listener's entry. fd is the listener. data is the
 * value that the epoll set reports with its events (see epoll.c).
 */
#ifndef RSI_IO_ACCEPT_GATES_H
#define RSI_IO_ACCEPT_GATES_H

#include "base/base.h"

struct rsi_gates;

/* Make gates for at most RSI_TURNS_PLACES_MOST processes, before they are forked. Returns 0 or -errno. */
int rsi_gates_make(unsigned processes, struct rsi_gates **gates);

/* Close this process's copies of the descriptors and free its memory. */
void rsi_gates_drop(struct rsi_gates *t);

/*
 * Whether it is this process's turn: 1 or 0, or -errno (-EUSERS: all places are taken). The process takes part from
 * its first call on. was_woken: an event has announced the turn. *is_new is set if the descriptor to watch has
 * changed.
 */
int rsi_gates_ask(struct rsi_gates *t, int fd, uint64_t data, bool was_woken, bool *is_new);

/* Whether the turn word names this process. Neither joins nor checks anything else. */
bool rsi_gates_is_mine(const struct rsi_gates *t);

/* A connection was taken: pass the turn to the next process. */
void rsi_gates_pass(struct rsi_gates *t, int fd);

/* Leave. fd is still open. */
void rsi_gates_leave(struct rsi_gates *t, int fd);

/* A connection arrived out of turn, or the timer expired: check whether the current turn is overdue. */
void rsi_gates_look(struct rsi_gates *t, int fd);

/* The descriptor that is readable when it is this process's turn and a connection is there. */
int rsi_gates_fd(const struct rsi_gates *t);

/* After fork, in the child, which does not take part yet. */
void rsi_gates_child(struct rsi_gates *t);

#endif
