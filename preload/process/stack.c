/* SPDX-License-Identifier: MIT */
/*
 * stack.c - finds how far a thread's stack can be read.
 *
 * The first thread's stack ends where the loader began, and a large area below that end has no other mappings. The
 * stack of any other thread ends at libc's block for the thread, which lies on it. The kernel is asked once for its low
 * end. A stack that the program allocated itself, for a coroutine or for signals, may be unmapped at any time and is
 * not read.
 *
 * Rejected: pthread_getattr_np, which allocates.
 */
#include "process/stack.h"

#include "obs/mapping.h"

#include <pthread.h>

/* The kernel keeps mappings this far below the end of the first stack, whatever its limit is. */
#define FIRST_BYTES ((uintptr_t)128 << 20)

extern void *__libc_stack_end;

uintptr_t rpi_stack_end(struct rsi_writer *writer, uint64_t sp)
{
    uintptr_t first = (uintptr_t)__libc_stack_end, own = (uintptr_t)pthread_self();
    if (sp < first && first - sp <= FIRST_BYTES)
        return first;
    if (writer->stack_high == 0) {
        struct rsi_span span;
        rsi_mapping_find(own, &span);
        writer->stack_low = span.low < own ? span.low : own;
        writer->stack_high = own;
    }
    return sp >= writer->stack_low && sp < own ? own : 0;
}
