/* SPDX-License-Identifier: MIT */
/* fd_class.h - what kind of file each descriptor refers to. Nothing here sets errno. */
#ifndef RPI_RECORD_FD_CLASS_H
#define RPI_RECORD_FD_CLASS_H

#include "base/base.h"

enum rpi_fd_class {
    RPI_FD_UNKNOWN,
    RPI_FD_SOCKET,
    RPI_FD_WHOLE,   /* a stream socket that takes a small send whole or not at all */
    RPI_FD_MESSAGE, /* a socket that does so with every send */
    RPI_FD_FILE,    /* no call on it waits for another thread */
    RPI_FD_PIPE,    /* a pipe: a read, or a small write, can be tried without waiting */
    RPI_FD_OTHER,   /* a terminal, an eventfd and the like */
    RPI_FD_OURS     /* ours: the program did not create it and cannot close it */
};

/* Higher descriptors are not remembered: the kernel is asked each time, and they are nobody's clients. */
#define RPI_FD_CLASSES 65536u

enum rpi_fd_class rpi_fd_class_of(int fd);
enum rpi_fd_class rpi_fd_class_of_socket(int domain, int type, int protocol);
void rpi_fd_class_set(int fd, enum rpi_fd_class class);
void rpi_fd_class_child(void);

/* fd is a connection that was accepted. */
void rpi_fd_set_client(int fd);
/* fd was added to an epoll set. */
void rpi_fd_set_member(int set, int fd, bool is_listener);
/* Whether fd is such a connection, or an epoll set whose sockets are all listeners or such connections. */
bool rpi_fd_is_for_clients(int fd);

RSI_INLINE bool rpi_fd_is_socket(int fd)
{
    enum rpi_fd_class class = rpi_fd_class_of(fd);
    return class == RPI_FD_SOCKET || class == RPI_FD_WHOLE || class == RPI_FD_MESSAGE;
}
bool rpi_fd_is_ours(unsigned fd);
bool rpi_fd_is_nonblock(int fd);
bool rpi_fd_is_ready(int fd, short events);

/*
 * Whether a call with RWF_NOWAIT failed because the file or the system does not have it: a named pipe, an old kernel, a
 * filter of system calls, or a number that refers to another file now. If so, fd counts as RPI_FD_OTHER from now on.
 */
bool rpi_fd_lacks_nowait(int fd, int error);

/* Whether a read may go on waiting although some bytes are there, by the option SO_RCVLOWAT. */
bool rpi_fd_wants_more(int fd);
void rpi_fd_set_lowat(void); /* the program is about to set that option */

#endif
