/* SPDX-License-Identifier: MIT */
/*
 * stack.h - memory for stacks.
 *
 * A slab is one mapping of equal slots, each a guard page and a stack above it:
 *
 *     | guard | stack, growing down ............ | colour | guard | stack ...
 *
 * A stack begins one colour below its slot's end, so that stacks do not alias in the caches. Slots are
 * reused, warm ones first, and never unmapped. Their memory is given back on request while they are free.
 *
 * A thread gets its stack when it first runs and gives it back when it ends: of many short threads, few have
 * a stack at the same time. But everything that can fail, address space and guards, is done when the thread
 * is created: it reserves a stack, any of its class. A thread with a reservation can always take a stack.
 * Invariants for each class: slots with a guard = reserved + free for reservation; stacks taken <= reserved.
 */
#ifndef RSI_CTX_STACK_H
#define RSI_CTX_STACK_H

#include "base/base.h"

#include <sys/uio.h>

#define RSI_STACK_BYTES_DEFAULT ((size_t)64 * 1024)
#define RSI_STACK_BYTES_MIN ((size_t)16 * 1024)
#define RSI_STACK_BYTES_MAX ((size_t)1024 * 1024 * 1024)
#define RSI_STACK_CLASSES 17
#define RSI_STACK_CLASS_DEFAULT 2

/* [low, high), high 64-byte aligned; the page below low is the guard. */
struct rsi_stack {
    char *low;
    char *high;
};

/* The smallest class with at least stack_bytes, and its size. The colour is taken off that size. */
unsigned rsi_stack_class(size_t stack_bytes);
size_t rsi_stack_class_bytes(unsigned class);

/* Reserve count stacks, all or none. False: no memory, or too many mappings. */
bool rsi_stack_reserve(unsigned class, unsigned count);
void rsi_stack_unreserve(unsigned class, unsigned count);

/* Take one of the reserved stacks; its contents are undefined. To give it back, no thread may be on it. */
struct rsi_stack rsi_stack_take(unsigned class);
void rsi_stack_give(unsigned class, struct rsi_stack stack);

/* Bytes of [low, end), page-aligned, that are in memory now. */
size_t rsi_stack_resident(const char *low, const char *end);

/*
 * Give the memory of page-aligned ranges back. They read as zeros when touched again. No thread may use them
 * now.
 */
#define RSI_STACK_DROP_MAX 8
void rsi_stack_drop(const struct iovec *ranges, unsigned count);

/* Give back the memory of the stacks that are free now. Returns how many bytes. */
size_t rsi_stack_trim(void);

/* The stack that ends at high. */
struct rsi_stack rsi_stack_of(unsigned class, char *high);

/* How guards are made on this system: true by MADV_GUARD_INSTALL, false by mprotect (one mapping each). */
bool rsi_stack_guards_are_light(void);

/*
 * In a child after fork: the lock is free again. All stacks are forgotten: fork may have copied the lists in
 * the middle of a change, and the stacks of threads that no longer exist may hold data in use.
 */
void rsi_stack_child(void);

#endif
