/* SPDX-License-Identifier: MIT */
/*
 * stack.h - memory for control blocks and their stacks.
 *
 * A slab is one mapping of equal slots; a slot is
 *
 *     low                                                       high = low + stride
 *     | guard page | stack, growing down ............ | block | colour |
 *
 * The block is the thread's control block. It is at the top so that a parked thread that has not gone
 * deep touches one page in all. Slots are an odd number of pages apart and blocks are shifted by a
 * colour within their page, so that stacks do not alias in the caches. Slots are reused, warm ones
 * first, and never unmapped: a stale pointer to a block stays readable.
 */
#ifndef RSI_CTX_STACK_H
#define RSI_CTX_STACK_H

#include "base/base.h"

#define RSI_STACK_BYTES_DEFAULT ((size_t)64 * 1024)
#define RSI_STACK_BYTES_MIN ((size_t)16 * 1024)
#define RSI_STACK_BYTES_MAX ((size_t)1024 * 1024 * 1024)

/* Bytes at the top of each slot for the block. */
#define RSI_BLOCK_BYTES 384

struct rsi_slab {
    char *base;
    size_t stride;      /* bytes from slot to slot */
    size_t stack_bytes; /* without the guard; 0: blocks only, for kernel threads */
    uint32_t slots;
    uint32_t used; /* slots handed out at least once; those above hold no block yet */
};

/* The bounds of a block's stack. */
struct rsi_stack {
    char *guard; /* one page, not accessible */
    char *low;   /* first usable byte */
    char *high;  /* the block; 16-byte aligned */
};

/*
 * A block with a stack of at least stack_bytes (0: no stack), zeroed when fresh and as it was left when
 * reused (*is_fresh tells). NULL: no memory or too many mappings. Any kernel thread.
 */
void *rsi_stack_alloc(size_t stack_bytes, struct rsi_stack *stack, bool *is_fresh);

/* Give a block back; nobody stands on its stack. Its last word may be overwritten, nothing else is. */
void rsi_stack_free(void *block, size_t stack_bytes);

/* What a request is rounded up to. */
size_t rsi_stack_class_bytes(size_t stack_bytes);

/* Walk all blocks ever handed out, for readers who must cope with their being reused meanwhile. */
unsigned rsi_slab_count(void);
const struct rsi_slab *rsi_slab_at(unsigned index);
void *rsi_slab_block(const struct rsi_slab *slab, uint32_t slot);

/* How guards are made here: true by MADV_GUARD_INSTALL, false by mprotect (a mapping each). */
bool rsi_stack_guards_are_light(void);

/*
 * In a child after fork: the allocator's lock is free again. Its free lists may have been caught half
 * changed and are forgotten; all blocks but survivor are marked by mark, so that nobody takes them for
 * threads.
 */
void rsi_stack_child(void *survivor, void (*mark)(void *block));

#endif
