/* SPDX-License-Identifier: MIT */
/*
 * stack.c - slabs of guarded stacks.
 *
 * Guards: MADV_GUARD_INSTALL (Linux 6.13) marks a page in the page table and needs no mapping of its own.
 * mprotect splits the mapping, and reaches the limit of 65,530 mappings near 32,000 stacks. Some emulators
 * return 0 for madvise values that they do not know, so the probe checks the effect. Where process_madvise
 * works, guards are made in batches (720 ns per guard alone, 450 in a batch of 16).
 *
 * A free stack is linked by a word inside it, so one of its pages must stay. Cold stacks, whose memory was
 * given back, are therefore listed in the last page of one of them: 257 stacks keep one page.
 */
#include "ctx/stack.h"

#include "ctx/ctx.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <valgrind/valgrind.h>

#ifdef RSI_ASAN
#include <sanitizer/asan_interface.h>
#endif

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef PIDFD_SELF_THREAD_GROUP
#define PIDFD_SELF_THREAD_GROUP (-10001)
#endif

#define SLAB_BYTES ((size_t)16 * 1024 * 1024)
#define COLOURS 32
#define GUARD_BATCH 32
#define COLD_MOST 256
#define LOOK_PAGES 256

/* Stored in pages of their own. */
struct slab {
    char *base;
    struct slab *next; /* the class's slabs, oldest first */
    uint32_t slots, guarded, taken;
};

/* Stored in the last page of a stack, below its top. The page has 2,112 bytes for each colour. */
struct cold {
    struct cold *next;
    char *high; /* top of this stack */
    size_t count;
    char *tops[COLD_MOST]; /* tops of stacks without memory */
};
_Static_assert(sizeof(struct cold) + 16 <= RSI_PAGE - (COLOURS - 1) * RSI_CACHE_LINE,
               "a list of cold stacks reaches into what TSan keeps at the top");

struct class
{
    char *free;        /* tops of free stacks, latest first, linked by the word below */
    struct cold *cold; /* used when free is empty */
    uint32_t free_count;
    struct slab *take; /* the slab whose guarded slots are used next */
    struct slab *last; /* the slab in which guards are made */
    uint64_t unreserved;
};

static struct {
    uint32_t guard;
    struct class classes[RSI_STACK_CLASSES];
    struct slab *spare; /* descriptions not yet in use */
    size_t spare_count;
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
        /* A guarded page cannot be read, even by the kernel. */
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

/* Guard the next slots of s, up to GUARD_BATCH. Returns how many. */
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
    if (pool.spare_count == 0) {
        pool.spare = rsi_map(RSI_PAGE);
        pool.spare_count = pool.spare ? RSI_PAGE / sizeof *pool.spare : 0;
    }
    char *memory = pool.spare_count ? rsi_map(slots * stride_of(index)) : NULL;
    if (!memory)
        return false;
    struct slab *s = &pool.spare[--pool.spare_count];
    *s = (struct slab){ .base = memory, .slots = (uint32_t)slots };
    if (class->last)
        class->last->next = s;
    else
        class->take = s;
    class->last = s;
    return true;
}

/* Make more guarded slots. */
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
    /* The colour is smaller than a page, so the slot's end is the next page boundary. */
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
    /* 11 is odd, so that 32 neighbours get 32 different colours, far from each other. */
    return end - (size_t)(slot * 11 % COLOURS) * RSI_CACHE_LINE;
}

static char *take_free(struct class *class)
{
    char *high = class->free;
    class->free = *link_of(high);
    rsi_store_relaxed(&class->free_count, class->free_count - 1);
    return high;
}

static char *take_cold(struct class *class)
{
    struct cold *cold = class->cold;
    if (cold->count != 0)
        return cold->tops[--cold->count];
    class->cold = cold->next;
    return cold->high;
}

struct rsi_stack rsi_stack_take(unsigned index)
{
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    char *high = class->free   ? take_free(class)
                 : class->cold ? take_cold(class)
                               : take_fresh(index);
    rsi_guard_unlock(&pool.guard);
    return rsi_stack_of(index, high);
}

