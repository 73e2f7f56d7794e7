/* SPDX-License-Identifier: MIT */
/*
 * ledger_read.h - functions by which tests read the shared file of their own process: sums over all
 * writers.
 */
#ifndef LEDGER_READ_H
#define LEDGER_READ_H

#include "obs/file.h"

#include <rouse/obs.h>
#include <string.h>

/* Call visit for each valid entry of a kind. */
static void entries_visit(enum rsi_store_kind kind, void (*visit)(const void *entry, void *sum),
                          void *sum)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head);
    if (!head)
        return;
    const uint32_t *directory = (const void *)((const char *)head + RSI_STORE_DIRECTORY);
    for (uint32_t i = 0; i < rsi_load_relaxed(&head->chunk_count); i++) {
        uint32_t page = rsi_load_acquire(&directory[i]); /* pairs with rsi_file_chunk */
        struct rsi_store_chunk *chunk = (void *)((char *)head + (size_t)page * RSI_PAGE);
        if (page == 0 || chunk->kind != kind)
            continue;
        for (uint32_t n = 0; n < rsi_load_acquire(&chunk->used); n++) /* pairs with rsi_chunk_add */
            visit(rsi_chunk_entry(chunk, n), sum);
    }
}

/* Wake-ups of waits of a kind for an object (NULL: for any). */
struct wakes {
    uint32_t kind;
    const void *object;
    uint64_t count[ROUSE_VERDICTS], all, wait_ticks, late_ticks;
};

static void wake_add(const void *entry, void *sum)
{
    const struct rsi_store_wake *wake = entry;
    struct wakes *wakes = sum;
    if (wake->kind != wakes->kind || (wakes->object && wake->object != (uintptr_t)wakes->object))
        return;
    for (unsigned i = 0; i < ROUSE_VERDICTS; i++) {
        wakes->count[i] += rsi_load_relaxed(&wake->count[i]);
        wakes->all += rsi_load_relaxed(&wake->count[i]);
    }
    wakes->wait_ticks += rsi_load_relaxed(&wake->wait_ticks);
    wakes->late_ticks += rsi_load_relaxed(&wake->late_ticks);
}

static __attribute__((unused)) struct wakes wakes_of(enum rouse_wait_kind kind, const void *object)
{
    struct wakes wakes = { .kind = kind, .object = object };
    entries_visit(RSI_STORE_WAKES, wake_add, &wakes);
    return wakes;
}

/* The sum over all sites of a lock. */
struct contests {
    const void *lock;
    uint64_t acquired, contested, given_up, wait_ticks, spin_ticks, spun, holds, hold_ticks,
        hold_most;
};

static void lock_add(const void *entry, void *sum)
{
    const struct rsi_store_lock *lock = entry;
    struct contests *contests = sum;
    if (lock->lock != (uintptr_t)contests->lock)
        return;
    contests->acquired += rsi_load_relaxed(&lock->acquired);
    contests->contested += rsi_load_relaxed(&lock->contested);
    contests->given_up += rsi_load_relaxed(&lock->given_up);
    contests->wait_ticks += rsi_load_relaxed(&lock->wait_ticks);
    contests->spin_ticks += rsi_load_relaxed(&lock->spin_ticks);
    contests->spun += rsi_load_relaxed(&lock->spun);
    contests->holds += rsi_load_relaxed(&lock->holds);
    contests->hold_ticks += rsi_load_relaxed(&lock->hold_ticks);
    uint64_t most = rsi_load_relaxed(&lock->hold_most);
    contests->hold_most = most > contests->hold_most ? most : contests->hold_most;
}

static __attribute__((unused)) struct contests contests_of(const void *lock)
{
    struct contests contests = { .lock = lock };
    entries_visit(RSI_STORE_LOCKS, lock_add, &contests);
    return contests;
}

struct totals {
    uint64_t signals_unheard, broadcasts_unheard, herds[RSI_STORE_HERDS], late_timers, ended,
        ended_waits, ended_accepted, groupless, ended_ticks[RSI_IN_COUNT],
        calls[RSI_STORE_WAIT_KINDS];
};

static void writer_add(const void *entry, void *sum)
{
    const struct rsi_store_writer *writer = entry;
    struct totals *totals = sum;
    totals->signals_unheard += rsi_load_relaxed(&writer->signals_unheard);
    totals->broadcasts_unheard += rsi_load_relaxed(&writer->broadcasts_unheard);
    for (unsigned i = 0; i < RSI_STORE_HERDS; i++)
        totals->herds[i] += rsi_load_relaxed(&writer->herds[i]);
    for (unsigned i = 0; i < RSI_STORE_LATENESS; i++)
        totals->late_timers += rsi_load_relaxed(&writer->lateness[i]);
    totals->ended += rsi_load_relaxed(&writer->ended);
    totals->groupless += rsi_load_relaxed(&writer->groupless);
    totals->ended_waits += rsi_load_relaxed(&writer->ended_waits);
    totals->ended_accepted += rsi_load_relaxed(&writer->ended_accepted);
    for (unsigned i = 0; i < RSI_STORE_WAIT_KINDS; i++)
        totals->calls[i] += rsi_load_relaxed(&writer->calls[i]);
    for (unsigned i = 0; i < RSI_IN_COUNT; i++)
        totals->ended_ticks[i] += rsi_load_relaxed(&writer->ended_ticks[i]);
}

static void ended_add(const void *entry, void *sum)
{
    const struct rsi_store_group *group = entry;
    struct totals *totals = sum;
    totals->ended_waits += rsi_load_relaxed(&group->waits);
    totals->ended_accepted += rsi_load_relaxed(&group->accepted);
    for (unsigned i = 0; i < RSI_IN_COUNT; i++)
        totals->ended_ticks[i] += rsi_load_relaxed(&group->ticks[i]);
}

static __attribute__((unused)) struct totals totals_now(void)
{
    struct totals totals = { 0 };
    entries_visit(RSI_STORE_WRITERS, writer_add, &totals);
    entries_visit(RSI_STORE_GROUPS, ended_add, &totals);
    return totals;
}

/* The sum over all groups of a name, and their number. NULL: those of names that found no room. */
struct groups {
    const char *name;
    uint64_t groups, threads, user_threads, waits, wall_ticks, cpu_ns, queueless, all_ticks,
        ticks[RSI_IN_COUNT];
};

static void group_add(const void *entry, void *sum)
{
    const struct rsi_store_group *group = entry;
    struct groups *groups = sum;
    if (groups->name ? group->is_rest || strcmp(group->name, groups->name) != 0 : !group->is_rest)
        return;
    groups->groups++;
    groups->threads += rsi_load_relaxed(&group->threads);
    groups->user_threads += group->is_user ? rsi_load_relaxed(&group->threads) : 0;
    groups->waits += rsi_load_relaxed(&group->waits);
    groups->wall_ticks += rsi_load_relaxed(&group->wall_ticks);
    groups->cpu_ns += rsi_load_relaxed(&group->cpu_ns);
    groups->queueless += rsi_load_relaxed(&group->queueless);
    for (unsigned i = 0; i < RSI_IN_COUNT; i++) {
        groups->ticks[i] += rsi_load_relaxed(&group->ticks[i]);
        groups->all_ticks += rsi_load_relaxed(&group->ticks[i]);
    }
}

static __attribute__((unused)) struct groups groups_of(const char *name)
{
    struct groups groups = { .name = name };
    entries_visit(RSI_STORE_GROUPS, group_add, &groups);
    return groups;
}

#endif
