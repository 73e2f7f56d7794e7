/* SPDX-License-Identifier: MIT */
/*
 * stack.c - how far a thread's stack can be read.
 *
 * The first thread's ends where the loader began, and nothing is mapped for long below it. That of any other ends at
 * what libc keeps of the thread, which lies on it; where it begins is asked of the kernel, once. A stack that the
 * program has made for itself, of a coroutine or for signals, may go at any time and is not read.
 * Rejected: pthread_getattr_np, which allocates.
 */
#include "preload.h"

#include "obs/mapping.h"

/* Mappings stay so far below the end of the first stack, whatever its limit is. */
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
