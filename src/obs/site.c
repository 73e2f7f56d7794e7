/* SPDX-License-Identifier: MIT */
/*
 * site.c - call stacks as sites, each stored once.
 *
 * A known stack is found without a lock: a table in the process maps hashes to numbers, and the stacks in the file
 * never change. Before an unknown stack is stored, it is walked again with fresh unwind rows, so that a stale row
 * of an unloaded module can never name a caller. It is then added under a lock.
 *
 * The holder's site of a contended lock is an address only, because an uncontended acquisition does not walk the
 * stack.
 */
#include "obs/site.h"

#include "obs/module.h"
#include "os/os.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 65536u
#define STACKS_MOST (3 * (SLOTS / 4))
#define CHUNK_PAGES 4u

_Static_assert(sizeof(((struct rsi_store_stack *)0)->frames) == RSI_SITE_FRAMES * sizeof(uint64_t),
               "a stack has room for every depth");

struct table {
    uint32_t slots[SLOTS]; /* number + 1; release by add_locked, acquire by find */
    struct rsi_store_stack *stacks[STACKS_MOST];
};

static struct {
    uint32_t lock;       /* rsi_own_lock */
    struct table *table; /* release by table_new, acquire by its readers */
    struct rsi_store_chunk *chunk;
    rsi_stack_end_of *stack_end;
    uint32_t count; /* under lock; read racily */
    bool is_full;   /* no more stacks are stored; under lock; read racily */
} sites;

bool rsi_sites_setup(rsi_stack_end_of *stack_end)
{
    const char *text = secure_getenv("ROUSE_OBS_DEPTH");
    sites.stack_end = stack_end;
    if (!text || !*text)
        return true;
    if (text[0] < '1' || text[0] > '0' + RSI_SITE_FRAMES || text[1])
        return false;
    rsi_store_relaxed(&rsi_site_depth, (uint32_t)(text[0] - '0'));
    return true;
}

