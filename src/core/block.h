/* SPDX-License-Identifier: MIT */
/*
 * block.h - memory for control blocks. Blocks of user threads and of kernel and foreign ones are kept
 * apart, since they are laid out differently; both are reused and never unmapped, so that a stale pointer
 * stays readable.
 *
 * Blocks lie in groups of four pages: three of blocks, one of their cold parts (struct rsi_cold), which is not
 * touched for most threads. With 192 bytes a parked thread has 4,288 with its page of stack; when name and
 * record were in the block there were 64 more.
 */
#ifndef RSI_CORE_BLOCK_H
#define RSI_CORE_BLOCK_H

#include "ctx/ctx.h"

struct rsi_worker;
struct rouse_thread;

#if defined(RSI_ASAN) || defined(RSI_TSAN)
#define RSI_BLOCK_BYTES 256
#else
#define RSI_BLOCK_BYTES 192
#endif
#define RSI_COLD_BYTES 64
#define RSI_GROUP_BYTES 16384
#define RSI_GROUP_BLOCKS (3 * RSI_PAGE / RSI_BLOCK_BYTES)

struct rsi_slab {
    char *base; /* aligned to a group */
    uint32_t slots;
    uint32_t used; /* slots handed out at least once; those above hold no block yet */
};

/* A block of the kind, zeroed when fresh and as it was left when reused; NULL: no memory. w may be NULL. */
struct rouse_thread *rsi_block_alloc(struct rsi_worker *w, bool is_user);
void rsi_block_free(struct rsi_worker *w, struct rouse_thread *t);

/* All blocks ever handed out, for readers who must cope with their being reused meanwhile. */
unsigned rsi_slab_count(void);
const struct rsi_slab *rsi_slab_at(unsigned index);
struct rouse_thread *rsi_slab_block(const struct rsi_slab *slab, uint32_t slot);

/* w ends: what it kept for itself goes back to the pool. */
void rsi_blocks_give(struct rsi_worker *w);

/* Over a fork. In the child: all blocks but survivor are marked free, their waits are over, and none is
 * handed out again. */
void rsi_block_fork_prepare(void);
void rsi_block_fork_parent(void);
void rsi_block_child(struct rouse_thread *survivor);

#endif
