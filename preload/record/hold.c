/* SPDX-License-Identifier: MIT */
/*
 * hold.c - counts every acquisition of a lock and times how long it is held, only where ROUSE_OBS=locks asks for it.
 *
 * Each thread has a list of the locks that it holds, the latest last. The thread that locked is the one that unlocks,
 * so no cache line has two writers. A thread holds few locks, so its list stays in the cache, which matters most where
 * many threads take turns. A full list drops its oldest hold and counts it as lost.
 *
 * A thread acquires its locks in the same order again and again. So the row of a lock is predicted from the row before
 * it, as the one that followed last time, and is prefetched. Where the program's data decide which lock comes next, as
 * for half of MariaDB's acquisitions, the row is most often among those of the last known locks and places. Only if it
 * is not there either is it looked up.
 *
 * Rejected: finding the last known rows by the lock alone, since two places that take a lock in turns evict each other.
 * Looking among them and prefetching before the lock is tried: 15 cold locks took a fifth longer, and MariaDB's took as
 * long as before.
 *
 * An unlock that we do not see, by another thread or inside libc, leaves its entry behind. The next acquisition by the
 * thread starts a new hold, unless the thread may hold the lock several times, in which case the old hold would go on.
 */
#include "record/hold.h"

#include "obs/site.h"
#include "os/os.h"
#include "record/init_site.h"

#include <rouse/obs.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MOST 128u
#define AFTER 64u /* so that rows next to each other in the file have different places */
#define KNOWN 64u

struct hold {
    const void *lock;
    struct rsi_store_lock *row; /* NULL: there was no room for one */
    uint64_t since_tsc;
    uint64_t depth; /* how many times the thread holds it */
};

struct rpi_holds {
    uint64_t count;
    /* The row of the lock that was acquired last. NULL: none, or there was no room for it. */
    struct rsi_store_lock *last;
    struct rsi_store_lock *after[AFTER]; /* by that row: the row that followed it last time */
    struct rsi_store_lock *known[KNOWN]; /* by lock and site */
    struct hold held[HELD_MOST];
};

bool rpi_hold_is_on;

void rpi_hold_setup(void)
{
    const char *text = getenv("ROUSE_OBS");
    rpi_hold_is_on = text && strcmp(text, "locks") == 0;
}

void rpi_hold_warm(const struct rpi_thread *self)
{
    const struct rpi_holds *holds = self->holds;
    if (!holds)
        return;
    __builtin_prefetch(holds, 1);
    __builtin_prefetch((const char *)holds + RSI_CACHE_LINE, 1);
    __builtin_prefetch(holds->held, 1);
    __builtin_prefetch((const char *)holds->held + RSI_CACHE_LINE, 1);
    __builtin_prefetch(self->writer);
}

void rpi_hold_clear(struct rpi_holds *holds)
{
    if (holds)
        memset(holds, 0, sizeof *holds);
}

/* The hold of lock, the latest if an older one was left behind. NULL: the lock is not known to be held. */
static struct hold *find(struct rpi_holds *holds, const void *lock)
{
    for (uint64_t i = holds ? holds->count : 0; i > 0; i--)
        if (holds->held[i - 1].lock == lock)
            return &holds->held[i - 1];
    return NULL;
}

static void take_out(struct rpi_holds *holds, struct hold *hold)
{
    struct hold *last = &holds->held[--holds->count];
    if (rsi_unlikely(hold != last))
        memmove(hold, hold + 1, (size_t)(last - hold) * sizeof *hold);
}

/*
 * Whether the hold of lock goes on, because the thread has acquired it once more. A hold that was left behind is
 * dropped.
 */
static bool goes_on(struct rpi_holds *holds, const void *lock, bool is_nesting)
{
    struct hold *hold = find(holds, lock);
    if (rsi_likely(!hold))
        return false;
    if (is_nesting)
        hold->depth++;
    else
        take_out(holds, hold);
    return is_nesting;
}

