/* SPDX-License-Identifier: MIT */
/*
 * outside_wake.c - who wakes a thread from another process: PostgreSQL's backends, for example, wait for each other by
 * semaphores in shared memory and by signals.
 *
 * Problem: each process records into a file of its own, and knows neither the waiters nor the wakers of others. So the
 * waker writes its call stack into a table that all processes share, before it wakes the waiter. The waiter looks
 * there when it returns.
 *
 * The table is shared memory without a name, made when the program makes the first lock that is shared between
 * processes. Forked children inherit it, at the same address as the code, so that the stack means the same there.
 * A program that is started by exec gets none. Code that is loaded later may differ between the processes: a stack ends
 * before its first such frame.
 *
 * Each entry has the last wake-up of one object, or of one of several with the same hash. Its writers exclude each
 * other by a number that is odd meanwhile. None of them waits: if an entry is being written, or its writer was killed,
 * the wake-up is not noted. A reader uses an entry if its number is even and the same afterwards. Two wake-ups of one
 * object during one wait show the later one; the first may have ended the wait.
 */
#include "record/outside_wake.h"

#include "obs/site.h"

#include <errno.h>
#include <link.h>
#include <sys/mman.h>

#define ENTRIES 1024u
#define RANGES_MOST 256u

struct entry {
    uint32_t number; /* odd: being written */
    int32_t tid;
    uint64_t key, tsc;
    uint64_t depth;
    uint64_t frames[RSI_SITE_FRAMES]; /* innermost first */
    uint64_t spare[4];
};
_Static_assert(sizeof(struct entry) == 128, "two cache lines");

/* Code that was loaded when the table was made. */
struct range {
    uint64_t start, end;
};

struct rpi_outside_table {
    struct entry entries[ENTRIES];
    uint64_t range_count;
    struct range ranges[RANGES_MOST];
};

struct rpi_outside_table *rpi_outside_table;

static int range_add(struct dl_phdr_info *module, size_t bytes, void *table)
{
    struct rpi_outside_table *t = table;
    (void)bytes;
    for (unsigned i = 0; i < module->dlpi_phnum && t->range_count < RANGES_MOST; i++) {
        const ElfW(Phdr) *part = &module->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        uint64_t start = module->dlpi_addr + part->p_vaddr;
        t->ranges[t->range_count++] = (struct range){ start, start + part->p_memsz };
    }
    return 0;
}

RSI_COLD void rpi_outside_begin(void)
{
    int error = errno;
    struct rpi_outside_table *none = NULL;
    if (rsi_load_relaxed(&rpi_outside_table) || !rpi_recording_is_on())
        return;
    struct rpi_outside_table *table =
        mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table != MAP_FAILED) {
        dl_iterate_phdr(range_add, table);
        /* pairs with the acquire loads of note and find */
        if (!__atomic_compare_exchange_n(&rpi_outside_table, &none, table, false, __ATOMIC_RELEASE,
                                         __ATOMIC_RELAXED))
            munmap(table, sizeof *table);
    }
    errno = error;
}

static struct entry *entry_of(struct rpi_outside_table *table, uint64_t key)
{
    return &table->entries[rsi_hash(key, 0, 0) % ENTRIES];
}

static bool is_same_everywhere(const struct rpi_outside_table *table, uint64_t frame)
{
    for (unsigned i = 0; i < table->range_count; i++)
        if (frame - table->ranges[i].start < table->ranges[i].end - table->ranges[i].start)
            return true;
    return false;
}

void rpi_outside_put(const struct rpi_thread *self, uint64_t key, const void *site)
{
    struct rpi_outside_table *table = rsi_load_acquire(&rpi_outside_table); /* pairs with begin */
    struct entry *entry = entry_of(table, key);
    uint64_t frames[RSI_SITE_FRAMES];
    unsigned found = rsi_site_frames(rsi_site_of(self->writer, site), frames), depth = 0;
    uint32_t number = rsi_load_relaxed(&entry->number);
    while (depth < found && is_same_everywhere(table, frames[depth]))
        depth++;
    /* pairs with the release below: the last writer has finished */
    if (number & 1 || !rsi_cas_acquire(&entry->number, &number, number + 1))
        return;
    __atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with find's fence: it sees the odd number */
    rsi_store_relaxed(&entry->key, key);
    rsi_store_relaxed(&entry->tid, self->tid);
    rsi_store_relaxed(&entry->depth, (uint64_t)depth);
    for (unsigned i = 0; i < depth; i++)
        rsi_store_relaxed(&entry->frames[i], frames[i]);
    rsi_store_relaxed(&entry->tsc, rsi_tsc());
    rsi_store_release(&entry->number, number + 2); /* pairs with find */
}

void rpi_outside_note_slow(uint64_t key, const void *site)
{
    struct rpi_thread *self = rpi_self;
    if ((!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return;
    int error = errno;
    rpi_outside_put(self, key, site);
    self->is_busy = false;
    errno = error;
}

void rpi_outside_find(const struct rpi_thread *self, uint64_t key, uint64_t since, uint64_t now,
                      struct rpi_mark *mark)
{
    struct rpi_outside_table *table = rsi_load_acquire(&rpi_outside_table); /* pairs with begin */
    if (!table)
        return;
    struct entry *entry = entry_of(table, key);
    uint64_t frames[RSI_SITE_FRAMES];
    uint32_t number = rsi_load_acquire(&entry->number); /* pairs with rpi_outside_put */
    uint64_t tsc = rsi_load_relaxed(&entry->tsc);
    if (number & 1 || rsi_load_relaxed(&entry->key) != key || tsc < since || tsc > now)
        return;
    uint64_t tid = (uint64_t)rsi_load_relaxed(&entry->tid);
    uint64_t depth = rsi_load_relaxed(&entry->depth);
    for (unsigned i = 0; i < depth && i < RSI_SITE_FRAMES; i++)
        frames[i] = rsi_load_relaxed(&entry->frames[i]);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* pairs with rpi_outside_put */
    if (rsi_load_relaxed(&entry->number) != number || depth > RSI_SITE_FRAMES)
        return;
    *mark = (struct rpi_mark){ .tsc = tsc,
                               .waker_id = tid,
                               .site = rsi_site_put(self->writer, frames, (unsigned)depth),
                               .is_signal = (key & RPI_OUTSIDE_SIGNALS) != 0 };
}
