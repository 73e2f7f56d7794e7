/* SPDX-License-Identifier: MIT */
/*
 * hold.c - every time that a lock is got, and how long it is held: only where ROUSE_OBS=locks asks for it.
 *
 * Each thread has a list of its own of what it holds, the latest last, since it is the one that unlocks what it has
 * locked: no line that two threads write. What one holds is little, so that its list stays in the cache, which is what
 * counts where many threads take turns. A list that is full forgets its oldest hold, and that is counted.
 *
 * A thread gets its locks in the same order again and again. So each row of the file is found by the one before it,
 * and asked for before it is wanted: after a row, the one that came next the last time. Where a program's data say
 * which lock comes next, as in half of what MariaDB gets, it most often is among the rows of these locks and places
 * that were known last. Only where it is not is it looked for.
 *
 * Rejected: those known last by the lock alone, since two places that take a lock in turns leave it in vain; to look
 * among them, and ask for the row, before the lock is tried for: 15 cold locks took a fifth longer, and MariaDB's as
 * long.
 *
 * An unlock that is not seen, by another thread or inside libc, leaves its entry behind; the next time that the thread
 * gets the lock it begins anew, unless the lock is one that a thread may have several times: then it would count on.
 */
#include "preload.h"

#include "os/os.h"

#include <rouse/obs.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MOST 128u
#define AFTER 64u /* rows next to each other in the file have places of their own */
#define KNOWN 64u

struct hold {
    const void *lock;
    struct rsi_store_lock *row; /* NULL: there was no room for one */
    uint64_t since_tsc;
    uint64_t depth; /* times that it is held */
};

struct rpi_holds {
    uint64_t count;
    struct rsi_store_lock
        *last; /* row of the lock that was got last; NULL: none, or it had no room */
    struct rsi_store_lock *after[AFTER]; /* by that row: the one that came next the last time */
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

/* That of lock, the latest if an older one was left behind; NULL: it is not known to be held. */
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

/* Whether the hold of lock goes on: the thread has got it once more. One that was left behind is forgotten. */
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

/* The place of the next, if there is memory for any. */
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
    hold->since_tsc = rsi_tsc(); /* last: what recording costs is not in it */
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

/* The row of key, which most often comes after the last one as it did before. */
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
    rsi_compiler_barrier(); /* a signal handler that locks meanwhile finds the thread busy */
    self->is_busy = false;
}

static struct rpi_hold_ended end(struct rpi_thread *self, const void *lock)
{
    uint64_t now = rsi_tsc();
    struct hold *hold = find(self->holds, lock);
    if (!hold || --hold->depth != 0)
        return (struct rpi_hold_ended){ 0 };
    struct rpi_hold_ended past = { hold->row, now - hold->since_tsc };
    take_out(self->holds, hold);
    return past;
}

struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock)
{
    return self && !self->is_busy ? end(self, lock) : (struct rpi_hold_ended){ 0 };
}

void rpi_hold_pause(struct rpi_thread *self, const void *lock)
{
    struct rpi_hold_ended past = end(self, lock);
    rpi_hold_count(&past);
}

void rpi_hold_count(const struct rpi_hold_ended *past)
{
    struct rsi_store_lock *row = past->row;
    if (!row)
        return;
    rsi_count(row->holds, 1);
    rsi_count(row->hold_ticks, past->ticks);
    rsi_count_most(row->hold_most, past->ticks);
}
