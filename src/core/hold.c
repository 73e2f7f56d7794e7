/* SPDX-License-Identifier: MIT */
/*
 * hold.c - how long locks are held, while every acquisition is recorded.
 *
 * Problem: a hold may begin on one worker and end on another, and a lock has no room for a time stamp: its
 * size is part of the ABI. So current holds are in a table of the process, by thread and lock. A thread
 * changes only its own entries, so one atomic word is enough: the owner of the entry.
 *
 *   begin   0, or an owner of a past epoch -> who (compare-and-swap); the rest of the entry is then the thread's
 *   end     who -> 0
 *
 * An entry, or room for one, is looked for in WINDOW places: there are no chains and nothing to repair. If
 * there is no room, the acquisition is counted but its hold is not, and lost_holds says so. A new epoch
 * begins whenever this kind of recording is switched on, so that a hold that ended while it was off is not
 * mistaken for a current one. Rejected: a field in the lock; a list in the thread's control block, since a
 * thread may hold any number of locks.
 */
#include "core/account.h"
#include "core/core.h"
#include "obs/site.h"

#include <errno.h>

#define ENTRIES 16384u /* 1 MiB */
#define WINDOW 16u
#define EPOCH_SHIFT 48 /* above a thread's id */

struct entry {
    uint64_t who; /* epoch and id of the thread; 0: free */
    const void *lock, *holder_site;
    uint64_t site;
    uint64_t since_tsc;
    uint32_t kind, depth;
    uint64_t spare[2];
};
_Static_assert(sizeof(struct entry) == 64, "a line, so that no two threads write one");

uint32_t rsi_lock_limit = RSI_LOCK_HELD;

static struct {
    pthread_mutex_t mutex; /* held while the mode changes */
    /* NULL: never requested. rsi_holds_setup releases it, self_word acquires it */
    struct entry *entries;
    uint64_t epoch; /* the epoch of holds that begin now */
} holds = { .mutex = PTHREAD_MUTEX_INITIALIZER };

int rsi_holds_setup(bool is_on)
{
    int error = 0;
    pthread_mutex_lock(&holds.mutex);
    if (is_on && !holds.entries) {
        struct entry *entries = rsi_map(ENTRIES * sizeof *entries);
        rsi_store_release(&holds.entries, entries); /* pairs with self_word */
        error = entries ? 0 : -ENOMEM;
    }
    if (is_on && rsi_load_relaxed(&rsi_lock_limit) != 0)
        rsi_store_relaxed(&holds.epoch, holds.epoch + 1);
    if (!error)
        rsi_store_relaxed(&rsi_lock_limit, is_on ? 0 : RSI_LOCK_HELD);
    pthread_mutex_unlock(&holds.mutex);
    return error;
}

void rsi_holds_child(void)
{
    pthread_mutex_init(&holds.mutex, NULL);
}

/* The value of who in the calling thread's entries. 0: there are no entries. */
static uint64_t self_word(void)
{
    if (!rsi_load_acquire(&holds.entries)) /* pairs with rsi_holds_setup */
        return 0;
    return rsi_load_relaxed(&holds.epoch) << EPOCH_SHIFT | rsi_exec_self()->current->id;
}

static struct entry *entry_at(const void *lock, uint64_t who, unsigned n)
{
    return &holds.entries[(rsi_hash((uintptr_t)lock, who, 0) + n) % ENTRIES];
}

static struct entry *find(const void *lock, uint64_t who)
{
    for (unsigned n = 0; who && n < WINDOW; n++) {
        struct entry *entry = entry_at(lock, who, n);
        if (rsi_load_relaxed(&entry->who) == who && entry->lock == lock)
            return entry;
    }
    return NULL;
}

static struct entry *claim(const void *lock, uint64_t who)
{
    for (unsigned n = 0; who && n < WINDOW; n++) {
        struct entry *entry = entry_at(lock, who, n);
        uint64_t before = rsi_load_relaxed(&entry->who);
        /* Acquire pairs with the release in rsi_hold_end: the entry is written only after its last read. */
        if ((before == 0 || before >> EPOCH_SHIFT != who >> EPOCH_SHIFT) &&
            rsi_cas_acquire(&entry->who, &before, who))
            return entry;
    }
    return NULL;
}

static struct rsi_store_lock *row(struct rsi_writer *writer, const void *lock, uint64_t site,
                                  const void *holder_site, uint32_t kind, const char *const *name)
{
    struct rsi_lock_key key = { (uintptr_t)lock, site, (uintptr_t)holder_site, kind, RSI_NAME_ANY };
    return writer ? rsi_writer_lock(writer, &key, name) : NULL;
}

bool rsi_hold_begin(enum rouse_wait_kind kind, const void *lock, const char *const *name,
                    const void *site, const struct rsi_contest *contest)
{
    bool is_counted = contest &&
                      contest->since_tsc != 0; /* rsi_contest_end has counted the acquisition */
    uint64_t who = self_word();
    struct entry *entry = find(lock, who);
    if (entry) {
        entry->depth++;
        return true;
    }
    struct rsi_writer *writer = rsi_account_writer();
    uint64_t place = rsi_site_of(writer, site);
    const void *holder_site = is_counted ? contest->holder_site : NULL;
    struct rsi_store_lock *counts = is_counted ? NULL
                                               : row(writer, lock, place, holder_site, kind, name);
    if (counts)
        rsi_count(counts->acquired, 1);
    else if (writer && !is_counted)
        rsi_count(writer->shared->lost_locks, 1);
    entry = claim(lock, who);
    if (!entry) {
        if (writer)
            rsi_count(writer->shared->lost_holds, 1);
        return false;
    }
    entry->lock = lock;
    entry->site = place;
    entry->holder_site = holder_site;
    entry->kind = (uint32_t)kind;
    entry->depth = 1;
    entry->since_tsc = rsi_tsc(); /* last, so that the cost of recording is not included */
    return true;
}

void rsi_hold_end(const void *lock, struct rsi_hold *past)
{
    uint64_t now = rsi_tsc();
    struct entry *entry = find(lock, self_word());
    *past = (struct rsi_hold){ .kind = ROUSE_WAIT_NONE };
    if (!entry || --entry->depth != 0)
        return;
    *past = (struct rsi_hold){ now - entry->since_tsc, entry->site, lock, entry->holder_site,
                               entry->kind };
    rsi_store_release(&entry->who, UINT64_C(0)); /* pairs with claim */
}

void rsi_hold_count(const struct rsi_hold *past, const char *const *name)
{
    struct rsi_writer *writer = rsi_account_writer();
    struct rsi_store_lock *counts =
        row(writer, past->lock, past->site, past->holder_site, past->kind, name);
    if (!counts) {
        if (writer)
            rsi_count(writer->shared->lost_holds, 1);
        return;
    }
    rsi_count(counts->holds, 1);
    rsi_count(counts->hold_ticks, past->ticks);
    rsi_count_most(counts->hold_most, past->ticks);
}
