/* SPDX-License-Identifier: MIT */
/* epoll_member.h - the listeners in the program's epoll sets. Nothing here sets errno, except control. */
#ifndef RPI_ACCEPT_EPOLL_MEMBER_H
#define RPI_ACCEPT_EPOLL_MEMBER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/* A listener in the set, with the program's data; -1: none. May be out of date. */
int rpi_epoll_member_of(int set, uint64_t *data);

/* epoll_ctl on a listener: records what it changes, as if the listener had never been out of its set. */
int rpi_epoll_member_control(int set, int what, int fd, struct epoll_event *event);

/* fd, a set or a listener, has been closed. */
void rpi_epoll_member_forget(int fd);

/*
 * Before a call that may make fd refer to another file: until release no thread changes the membership of fd, set or
 * listener, and all signals are blocked. False: fd is neither, and release must not be called. is_gone: the call
 * succeeded.
 */
bool rpi_epoll_member_hold(int fd, sigset_t *before);
void rpi_epoll_member_release(int fd, bool is_gone, const sigset_t *before);

/*
 * Thread tid waits for the set in turn, from begin to end. In between, move takes the listener out of the set or puts
 * it back. end puts it back. is_edge: the listener reports edges (EPOLLET). begin returns false if the set cannot be
 * waited for in turn: it has another listener, belongs to another process, or another thread waits for it. set < 0:
 * move and end have no effect.
 */
bool rpi_epoll_member_begin(int32_t tid, int set, int fd, bool *is_edge);
void rpi_epoll_member_move(int set, int fd, bool is_out);
void rpi_epoll_member_end(int set, int fd);

void rpi_epoll_member_child(void);
void rpi_epoll_member_restore(void); /* put all listeners back into their sets, for good */

#endif
