/* SPDX-License-Identifier: MIT */
/*
 * stack.c - slabs of guarded stacks.
 *
 * Guards: MADV_GUARD_INSTALL (Linux 6.13) marks a page in the page table and costs no mapping; mprotect
 * splits the mapping and meets the limit of 65,530 mappings near 32,000 stacks. Some emulators answer 0
 * to madvise values they do not know, so it is probed by its effect. Guards are made many at a time
 * where process_madvise can (720 ns each alone, 450 in a batch of 16).
 */
#include "ctx/stack.h"

#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <valgrind/valgrind.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef PIDFD_SELF_THREAD_GROUP
#define PIDFD_SELF_THREAD_GROUP (-10001)
#endif

#define SLAB_BYTES ((size_t)16 * 1024 * 1024)
#define COLOURS 32
#define GUARD_BATCH 32

struct slab {
    char *base;
    struct slab *next; /* the class's slabs, oldest first */
    uint32_t slots, guarded, taken;
};

struct class
{
    char *free;        /* tops of stacks given back, latest first, linked by the word below */
    struct slab *take; /* whose guarded slots come next */
    struct slab *last; /* where guards are made */
    uint64_t unreserved;
};

static struct {
    uint32_t guard;
    struct class classes[RSI_STACK_CLASSES];
    int guards; /* 0 not probed, 1 light, 2 mprotect */
} pool;

unsigned rsi_stack_class(size_t stack_bytes)
{
    unsigned class = 0;
    while (rsi_stack_class_bytes(class) < stack_bytes)
        class ++;
    return class;
}

size_t rsi_stack_class_bytes(unsigned class)
{
    return RSI_STACK_BYTES_MIN << class;
}

static char **link_of(char *high)
{
    return (char **)high - 1;
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

static size_t stride_of(unsigned class)
{
    return rsi_stack_class_bytes(class) + RSI_PAGE;
}

/* Guard the next slots of s, up to GUARD_BATCH; how many were. */
static uint32_t guard_some(unsigned class, const struct slab *s)
{
    struct iovec pages[GUARD_BATCH];
    uint32_t count = 0;
    do
        pages[count] =
            (struct iovec){ s->base + (s->guarded + count) * stride_of(class), RSI_PAGE };
    while (++count < GUARD_BATCH && s->guarded + count < s->slots);
    if (rsi_stack_guards_are_light()) {
        long bytes = rsi_syscall5(SYS_process_madvise, PIDFD_SELF_THREAD_GROUP, pages, count,
                                  MADV_GUARD_INSTALL, 0);
        if (bytes > 0)
            return (uint32_t)(bytes / RSI_PAGE);
        return madvise(pages[0].iov_base, RSI_PAGE, MADV_GUARD_INSTALL) == 0;
    }
    return mprotect(pages[0].iov_base, RSI_PAGE, PROT_NONE) == 0;
}

static bool slab_add(unsigned index)
{
    struct class *class = &pool.classes[index];
    size_t slots = SLAB_BYTES / stride_of(index);
    slots = slots ? slots : 1;
    char *memory = rsi_map(RSI_PAGE + slots * stride_of(index));
    if (!memory)
        return false;
    struct slab *s = (struct slab *)memory;
    *s = (struct slab){ .base = memory + RSI_PAGE, .slots = (uint32_t)slots };
    if (class->last)
        class->last->next = s;
    else
        class->take = s;
    class->last = s;
    return true;
}

/* More guarded slots. */
static bool grow(unsigned index)
{
    struct class *class = &pool.classes[index];
    if ((!class->last || class->last->guarded == class->last->slots) && !slab_add(index))
        return false;
    uint32_t count = guard_some(index, class->last);
    class->last->guarded += count;
    class->unreserved += count;
    return count != 0;
}

bool rsi_stack_reserve(unsigned index, unsigned count)
{
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    while (class->unreserved < count && grow(index))
        ;
    bool is_reserved = class->unreserved >= count;
    if (is_reserved)
        class->unreserved -= count;
    rsi_guard_unlock(&pool.guard);
    return is_reserved;
}

void rsi_stack_unreserve(unsigned index, unsigned count)
{
    rsi_guard_lock(&pool.guard);
    pool.classes[index].unreserved += count;
    rsi_guard_unlock(&pool.guard);
}

struct rsi_stack rsi_stack_of(unsigned class, char *high)
{
    /* The colour is below a page, so that the slot's end is the next page boundary. */
    char *end = (char *)rsi_round_up((uintptr_t)high, RSI_PAGE);
    return (struct rsi_stack){ end - rsi_stack_class_bytes(class), high };
}

/* The top of a slot never used before. */
static char *take_fresh(unsigned index)
{
    struct class *class = &pool.classes[index];
    while (class->take && class->take->taken == class->take->slots)
        class->take = class->take->next;
    struct slab *s = class->take;
    if (!s || s->taken == s->guarded)
        rsi_fatal("a stack was taken that was not reserved");
    uint32_t slot = s->taken++;
    char *low = s->base + slot * stride_of(index) + RSI_PAGE;
    char *end = low + rsi_stack_class_bytes(index);
    (void)VALGRIND_STACK_REGISTER(low, end);
    /* 11 is odd, so that 32 neighbours get 32 colours, far from each other. */
    return end - (size_t)(slot * 11 % COLOURS) * RSI_CACHE_LINE;
}

struct rsi_stack rsi_stack_take(unsigned index)
{
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    char *high = class->free;
    if (high)
        class->free = *link_of(high);
    else
        high = take_fresh(index);
    rsi_guard_unlock(&pool.guard);
    return rsi_stack_of(index, high);
}

void rsi_stack_give(unsigned index, struct rsi_stack stack)
{
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    *link_of(stack.high) = class->free;
    class->free = stack.high;
    rsi_guard_unlock(&pool.guard);
}

void rsi_stack_child(void)
{
    int guards = pool.guards;
    __builtin_memset(&pool, 0, sizeof pool);
    pool.guards = guards;
}
