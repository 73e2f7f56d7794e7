/* SPDX-License-Identifier: MIT */
/* descriptor.c - keeps all tables consistent when a descriptor number changes: its class, listener and epoll sets. */
#include "accept/descriptor.h"

#include "accept/epoll_member.h"
#include "accept/listener.h"

void rpi_descriptor_set_class(int fd, enum rpi_fd_class class)
{
    rpi_fd_class_set(fd, class);
    if (class == RPI_FD_UNKNOWN)
        rpi_listener_ask_anew(fd);
    else
        rpi_listener_is_none(fd);
}

void rpi_descriptor_made(int fd, enum rpi_fd_class class)
{
    if (fd < 0 || rpi_self_is_vforked())
        return;
    rpi_descriptor_set_class(fd, class);
    rpi_epoll_member_forget(fd);
}
