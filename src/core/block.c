/* SPDX-License-Identifier: MIT */
/*
 * block.c - slabs of control blocks.
 *
 * Free blocks are linked through queue_link, the last freed first, because it is in the cache. A worker keeps free
 * blocks of user threads for itself: a list that it takes from and adds to, and a spare list of exactly BATCH. Full
 * lists go to the pool and come back as a whole, linked through the arg of their first blocks. So blocks that were used
 * before cost one turn with the pool's lock per BATCH threads, however far creation runs ahead of the joins, and nothing
 * is walked under it. New blocks cost one per REFILL.
 * Two lists, because with one a worker at its edge would exchange a list at every step: these are the magazines of
 * Bonwick and Adams, USENIX 2001.
 *
 * A kernel thread that runs already must be able to wait even where no memory is left, and needs a block for that. So
 * there is a reserve for such threads, in memory that the system gave when it loaded the program.
 */
#include "core/core.h"

#define SLAB_BYTES ((size_t)256 * 1024)
#define SLABS_MAX 65536
#define REFILL 32 /* single blocks that a worker takes where the pool has no full list */
#define BATCH 64  /* blocks of a full list */
#define RESERVE_GROUPS 4

struct kind {
    struct rouse_thread *batches; /* full lists, of user threads' blocks only */
    struct rouse_thread *free;
    struct rsi_slab *fresh; /* the slab whose unused slots come next */
};

static struct {
    uint32_t guard;
    struct kind user, kernel;
    struct rsi_slab slabs[SLABS_MAX];
    uint32_t slab_count; /* the allocator releases it, rsi_slab_count acquires it */
} pool;

static struct {
    _Alignas(RSI_GROUP_BYTES) char groups[RESERVE_GROUPS * RSI_GROUP_BYTES];
    bool is_used;
} reserve;

static struct rsi_slab *slab_add(char *base, size_t bytes)
{
    struct rsi_slab *slab = &pool.slabs[pool.slab_count];
    slab->base = base;
    slab->slots = (uint32_t)(bytes / RSI_GROUP_BYTES * RSI_GROUP_BLOCKS);
    rsi_store_release(&pool.slab_count, pool.slab_count + 1); /* pairs with rsi_slab_count */
    return slab;
}

static struct rsi_slab *slab_new(const struct kind *kind)
{
    if (pool.slab_count == SLABS_MAX)
        return NULL;
    char *memory = rsi_map(SLAB_BYTES + RSI_GROUP_BYTES - RSI_PAGE);
    if (memory)
        return slab_add((char *)rsi_round_up((uintptr_t)memory, RSI_GROUP_BYTES), SLAB_BYTES);
    if (kind != &pool.kernel || reserve.is_used)
        return NULL;
    reserve.is_used = true;
    return slab_add(reserve.groups, sizeof reserve.groups);
}

struct rouse_thread *rsi_slab_block(const struct rsi_slab *slab, uint32_t slot)
{
    size_t group = slot / RSI_GROUP_BLOCKS;
    return (struct rouse_thread *)(slab->base + group * RSI_GROUP_BYTES +
                                   slot % RSI_GROUP_BLOCKS * RSI_BLOCK_BYTES);
}

static struct rouse_thread *alloc_locked(struct kind *kind)
{
    struct rouse_thread *t = kind->free;
    if (!t && kind->batches) {
        t = kind->batches;
        kind->batches = t->arg;
    }
    if (t) {
        kind->free = t->queue_link;
        return t;
    }
    struct rsi_slab *slab = kind->fresh;
    if (!slab || slab->used == slab->slots)
        slab = kind->fresh = slab_new(kind);
    if (!slab)
        return NULL;
    t = rsi_slab_block(slab, slab->used);
    /* Pairs with the acquires of all that list blocks. */
    rsi_store_release(&slab->used, slab->used + 1);
    return t;
}

/* w has no free block: take a full list, or a few blocks. */
static RSI_NOINLINE void refill(struct rsi_worker *w)
{
    struct rouse_thread *t = w->block_spare;
    w->block_spare = NULL;
    if (!t) {
        rsi_guard_lock(&pool.guard);
        t = pool.user.batches;
        if (t)
            pool.user.batches = t->arg;
        while (!t && w->block_count < REFILL) {
            struct rouse_thread *one = alloc_locked(&pool.user);
            if (!one)
                break;
            one->queue_link = w->block_cache;
            w->block_cache = one;
            w->block_count++;
        }
        rsi_guard_unlock(&pool.guard);
    }
    if (t) {
        w->block_cache = t;
        w->block_count = BATCH;
    }
}

