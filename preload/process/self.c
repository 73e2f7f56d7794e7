/* SPDX-License-Identifier: MIT */
/* self.c - the two thread-local variables of self.h. */
#include "process/self.h"

__thread struct rpi_thread *rpi_self;
__thread uint8_t rpi_self_is_closed;
