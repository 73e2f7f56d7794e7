/* SPDX-License-Identifier: MIT */
/*
 * hold.c - every time that a lock is got, and how long it is held: only where ROUSE_OBS=locks asks for it.
 *
 * Each thread has a table of its own, since it is the one that unlocks what it has locked: no line that two threads
 * write. A lock's place in it is looked for among WINDOW, and stays the lock's when it has been unlocked, until another
 * needs it: the next hold from the same site then finds its row of the file at once. What has no room is counted.
 *
 * An unlock that is not seen, by another thread or inside libc, leaves its entry behind; the next time that the thread
 * gets the lock it begins anew, unless the lock is one that a thread may have several times: then it would count on.
 */
#include "preload.h"

#include "os/os.h"

#include <rouse/obs.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES 128u /* 8 KiB a thread */
#define WINDOW 8u

struct rsi_hold {
    const void *lock; /* NULL: never used */
    struct rsi_store_lock *row;
    uint64_t site;      /* of row, if it is that of a lock which was free; else 0 */
    uint64_t since_tsc; /* of a hold */
    uint32_t depth;     /* times that it is held; 0: it is not */
    uint32_t kind;      /* of row */
    uint64_t spare[3];
};
_Static_assert(sizeof(struct rsi_hold) == RSI_CACHE_LINE, "a line for each lock that is held");

bool rsi_holds_are_on;

void rsi_holds_begin(void)
{
    const char *text = getenv("ROUSE_OBS");
    rsi_holds_are_on = text && strcmp(text, "locks") == 0;
}

void rsi_holds_clear(struct rsi_hold *holds)
{
    if (holds)
        memset(holds, 0, ENTRIES * sizeof *holds);
}

/* The entry of lock, or else one that can be; NULL: there is no room. */
static struct rsi_hold *entry_of(struct rsi_hold *holds, const void *lock)
{
    uint32_t at = rsi_hash((uintptr_t)lock, 0, 0);
    struct rsi_hold *free = NULL;
    for (unsigned n = 0; holds && n < WINDOW; n++) {
        struct rsi_hold *entry = &holds[(at + n) % ENTRIES];
        if (entry->lock == lock)
            return entry;
        if (!free && entry->depth == 0)
            free = entry;
    }
    return free;
}

/* Whether the hold goes on that lock's entry is of: the thread has got it once more. */
static bool goes_on(struct rsi_hold *entry, const void *lock, bool is_nesting)
{
    bool goes = entry && entry->lock == lock && entry->depth != 0 && is_nesting;
    if (goes)
        entry->depth++;
    return goes;
}

static void put(struct rsi_party *self, struct rsi_hold *entry, const void *lock,
                struct rsi_store_lock *row, uint64_t site, enum rouse_wait_kind kind)
{
    if (!entry || !row) {
        rsi_count(self->writer->shared->lost_holds, 1);
        if (entry && entry->lock == lock)
            entry->depth = 0;
        return;
    }
    entry->lock = lock;
    entry->row = row;
    entry->site = site;
    entry->kind = (uint32_t)kind;
    entry->depth = 1;
    entry->since_tsc = rsi_tsc(); /* last: what recording costs is not in it */
}

static struct rsi_hold *entry_for(struct rsi_party *self, const void *lock)
{
    if (rsi_unlikely(!self->holds))
        self->holds = rsi_map(ENTRIES * sizeof *self->holds);
    return entry_of(self->holds, lock);
}

void rsi_hold_contested(struct rsi_party *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row)
{
    const void *lock = (const void *)(uintptr_t)key->lock;
    struct rsi_hold *entry = entry_for(self, lock);
    if (!goes_on(entry, lock, key->kind == ROUSE_WAIT_READ_LOCK))
        put(self, entry, lock, row, 0, key->kind);
}

RSI_NOINLINE void rsi_hold_begin(const void *lock, enum rouse_wait_kind kind, bool is_nesting,
                                 const void *site)
{
    struct rsi_party *self = rsi_party_self;
    if ((!self && !(self = rsi_party_enter())) || !rsi_party_begin(self))
        return;
    struct rsi_hold *entry = entry_for(self, lock);
    if (!goes_on(entry, lock, is_nesting)) {
        uint64_t place = rsi_site_of(self->writer, site);
        struct rsi_lock_key key = { (uintptr_t)lock, place, 0, (uint32_t)kind };
        bool is_same = entry && entry->lock == lock && entry->site == place &&
                       entry->kind == key.kind;
        struct rsi_store_lock *row = is_same ? entry->row
                                             : rsi_writer_lock(self->writer, &key, NULL);
        if (row)
            rsi_count(row->acquired, 1);
        else
            rsi_count(self->writer->shared->lost_locks, 1);
        put(self, entry, lock, row, place, kind);
    }
    rsi_compiler_barrier(); /* a signal handler that locks meanwhile finds the thread busy */
    self->is_busy = false;
}

static struct rsi_past end(struct rsi_party *self, const void *lock)
{
    uint64_t now = rsi_tsc();
    struct rsi_hold *entry = entry_of(self->holds, lock);
    if (!entry || entry->lock != lock || entry->depth == 0 || --entry->depth != 0)
        return (struct rsi_past){ 0 };
    return (struct rsi_past){ entry->row, now - entry->since_tsc };
}

struct rsi_past rsi_hold_end(struct rsi_party *self, const void *lock)
{
    return self && !self->is_busy ? end(self, lock) : (struct rsi_past){ 0 };
}

void rsi_hold_pause(struct rsi_party *self, const void *lock)
{
    struct rsi_past past = end(self, lock);
    rsi_hold_count(&past);
}

void rsi_hold_count(const struct rsi_past *past)
{
    struct rsi_store_lock *row = past->row;
    if (!row)
        return;
    rsi_count(row->holds, 1);
    rsi_count(row->hold_ticks, past->ticks);
    rsi_count_most(row->hold_most, past->ticks);
}