/* The place of the next hold. NULL: no memory. */
static struct hold *next_of(struct rpi_thread *self)
{
    struct rpi_holds *holds = self->holds;
    if (rsi_unlikely(!holds) && !(holds = self->holds = rsi_map(sizeof *holds)))
        return NULL;
    if (rsi_unlikely(holds->count == HELD_MOST)) {
        take_out(holds, holds->held);
        rsi_count(self->writer->shared->lost_holds, 1);
    }
    return &holds->held[holds->count];
}

RSI_INLINE void put(struct rpi_thread *self, const void *lock, struct rsi_store_lock *row)
{
    struct hold *hold = next_of(self);
    if (!hold || !row)
        rsi_count(self->writer->shared->lost_holds, 1);
    if (!hold)
        return;
    self->holds->count++;
    *hold = (struct hold){ lock, row, 0, 1 };
    hold->since_tsc = rsi_tsc(); /* last, to exclude the cost of recording */
}

void rpi_hold_contested(struct rpi_thread *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row)
{
    const void *lock = (const void *)(uintptr_t)key->lock;
    if (!goes_on(self->holds, lock, key->kind == ROUSE_WAIT_READ_LOCK))
        put(self, lock, row);
}

static struct rsi_store_lock **after(struct rpi_holds *holds)
{
    return &holds->after[(uintptr_t)holds->last / sizeof *holds->last % AFTER];
}

static bool is_of(const struct rsi_store_lock *row, const struct rsi_lock_key *key)
{
    return row && row->lock == key->lock && row->site == key->site && row->kind == key->kind &&
           row->name == key->name;
}

/* The row of key, which usually follows the last row as it did before. */
static struct rsi_store_lock *row_of(struct rpi_thread *self, const struct rsi_lock_key *key)
{
    struct rpi_holds *holds = self->holds;
    if (!holds)
        return rsi_writer_lock(self->writer, key, NULL);
    struct rsi_store_lock **guess = after(holds), *row = *guess;
    if (!is_of(row, key)) {
        struct rsi_store_lock **known = &holds->known[rsi_hash(key->lock, key->site, 0) % KNOWN];
        row = *known;
        if (!is_of(row, key))
            *known = row = rsi_writer_lock(self->writer, key, NULL);
        *guess = row;
    }
    holds->last = row;
    __builtin_prefetch(*after(holds), 1);
    return row;
}

RSI_NOINLINE void rpi_hold_begin(const void *lock, enum rouse_wait_kind kind, bool is_nesting,
                                 const void *site)
{
    struct rpi_thread *self = rpi_self;
    if ((!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return;
    if (!goes_on(self->holds, lock, is_nesting)) {
        const struct rsi_lock_key key = { (uintptr_t)lock, rsi_site_of(self->writer, site), 0,
                                          (uint32_t)kind, rpi_init_site_name(self->writer, lock) };
        struct rsi_store_lock *row = row_of(self, &key);
        if (row)
            rsi_count(row->acquired, 1);
        else
            rsi_count(self->writer->shared->lost_locks, 1);
        put(self, lock, row);
    }
    rsi_compiler_barrier(); /* until here a signal handler that locks finds the thread busy */
    self->is_busy = false;
}

static struct rpi_hold_ended end(struct rpi_thread *self, const void *lock)
{
    uint64_t now = rsi_tsc();
    struct hold *hold = find(self->holds, lock);
    if (!hold || --hold->depth != 0)
        return (struct rpi_hold_ended){ 0 };
    struct rpi_hold_ended ended = { hold->row, now - hold->since_tsc };
    take_out(self->holds, hold);
    return ended;
}

struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock)
{
    return self && !self->is_busy ? end(self, lock) : (struct rpi_hold_ended){ 0 };
}

void rpi_hold_pause(struct rpi_thread *self, const void *lock)
{
    struct rpi_hold_ended ended = end(self, lock);
    rpi_hold_count(&ended);
}

void rpi_hold_count(const struct rpi_hold_ended *ended)
{
    struct rsi_store_lock *row = ended->row;
    if (!row)
        return;
    rsi_count(row->holds, 1);
    rsi_count(row->hold_ticks, ended->ticks);
    rsi_count_most(row->hold_most, ended->ticks);
}