static uint64_t hash_of(const uint64_t *frames, unsigned depth)
{
    uint64_t hash = depth;
    for (unsigned i = 0; i < depth; i++) {
        hash = (hash ^ frames[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* The number of a stack. RSI_SITE_STACK: not stored. */
static uint64_t find(const struct table *table, uint64_t hash, const uint64_t *frames,
                     unsigned depth)
{
    for (uint32_t at = (uint32_t)hash;; at++) {
        uint32_t number = rsi_load_acquire(&table->slots[at % SLOTS]); /* pairs with add_locked */
        if (number == 0)
            return RSI_SITE_STACK;
        const struct rsi_store_stack *stack = table->stacks[number - 1];
        if (stack->hash == hash && stack->depth == depth &&
            memcmp(stack->frames, frames, depth * sizeof *frames) == 0)
            return number - 1;
    }
}

static struct rsi_store_stack *room_locked(void)
{
    struct rsi_store_stack *stack = rsi_chunk_next(sites.chunk);
    if (!stack && sites.count < STACKS_MOST) {
        struct rsi_store_chunk *fresh =
            rsi_file_chunk(RSI_STORE_STACKS, sizeof *stack, CHUNK_PAGES, UINT32_MAX);
        sites.chunk = fresh ? fresh : sites.chunk;
        stack = fresh ? rsi_chunk_next(fresh) : NULL;
    }
    return sites.count < STACKS_MOST ? stack : NULL;
}

static uint64_t add_locked(struct table *table, uint64_t hash, const uint64_t *frames,
                           unsigned depth)
{
    struct rsi_store_stack *stack = room_locked();
    if (!stack) {
        rsi_store_relaxed(&sites.is_full, true);
        return RSI_SITE_STACK;
    }
    stack->hash = hash;
    stack->depth = depth;
    memcpy(stack->frames, frames, depth * sizeof *frames);
    rsi_chunk_add(sites.chunk);
    table->stacks[sites.count] = stack;
    uint32_t at = (uint32_t)hash;
    while (table->slots[at % SLOTS])
        at++;
    rsi_store_release(&table->slots[at % SLOTS], sites.count + 1); /* pairs with find */
    return sites.count++;
}

static RSI_COLD struct table *table_new(void)
{
    rsi_own_lock(&sites.lock);
    if (!sites.table)
        rsi_store_release(&sites.table, (struct table *)rsi_map(sizeof *sites.table));
    rsi_own_unlock(&sites.lock);
    return sites.table;
}

/* Store a stack, unless another thread just did. Returns its number. RSI_SITE_STACK: there is no room. */
static uint64_t store(struct rsi_writer *writer, struct table *table, const uint64_t *frames,
                      unsigned depth)
{
    uint64_t hash = hash_of(frames, depth);
    for (unsigned i = 0; i < depth; i++)
        rsi_module_note(writer, frames[i]);
    rsi_own_lock(&sites.lock);
    uint64_t number = find(table, hash, frames, depth);
    if (number == RSI_SITE_STACK)
        number = add_locked(table, hash, frames, depth);
    rsi_own_unlock(&sites.lock);
    return number;
}

/* Store the stack as a fresh walk finds it. */
static RSI_COLD uint64_t add(struct rsi_writer *writer, struct table *table,
                             const struct rsi_here *here, uintptr_t high, uint64_t site)
{
    uint64_t frames[RSI_SITE_FRAMES];
    struct rsi_trail trail;
    unsigned depth = rsi_walk(writer->walker, here, high, site, frames,
                              rsi_load_relaxed(&rsi_site_depth), true, &trail);
    return depth == 0 ? RSI_SITE_STACK : store(writer, table, frames, depth);
}

RSI_NOINLINE uint64_t rsi_site_stack(struct rsi_writer *writer, const void *site)
{
    struct rsi_here here = rsi_here();
    uint64_t address = (uintptr_t)site, frames[RSI_SITE_FRAMES];
    unsigned most = rsi_load_relaxed(&rsi_site_depth);
    struct table *table = rsi_load_acquire(&sites.table); /* pairs with table_new */
    uintptr_t high = sites.stack_end(writer, here.sp);
    if ((rsi_unlikely(!table) && !(table = table_new())) ||
        (rsi_unlikely(!writer->walker) && !(writer->walker = rsi_walker_new())))
        return address;
    uint64_t number = rsi_walk_number(writer->walker, &here, high, address);
    if (rsi_likely(number != RSI_WALK_UNKNOWN))
        return RSI_SITE_STACK | number;
    struct rsi_trail trail;
    unsigned depth = rsi_walk(writer->walker, &here, high, address, frames, most, false, &trail);
    if (rsi_unlikely(depth == 0)) /* Not on a known stack, or inlined by link-time optimization. */
        return address;
    number = find(table, hash_of(frames, depth), frames, depth);
    if (rsi_likely(number != RSI_SITE_STACK)) {
        rsi_walk_keep(writer->walker, &here, address, &trail, number);
    } else {
        if (!rsi_load_relaxed(&sites.is_full))
            number = add(writer, table, &here, high, address);
        if (number == RSI_SITE_STACK)
            rsi_count(writer->shared->lost_stacks, 1);
    }
    return number == RSI_SITE_STACK ? address : RSI_SITE_STACK | number;
}

uint64_t rsi_site_put(struct rsi_writer *writer, const uint64_t *frames, unsigned depth)
{
    struct table *table = rsi_load_acquire(&sites.table); /* pairs with table_new */
    unsigned most = rsi_load_relaxed(&rsi_site_depth);
    depth = depth < most ? depth : most;
    if (depth == 0)
        return 0;
    if (most == 1 || (rsi_unlikely(!table) && !(table = table_new())))
        return frames[0];
    uint64_t number = find(table, hash_of(frames, depth), frames, depth);
    if (rsi_unlikely(number == RSI_SITE_STACK) && !rsi_load_relaxed(&sites.is_full))
        number = store(writer, table, frames, depth);
    if (number != RSI_SITE_STACK)
        return RSI_SITE_STACK | number;
    rsi_count(writer->shared->lost_stacks, 1);
    return frames[0];
}

/* NULL: there is no such stack. */
static const struct rsi_store_stack *stack_of(uint64_t site)
{
    const struct table *table = rsi_load_acquire(&sites.table); /* pairs with table_new */
    uint64_t number = site & ~RSI_SITE_STACK;
    return table && number < STACKS_MOST ? table->stacks[number] : NULL;
}

unsigned rsi_site_frames(uint64_t site, uint64_t frames[RSI_SITE_FRAMES])
{
    if (site & RSI_SITE_STACK) {
        const struct rsi_store_stack *stack = stack_of(site);
        if (!stack)
            return 0;
        memcpy(frames, stack->frames, stack->depth * sizeof *frames);
        return stack->depth;
    }
    frames[0] = site;
    return site != 0;
}

const void *rsi_site_address(uint64_t site)
{
    uint64_t frames[RSI_SITE_FRAMES];
    return (const void *)(uintptr_t)(rsi_site_frames(site, frames) ? frames[0] : 0);
}

void rsi_sites_child_locks(void)
{
    rsi_store_relaxed(&sites.lock, 0u);
}

void rsi_sites_child(void)
{
    rsi_sites_child_locks();
    if (sites.table)
        rsi_unmap(sites.table, sizeof *sites.table);
    sites.table = NULL;
    sites.chunk = NULL;
    sites.count = 0;
    sites.is_full = false;
}
