/* SPDX-License-Identifier: MIT */
/* tally.c - counts what is no wait and no switch: calls, contests of locks, herds, steals, late timers. */
#include "core/core.h"
#include "obs/site.h"
#include "obs/trace.h"

void rsi_account_herd(size_t count)
{
    struct rsi_writer *writer = rsi_exec_self()->writer;
    if (writer)
        rsi_count(writer->shared->herds[rsi_log2(count, RSI_STORE_HERDS - 1)], 1);
}

void rsi_account_call_slow(enum rouse_wait_kind kind, long result)
{
    const struct rsi_exec *exec = rsi_exec_self();
    struct rsi_writer *writer = rsi_account_writer();
    struct rsi_store_thread *slot = exec->current ? exec->current->waiter.record.slot : NULL;
    if (writer)
        rsi_count(writer->shared->calls[kind], 1);
    if (slot && kind == ROUSE_WAIT_ACCEPT && result >= 0)
        rsi_count(slot->accepted, 1);
}

void rsi_account_unheard_slow(bool is_broadcast)
{
    (void)rsi_self(); /* who only signals is not known yet, and has nothing to count in */
    struct rsi_writer *writer = rsi_account_writer();
    if (writer && is_broadcast)
        rsi_count(writer->shared->broadcasts_unheard, 1);
    else if (writer)
        rsi_count(writer->shared->signals_unheard, 1);
}

/* The contest that the calling thread's slot shows; NULL: none. */
static void show_contest(const struct rsi_contest *contest)
{
    struct rsi_store_thread *slot = rsi_exec_self()->current->waiter.record.slot;
    if (!slot)
        return;
    rsi_slot_change(slot);
    rsi_store_relaxed(&slot->contest_tsc, contest ? contest->since_tsc : 0);
    rsi_store_relaxed(&slot->contest_holder, contest ? (uintptr_t)contest->holder_site : 0);
    rsi_slot_changed(slot);
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
    (void)rsi_writer_lock(writer, &key,
                          name); /* so that name and files of code are known before the end */
    show_contest(contest);
}

void rsi_contest_end_slow(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                          const void *lock, const char *const *name, const void *site, bool is_got)
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
    rsi_count(entry->acquired, is_got);
    rsi_count(entry->given_up, !is_got);
    rsi_count(entry->wait_ticks, ticks);
    rsi_count_most(entry->wait_most, ticks);
    rsi_count(entry->spin_ticks, contest->spin_ticks);
    rsi_count(entry->spun, is_got && !contest->has_slept);
    if (rsi_trace_is_on())
        rsi_trace_lock(writer, rsi_exec_self()->current, contest, &key,
                       is_got ? ROUSE_VERDICT_USEFUL : ROUSE_VERDICT_TIMEOUT, now);
}

void rsi_account_steal(struct rsi_worker *w, unsigned count)
{
    struct rsi_writer *writer = w->exec.writer;
    if (!writer)
        return;
    rsi_count(writer->shared->steals, 1);
    rsi_count(writer->shared->stolen, count);
    if (rsi_trace_is_on())
        rsi_trace_steal(writer, count);
}

void rsi_account_lateness(uint64_t late_ns)
{
    /* Not that of the worker whose timer it is: a watcher may be at it. In a section: none is made here. */
    struct rsi_writer *writer = rsi_exec_self()->writer;
    if (!writer)
        return;
    rsi_count(writer->shared->lateness[rsi_log2(late_ns, RSI_STORE_LATENESS - 1)], 1);
    rsi_count(writer->shared->lateness_ticks, late_ns);
    rsi_count_most(writer->shared->lateness_most, late_ns);
}
