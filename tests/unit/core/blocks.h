/* SPDX-License-Identifier: MIT */
/* blocks.h - how many control blocks of threads are in use. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "core/core.h"

static unsigned blocks_in_use(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        for (uint32_t slot = 0; slot < rsi_load_acquire(&slab->used); slot++)
            count += rsi_load_relaxed(&rsi_slab_block(slab, slot)->waiter.life) != RSI_LIFE_FREE;
    }
    return count;
}

#endif
