/* SPDX-License-Identifier: MIT */
/*
 * stack.h - memory for stacks.
 *
 * A slab is one mapping of equal slots, each a guard page and a stack above it:
 *
 *     | guard | stack, growing down ............ | colour | guard | stack ...
 *
 * Stacks begin a colour below their slot's end, so that they do not alias in the caches. Slots are reused,
 * warm ones first, and never unmapped. The memory of free ones is given back when asked for.
 *
 * A thread gets its stack when it first runs, and gives it back when it ends: of many short threads few
 * have one at the same time. But all that can fail, address space and guards, is done when the thread is
 * created: it reserves a stack, any of its class; who holds a reservation can take one. Invariant, for
 * each class: slots with a guard = reserved + free for reservation; stacks taken <= reserved.
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

/* The smallest class that holds stack_bytes, and what it holds; the colour is taken off that. */
unsigned rsi_stack_class(size_t stack_bytes);
size_t rsi_stack_class_bytes(unsigned class);

/* Reserve count stacks, all or none. False: no memory, or too many mappings. */
bool rsi_stack_reserve(unsigned class, unsigned count);
void rsi_stack_unreserve(unsigned class, unsigned count);

/* Take one of the reserved stacks; its contents are undefined. Give it back; nobody stands on it. */
struct rsi_stack rsi_stack_take(unsigned class);
void rsi_stack_give(unsigned class, struct rsi_stack stack);

/* Bytes of [low, end), page-aligned, that are in memory now. */
size_t rsi_stack_resident(const char *low, const char *end);

/* Give the memory of page-aligned ranges back: it is zeros when it is touched again. Nobody uses it now. */
#define RSI_STACK_DROP_MAX 8
void rsi_stack_drop(const struct iovec *ranges, unsigned count);

/* Give back the memory of the stacks that are free now. Returns how many bytes. */
size_t rsi_stack_trim(void);

/* The stack that ends at high. */
struct rsi_stack rsi_stack_of(unsigned class, char *high);

/* How guards are made here: true by MADV_GUARD_INSTALL, false by mprotect (a mapping each). */
bool rsi_stack_guards_are_light(void);

/*
 * In a child after fork: the lock is free again. Its lists may have been caught half changed, and the
 * stacks of threads that are no more may hold data in use: all are forgotten.
 */
void rsi_stack_child(void);

#endif
