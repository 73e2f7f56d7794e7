/* SPDX-License-Identifier: MIT */
/* descriptor.h - what is known of a descriptor number, when the number is released or refers to a new file. */
#ifndef RPI_ACCEPT_DESCRIPTOR_H
#define RPI_ACCEPT_DESCRIPTOR_H

#include "record/fd_class.h"

/* The class of fd is known, or (UNKNOWN) no longer known; epoll sets keep it. */
void rpi_descriptor_set_class(int fd, enum rpi_fd_class class);

/* fd was released (UNKNOWN), or refers to a new file of this class. fd < 0: no effect. */
void rpi_descriptor_made(int fd, enum rpi_fd_class class);

#endif