void rsi_stack_give(unsigned index, struct rsi_stack stack)
{
    struct class *class = &pool.classes[index];
    rsi_guard_lock(&pool.guard);
    *link_of(stack.high) = class->free;
    class->free = stack.high;
    rsi_store_relaxed(&class->free_count, class->free_count + 1);
    rsi_guard_unlock(&pool.guard);
}

size_t rsi_stack_resident(const char *low, const char *end)
{
    unsigned char is_there[LOOK_PAGES] = { 0 };
    size_t count = 0;
    while (low < end) {
        size_t pages = (size_t)(end - low) / RSI_PAGE;
        pages = pages < LOOK_PAGES ? pages : LOOK_PAGES;
        if (rsi_syscall3(SYS_mincore, low, pages * RSI_PAGE, is_there) != 0)
            break;
        for (size_t i = 0; i < pages; i++)
            count += is_there[i] & 1;
        low += pages * RSI_PAGE;
    }
    return count * RSI_PAGE;
}

void rsi_stack_drop(const struct iovec *ranges, unsigned count)
{
    /* Linux 6.13: one call, and one notification of the other CPUs. */
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++)
        bytes += ranges[i].iov_len;
    if (count > 1 && rsi_syscall5(SYS_process_madvise, PIDFD_SELF_THREAD_GROUP, ranges, count,
                                  MADV_DONTNEED, 0) == (long)bytes)
        return;
    for (unsigned i = 0; i < count; i++)
        (void)rsi_syscall3(SYS_madvise, ranges[i].iov_base, ranges[i].iov_len, MADV_DONTNEED);
}

/* Turn a free stack into a cold one. Returns the range that holds nothing of use. */
static struct iovec make_cold(struct class *class, struct rsi_stack stack)
{
    char *end = (char *)rsi_round_up((uintptr_t)stack.high, RSI_PAGE);
    struct cold *cold = class->cold;
    if (cold && cold->count < COLD_MOST) {
        cold->tops[cold->count++] = stack.high;
#ifdef RSI_TSAN
        end -= RSI_PAGE; /* its fiber is stored there */
#endif
    } else {
        end -= RSI_PAGE;
#ifdef RSI_ASAN
        /* Marks of frames that its last thread left. */
        __asan_unpoison_memory_region(end, RSI_PAGE);
#endif
        cold = (struct cold *)end;
        cold->next = class->cold;
        cold->high = stack.high;
        cold->count = 0;
        class->cold = cold;
    }
    return (struct iovec){ stack.low, (size_t)(end - stack.low) };
}

static size_t trim_some_locked(unsigned index, unsigned count)
{
    struct class *class = &pool.classes[index];
    struct iovec ranges[RSI_STACK_DROP_MAX];
    unsigned held = 0;
    size_t bytes = 0;
    while (held < count && class->free) {
        ranges[held] = make_cold(class, rsi_stack_of(index, take_free(class)));
        const char *low = ranges[held].iov_base;
        bytes += rsi_stack_resident(low, low + ranges[held].iov_len);
        held++;
    }
    rsi_stack_drop(ranges, held);
    return bytes;
}

size_t rsi_stack_trim(void)
{
    size_t bytes = 0;
    for (unsigned index = 0; index < RSI_STACK_CLASSES; index++) {
        /* Only as many as are free now: other threads may free stacks as fast as these are handled. */
        uint32_t rest = rsi_load_relaxed(&pool.classes[index].free_count);
        while (rest != 0) {
            unsigned count = rest < RSI_STACK_DROP_MAX ? rest : RSI_STACK_DROP_MAX;
            rsi_guard_lock(&pool.guard);
            bytes += trim_some_locked(index, count);
            rsi_guard_unlock(&pool.guard);
            rest -= count;
        }
    }
    return bytes;
}

void rsi_stack_child(void)
{
    int guards = pool.guards;
    __builtin_memset(&pool, 0, sizeof pool);
    pool.guards = guards;
}
