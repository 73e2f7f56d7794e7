/* SPDX-License-Identifier: MIT */
/* contest.c - counts how long threads wait for held locks, in the recording's lock table. */
#include "core/core.h"
#include "obs/site.h"
#include "obs/trace.h"

/* Show contest in the calling thread's slot. NULL: show none. */
static void show_contest(const struct rsi_contest *contest)
{
    struct rsi_store_thread *slot = rsi_exec_self()->current->waiter.record.slot;
    if (!slot)
        return;
    uint32_t seq = rsi_slot_change(slot);
    rsi_store_relaxed(&slot->contest_tsc, contest ? contest->since_tsc : 0);
    rsi_store_relaxed(&slot->contest_holder, contest ? (uintptr_t)contest->holder_site : 0);
    rsi_store_relaxed(&slot->holder_tid, 0);
    rsi_slot_changed(slot, seq);
}

void rsi_contest_sleep_slow(struct rsi_contest *contest, enum rouse_wait_kind kind,
                            const void *lock, const char *const *name, const void *site)
{
    struct rsi_writer *writer = rsi_account_writer();
    if (contest->is_shown || !writer)
        return;
    struct rsi_lock_key key = { (uintptr_t)lock, rsi_site_of(writer, site),
                                (uintptr_t)contest->holder_site, kind, RSI_NAME_ANY };
    contest->is_shown = true;
    /* Store the lock's name and its code files now, before the contest ends. */
    (void)rsi_writer_lock(writer, &key, name);
    show_contest(contest);
}

void rsi_contest_end_slow(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                          const void *lock, const char *const *name, const void *site,
                          bool is_acquired)
{
    struct rsi_writer *writer = rsi_account_writer();
    struct rsi_lock_key key = { (uintptr_t)lock, rsi_site_of(writer, site),
                                (uintptr_t)contest->holder_site, kind, RSI_NAME_ANY };
    struct rsi_store_lock *entry = writer ? rsi_writer_lock(writer, &key, name) : NULL;
    if (contest->is_shown)
        show_contest(NULL);
    if (!entry) {
        if (writer)
            rsi_count(writer->shared->lost_locks, 1);
        return;
    }
    uint64_t now = rsi_tsc(), ticks = now - contest->since_tsc;
    rsi_count(entry->contested, 1);
    rsi_count(entry->acquired, is_acquired);
    rsi_count(entry->given_up, !is_acquired);
    rsi_count(entry->wait_ticks, ticks);
    rsi_count_most(entry->wait_most, ticks);
    rsi_count(entry->spin_ticks, contest->spin_ticks);
    rsi_count(entry->spun, is_acquired && !contest->has_slept);
    if (rsi_trace_is_on())
        rsi_trace_lock(writer, rsi_exec_self()->current, contest, &key,
                       is_acquired ? ROUSE_VERDICT_USEFUL : ROUSE_VERDICT_TIMEOUT, now);
}
