/* SPDX-License-Identifier: MIT */
/*
 * stack.c - slabs of guarded stacks.
 *
 * Guards: MADV_GUARD_INSTALL (Linux 6.13) marks a page in the page table and costs no mapping; mprotect
 * splits the mapping and meets the limit of 65,530 mappings near 32,000 stacks. Some emulators answer 0
 * to madvise values they do not know, so it is probed by its effect.
 */
#include "ctx/stack.h"

#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <valgrind/valgrind.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

#define SLAB_BYTES ((size_t)16 * 1024 * 1024)
#define SLABS_MAX 65536
#define COLOURS 32
#define CLASSES 17 /* 16 KiB .. 1 GiB */
#define BLOCKS_ONLY CLASSES

/* Free slots of one class, most recently used first, linked through the word at the block's end. */
struct class
{
    void *free;
    struct rsi_slab *fresh; /* the slab whose unused slots come next */
};

static struct {
    uint32_t guard;
    struct class classes[CLASSES + 1];
    struct rsi_slab *slabs[SLABS_MAX];
    uint32_t slab_count; /* release by the allocator, acquire by rsi_slab_count */
    int guards;          /* 0 not probed, 1 light, 2 mprotect */
} pool;

static unsigned class_of(size_t stack_bytes)
{
    if (stack_bytes == 0)
        return BLOCKS_ONLY;
    unsigned class = 0;
    for (size_t bytes = RSI_STACK_BYTES_MIN; bytes < stack_bytes; bytes *= 2)
        class ++;
    return class;
}

size_t rsi_stack_class_bytes(size_t stack_bytes)
{
    return stack_bytes ? RSI_STACK_BYTES_MIN << class_of(stack_bytes) : 0;
}

static void **link_of(void *block)
{
    return (void **)((char *)block + RSI_BLOCK_BYTES - sizeof(void *));
}

static int probe_guards(void)
{
    int result = 2, fds[2];
    void *page = rsi_map(RSI_PAGE);
    if (!page)
        return result;
    if (pipe2(fds, O_CLOEXEC) == 0) {
        *(volatile char *)page = 1;
        /* A guarded page cannot be read, by the kernel either. */
        if (madvise(page, RSI_PAGE, MADV_GUARD_INSTALL) == 0 &&
            rsi_syscall3(SYS_write, fds[1], page, 1) == -EFAULT)
            result = 1;
        close(fds[0]);
        close(fds[1]);
    }
    rsi_unmap(page, RSI_PAGE);
    return result;
}

bool rsi_stack_guards_are_light(void)
{
    int guards = rsi_load_relaxed(&pool.guards);
    if (guards == 0)
        rsi_store_relaxed(&pool.guards, guards = probe_guards());
    return guards == 1;
}

static bool guard_page(void *page)
{
    if (rsi_stack_guards_are_light() && madvise(page, RSI_PAGE, MADV_GUARD_INSTALL) == 0)
        return true;
    return mprotect(page, RSI_PAGE, PROT_NONE) == 0;
}

static struct rsi_slab *slab_new(unsigned class)
{
    if (pool.slab_count == SLABS_MAX)
        return NULL;
    size_t stack_bytes = class == BLOCKS_ONLY ? 0 : RSI_STACK_BYTES_MIN << class;
    size_t stride = stack_bytes ? stack_bytes + RSI_PAGE : RSI_BLOCK_BYTES;
    size_t bytes = stack_bytes ? SLAB_BYTES : SLAB_BYTES / 64;
    size_t slots = bytes / stride ? bytes / stride : 1;
    size_t header = rsi_round_up(sizeof(struct rsi_slab), RSI_CACHE_LINE);
    char *memory = rsi_map(RSI_PAGE + slots * stride);
    if (!memory)
        return NULL;
    struct rsi_slab *slab = (struct rsi_slab *)memory;
    *slab = (struct rsi_slab){ .base = memory + (stack_bytes ? RSI_PAGE : header),
                               .stride = stride,
                               .stack_bytes = stack_bytes,
                               .slots = (uint32_t)slots };
    rsi_store_relaxed(&pool.slabs[pool.slab_count], slab);
    rsi_store_release(&pool.slab_count, pool.slab_count + 1); /* pairs with rsi_slab_count */
    return slab;
}

void *rsi_slab_block(const struct rsi_slab *slab, uint32_t slot)
{
    char *low = slab->base + slot * slab->stride;
    if (slab->stack_bytes == 0)
        return low;
    /* 11 is odd, so that 32 neighbours get 32 colours, far from each other. */
    size_t colour = (size_t)(slot * 11 % COLOURS) * RSI_CACHE_LINE;
    return low + slab->stride - RSI_BLOCK_BYTES - colour;
}

/* A slot never used before, or NULL. */
static void *take_fresh(struct class *class, unsigned index)
{
    struct rsi_slab *slab = class->fresh;
    if (!slab || slab->used == slab->slots)
        slab = class->fresh = slab_new(index);
    if (!slab)
        return NULL;
    if (slab->stack_bytes) {
        char *low = slab->base + slab->used * slab->stride;
        if (!guard_page(low))
            return NULL;
        (void)VALGRIND_STACK_REGISTER(low + RSI_PAGE, low + slab->stride);
    }
    void *block = rsi_slab_block(slab, slab->used);
    rsi_store_release(&slab->used, slab->used + 1); /* pairs with readers of all blocks */
    return block;
}

void *rsi_stack_alloc(size_t stack_bytes, struct rsi_stack *stack, bool *is_fresh)
{
    unsigned index = class_of(stack_bytes);
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    void *block = class->free;
    *is_fresh = !block;
    if (block)
        class->free = *link_of(block);
    else
        block = take_fresh(class, index);
    rsi_guard_unlock(&pool.guard);
    if (!block || !stack_bytes)
        return block;
    /* The colour is below a page, so that the slot's end is the next page boundary above the block. */
    char *end = (char *)rsi_round_up((uintptr_t)block + RSI_BLOCK_BYTES, RSI_PAGE);
    stack->high = block;
    stack->low = end - (RSI_STACK_BYTES_MIN << index);
    stack->guard = stack->low - RSI_PAGE;
    return block;
}

void rsi_stack_free(void *block, size_t stack_bytes)
{
    struct class *class = &pool.classes[class_of(stack_bytes)];
    rsi_guard_lock(&pool.guard);
    *link_of(block) = class->free;
    class->free = block;
    rsi_guard_unlock(&pool.guard);
}

unsigned rsi_slab_count(void)
{
    return rsi_load_acquire(&pool.slab_count);
}

const struct rsi_slab *rsi_slab_at(unsigned index)
{
    return rsi_load_relaxed(&pool.slabs[index]);
}

void rsi_stack_child(void *survivor, void (*mark)(void *block))
{
    pool.guard = 0;
    for (unsigned i = 0; i <= CLASSES; i++)
        pool.classes[i].free = NULL;
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        for (uint32_t slot = 0; slot < rsi_load_acquire(&slab->used); slot++)
            if (rsi_slab_block(slab, slot) != survivor)
                mark(rsi_slab_block(slab, slot));
    }
}
