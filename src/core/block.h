/* SPDX-License-Identifier: MIT */
/*
 * block.h - memory for control blocks.
 *
 * Blocks of user threads and of kernel and foreign threads are kept apart, because their layouts differ. Both
 * kinds are reused and never unmapped, so that a stale pointer stays readable.
 *
 * Blocks are allocated in groups of four pages: three pages of blocks, and one of their cold parts (struct
 * rsi_cold), which most threads do not touch. With 192 bytes per block, a parked thread uses 4,288 bytes
 * including one page of stack. With name and record in the block it used 64 more.
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
    uint32_t used; /* slots used at least once; those above hold no block yet */
};

/*
 * Allocate a block of the kind. It is zeroed when fresh, and keeps its old contents when reused. NULL: no
 * memory. w may be NULL.
 */
struct rouse_thread *rsi_block_alloc(struct rsi_worker *w, bool is_user);
void rsi_block_free(struct rsi_worker *w, struct rouse_thread *t);

/* All blocks ever allocated. Readers must expect that a block is reused at any time. */
unsigned rsi_slab_count(void);
const struct rsi_slab *rsi_slab_at(unsigned index);
struct rouse_thread *rsi_slab_block(const struct rsi_slab *slab, uint32_t slot);

/* w ends: return its free blocks to the pool. */
void rsi_blocks_give(struct rsi_worker *w);

/*
 * Over a fork. In the child, all blocks except survivor are marked free and their waits are over; none of
 * them is reused.
 */
void rsi_block_fork_prepare(void);
void rsi_block_fork_parent(void);
void rsi_block_child(struct rouse_thread *survivor);

#endif
