/* SPDX-License-Identifier: MIT */
/* descriptors.h - for hooks on calls in which libc itself closes a descriptor. */
#ifndef RPI_HOOKS_DESCRIPTORS_H
#define RPI_HOOKS_DESCRIPTORS_H

/* libc is about to close fd. fd < 0: no effect. */
void rpi_descriptors_closed(int fd);

#endif
