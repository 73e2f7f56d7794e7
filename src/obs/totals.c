/* SPDX-License-Identifier: MIT */
/*
 * totals.c - sums of the process's own records: rouse_obs_totals.
 *
 * The rate of the time-stamp counter is computed from the instant in the file's head and the current time. The
 * second instant in the head, which readers in other processes use, can be a second old or missing.
 * A count that was corrected on another worker than the one that counted is "negative" there, so sums are modulo
 * 2^64. A sum below 0 was read between the two steps of a correction.
 */
#include "obs/file.h"
#include "os/os.h"

#include <errno.h>
#include <rouse/obs.h>
#include <string.h>

/* Kinds that are unknown to this library are not its own, and are skipped. */
static void wake_add(const void *entry, void *sum)
{
    const struct rsi_store_wake *wake = entry;
    struct rouse_totals *totals = sum;
    if (wake->kind >= ROUSE_WAIT_KINDS)
        return;
    for (unsigned i = 0; i < ROUSE_VERDICTS; i++)
        totals->wakes[wake->kind][i] += rsi_load_relaxed(&wake->count[i]);
    totals->wait_ns[wake->kind] += rsi_load_relaxed(&wake->wait_ticks);
    totals->late_ns[wake->kind] += rsi_load_relaxed(&wake->late_ticks);
    totals->waste_ns[wake->kind] += rsi_load_relaxed(&wake->waste_ticks);
}

static void lock_add(const void *entry, void *sum)
{
    const struct rsi_store_lock *lock = entry;
    struct rouse_totals *totals = sum;
    if (lock->kind >= ROUSE_WAIT_KINDS)
        return;
    totals->lock_contested[lock->kind] += rsi_load_relaxed(&lock->contested);
    totals->lock_wait_ns[lock->kind] += rsi_load_relaxed(&lock->wait_ticks);
    totals->lock_spin_ns[lock->kind] += rsi_load_relaxed(&lock->spin_ticks);
}

static void thread_add(const void *entry, void *sum)
{
    const struct rsi_store_thread *thread = entry;
    struct rouse_totals *totals = sum;
    totals->threads += rsi_load_relaxed(&thread->doing) != RSI_DOES_NOTHING;
}

static void writer_add(const void *entry, void *sum)
{
    const struct rsi_store_writer *writer = entry;
    struct rouse_totals *totals = sum;
    for (unsigned i = 0; i < ROUSE_WAIT_KINDS; i++)
        totals->calls[i] += rsi_load_relaxed(&writer->calls[i]);
    totals->signals_unheard += rsi_load_relaxed(&writer->signals_unheard);
    totals->broadcasts_unheard += rsi_load_relaxed(&writer->broadcasts_unheard);
    totals->switches += rsi_load_relaxed(&writer->switches);
    totals->threads_ended += rsi_load_relaxed(&writer->ended);
    totals->lost_threads += rsi_load_relaxed(&writer->lost_threads);
    totals->lost_wakes += rsi_load_relaxed(&writer->lost_wakes);
    totals->lost_locks += rsi_load_relaxed(&writer->lost_locks);
    totals->lost_names += rsi_load_relaxed(&writer->lost_names) +
                          rsi_load_relaxed(&writer->lost_stacks) +
                          rsi_load_relaxed(&writer->lost_modules);
}

static uint64_t count_of(uint64_t sum)
{
    return (int64_t)sum < 0 ? 0 : sum;
}

struct span {
    uint64_t ticks, ns;
};

static uint64_t ns_of(uint64_t ticks, struct span measured)
{
    return (uint64_t)((unsigned __int128)count_of(ticks) * measured.ns / measured.ticks);
}

int rouse_obs_totals(struct rouse_totals *totals)
{
    /* pairs with rsi_file_open */
    const struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head);
    memset(totals, 0, sizeof *totals);
    if (!head)
        return -ENODATA;
    rsi_file_visit(RSI_STORE_WAKES, wake_add, totals);
    rsi_file_visit(RSI_STORE_LOCKS, lock_add, totals);
    rsi_file_visit(RSI_STORE_THREADS, thread_add, totals);
    rsi_file_visit(RSI_STORE_WRITERS, writer_add, totals);
    struct span passed = { rsi_tsc() - head->tsc, rsi_now_ns() - head->monotonic_ns };
    if ((int64_t)passed.ticks <= 0)
        passed = (struct span){ 1, 0 };
    for (unsigned kind = 0; kind < ROUSE_WAIT_KINDS; kind++) {
        for (unsigned i = 0; i < ROUSE_VERDICTS; i++)
            totals->wakes[kind][i] = count_of(totals->wakes[kind][i]);
        totals->wait_ns[kind] = ns_of(totals->wait_ns[kind], passed);
        totals->late_ns[kind] = ns_of(totals->late_ns[kind], passed);
        totals->waste_ns[kind] = ns_of(totals->waste_ns[kind], passed);
        totals->lock_wait_ns[kind] = ns_of(totals->lock_wait_ns[kind], passed);
        totals->lock_spin_ns[kind] = ns_of(totals->lock_spin_ns[kind], passed);
    }
    return 0;
}
