/* SPDX-License-Identifier: MIT */
/* self.h - the calling thread's record, and whether the thread may have one. vfork replaces both in the child. */
#ifndef RPI_PROCESS_SELF_H
#define RPI_PROCESS_SELF_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

/* record/thread.h */
struct rpi_thread;

/* The calling thread's record. NULL before its first recorded call and after it has exited. */
extern __thread struct rpi_thread *rpi_self;

/*
 * Not 0: the thread has no record and does not get one, because it is being created or has exited, or because the
 * caller is the child of a vfork, which runs in its parent's memory.
 */
#define RPI_SELF_VFORKED 2 /* in assembly too: vfork.c */
extern __thread uint8_t rpi_self_is_closed;

/* Whether the caller is the child of a vfork. It has descriptors of its own, while our tables describe its parent's. */
RSI_INLINE bool rpi_self_is_vforked(void)
{
    return rsi_unlikely(rpi_self_is_closed == RPI_SELF_VFORKED);
}

#endif