/* w's list is full: keep it as the spare one. The spare one before goes to the pool. */
static RSI_NOINLINE void set_aside(struct rsi_worker *w)
{
    struct rouse_thread *before = w->block_spare;
    w->block_spare = w->block_cache;
    w->block_cache = NULL;
    w->block_count = 0;
    if (!before)
        return;
    rsi_guard_lock(&pool.guard);
    before->arg = pool.user.batches;
    pool.user.batches = before;
    rsi_guard_unlock(&pool.guard);
}

/* The next creation writes to all lines of this block. t may be NULL. */
static void fetch(const struct rouse_thread *t)
{
    for (size_t at = 0; at < sizeof *t; at += RSI_CACHE_LINE)
        /* Arithmetic on integers: t may be NULL. NOLINTNEXTLINE(performance-no-int-to-ptr) */
        __builtin_prefetch((const void *)((uintptr_t)t + at), 1);
}

struct rouse_thread *rsi_block_alloc(struct rsi_worker *w, bool is_user)
{
    struct rouse_thread *t;
    if (!w || !is_user) {
        rsi_guard_lock(&pool.guard);
        t = alloc_locked(is_user ? &pool.user : &pool.kernel);
        rsi_guard_unlock(&pool.guard);
        return t;
    }
    if (!w->block_cache)
        refill(w);
    t = w->block_cache;
    if (t) {
        w->block_cache = t->queue_link;
        w->block_count--;
        fetch(w->block_cache);
    }
    return t;
}

void rsi_cold_clear_slow(struct rouse_thread *t)
{
    struct rsi_cold *cold = rsi_cold_at(t);
    for (size_t i = 0; i < ROUSE_NAME_BYTES; i++) /* a thread that lists threads may read it */
        rsi_store_relaxed(&cold->name[i], 0);
    t->waiter.has_cold = false;
}

void rsi_block_free(struct rsi_worker *w, struct rouse_thread *t)
{
    bool is_user = t->waiter.origin == RSI_ORIGIN_USER;
    rsi_store_relaxed(&t->waiter.life, RSI_LIFE_FREE);
    if (w && is_user) {
        if (w->block_count == BATCH)
            set_aside(w);
        t->queue_link = w->block_cache;
        w->block_cache = t;
        w->block_count++;
        return;
    }
    struct kind *kind = is_user ? &pool.user : &pool.kernel;
    rsi_guard_lock(&pool.guard);
    t->queue_link = kind->free;
    kind->free = t;
    rsi_guard_unlock(&pool.guard);
}

void rsi_blocks_give(struct rsi_worker *w)
{
    if (w->block_count == BATCH)
        set_aside(w);
    rsi_guard_lock(&pool.guard);
    if (w->block_spare) {
        w->block_spare->arg = pool.user.batches;
        pool.user.batches = w->block_spare;
        w->block_spare = NULL;
    }
    while (w->block_cache) {
        struct rouse_thread *t = w->block_cache;
        w->block_cache = t->queue_link;
        t->queue_link = pool.user.free;
        pool.user.free = t;
    }
    w->block_count = 0;
    rsi_guard_unlock(&pool.guard);
}

unsigned rsi_slab_count(void)
{
    return rsi_load_acquire(&pool.slab_count);
}

const struct rsi_slab *rsi_slab_at(unsigned index)
{
    return &pool.slabs[index];
}

void rsi_block_fork_prepare(void)
{
    rsi_guard_lock(&pool.guard);
}

void rsi_block_fork_parent(void)
{
    rsi_guard_unlock(&pool.guard);
}

void rsi_block_child(struct rouse_thread *survivor)
{
    rsi_guard_unlock(&pool.guard);
    pool.user = pool.kernel = (struct kind){ NULL, NULL, NULL };
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        for (uint32_t slot = 0; slot < rsi_load_acquire(&slab->used); slot++) {
            struct rouse_thread *t = rsi_slab_block(slab, slot);
            if (t == survivor)
                continue;
            rsi_store_relaxed(&t->waiter.life, RSI_LIFE_FREE);
            rsi_store_relaxed(&t->waiter.claim, t->waiter.claim & ~UINT64_C(3));
        }
    }
}
