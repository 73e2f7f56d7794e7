/* SPDX-License-Identifier: MIT */
/* readable.h - whether memory that the program passes can be read. */
#ifndef RPI_PROCESS_READABLE_H
#define RPI_PROCESS_READABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether all of bytes, at least 8, can be read. Costs one system call per page, or none on the caller's stack page. */
bool rpi_is_readable(const void *from, size_t bytes);

#endif
