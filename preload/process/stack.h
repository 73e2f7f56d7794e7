/* SPDX-License-Identifier: MIT */
/* stack.h - how far a thread's stack can be read, for rsi_sites_setup. */
#ifndef RPI_PROCESS_STACK_H
#define RPI_PROCESS_STACK_H

#include "obs/site.h"

rsi_stack_end_of rpi_stack_end;

#endif
