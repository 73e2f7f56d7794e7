/* SPDX-License-Identifier: MIT */
/* kernel_join.h - shows `rouse run --kernel` how to read the slots of this process's threads. */
#ifndef RPI_RECORD_KERNEL_JOIN_H
#define RPI_RECORD_KERNEL_JOIN_H

void rpi_kernel_join_begin(void);

#endif
