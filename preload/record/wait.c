/* SPDX-License-Identifier: MIT */
/*
 * wait.c - records each wait: in the thread's slot, as its microstates, and in the ledger of wake-ups. It does for
 * kernel threads what core/account.c does for rouse threads. Here the waiter itself writes all words of its slot, and
 * those of its wake-up after it has returned.
 */
#include "record/wait.h"

#include "obs/module.h"
#include "obs/site.h"
#include "os/os.h"
#include "process/stack.h"
#include "record/event.h"
#include "record/hold.h"
#include "record/init_site.h"
#include "record/outside_wake.h"
#include "record/wait_ring.h"
#include "record/waiters.h"

#include <signal.h>

/* The kernel uses at least this much of a stack for a handler's frame. */
#define HANDLER_BYTES 1024u

static void note_sleep(struct rpi_thread *self, enum rouse_wait_kind kind, const void *object,
                       uint64_t site, bool is_for_clients, uint64_t now)
{
    struct rsi_store_thread *slot = self->slot;
    rsi_module_note(self->writer, site); /* now, since the wait may never end */
    uint32_t seq = rsi_slot_change(slot);
    rsi_count(slot->ticks[RSI_IN_USR], now - slot->run_tsc);
    rsi_store_relaxed(&slot->since_tsc, now);
    rsi_store_relaxed(&slot->kind, (uint16_t)kind);
    rsi_store_relaxed(&slot->is_for_clients, (uint8_t)is_for_clients);
    rsi_store_relaxed(&slot->object, (uint64_t)(uintptr_t)object);
    rsi_store_relaxed(&slot->wait_site, site);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_WAIT);
    rsi_slot_changed(slot, seq);
    if (rsi_unlikely(rpi_wait_rings != NULL))
        rpi_wait_ring_put(self, kind, site);
}

/* Inside a change of the slot. */
static void hide_contest(struct rpi_thread *self)
{
    if (rsi_likely(!self->shows_contest))
        return;
    self->shows_contest = false;
    rsi_store_relaxed(&self->slot->contest_tsc, UINT64_C(0));
}

void rpi_wait_show(const struct rpi_wait *wait, const struct rpi_contest *contest)
{
    struct rpi_thread *self = wait->self;
    rsi_module_note(self->writer, contest->key.holder_site);
    uint32_t seq = rsi_slot_change(self->slot);
    rsi_store_relaxed(&self->slot->contest_tsc, contest->since);
    rsi_store_relaxed(&self->slot->contest_holder, contest->key.holder_site);
    rsi_store_relaxed(&self->slot->holder_tid, contest->holder_tid);
    rsi_slot_changed(self->slot, seq);
    self->shows_contest = true;
}

/* The name in place of an object's, for all waits for clients; 0: not made yet. */
static uint32_t clients_name;

static RSI_COLD uint32_t clients_name_new(struct rsi_writer *writer)
{
    uint32_t before = 0, made = rsi_writer_label(writer, "clients");
    return made && rsi_cas_relaxed(&clients_name, &before, made) ? made : before;
}

static uint32_t name_of_clients(struct rsi_writer *writer)
{
    uint32_t name = rsi_load_relaxed(&clients_name);
    return rsi_likely(name != 0) ? name : clients_name_new(writer);
}

/* A poll that a signal ended was a wait for the sender, not for a descriptor. */
static void count(struct rpi_thread *self, const struct rpi_mark *mark, uint32_t verdict,
                  uint64_t waited, uint64_t late)
{
    struct rsi_store_thread *slot = self->slot;
    const struct rsi_wait_class *class = &rsi_wait_classes[slot->kind];
    struct rsi_wake_key key = { slot->wait_site, slot->wake_site,
                                class->has_object ? slot->object : 0, slot->kind, self->name };
    struct rsi_store_wake *wake = rsi_writer_wake(self->writer, &key, NULL);
    rsi_count(slot->ticks[mark->is_signal ? RSI_IN_COND : rpi_thread_waits_in(slot)], waited);
    rsi_count(slot->ticks[RSI_IN_LAT], late);
    rsi_count(slot->waits, 1);
    self->last_wake = wake;
    if (wake)
        rsi_wake_count(wake, verdict, waited, late);
    else
        rsi_count(self->writer->shared->lost_wakes, 1);
}

/*
 * Other threads used the cache during the sleep. So prefetch all lines that the end of a wait writes, instead of one
 * miss after another.
 */
static void warm(const struct rpi_thread *self)
{
    const char *slot = (const char *)self->slot, *wake = (const char *)self->last_wake;
    __builtin_prefetch(slot, 1);
    __builtin_prefetch(slot + RSI_CACHE_LINE, 1);
    __builtin_prefetch(slot + 2 * RSI_CACHE_LINE, 1);
    __builtin_prefetch(wake, 1); /* most waits are counted in the same row as the last */
    __builtin_prefetch(wake + RSI_CACHE_LINE, 1);
    if (rsi_unlikely(rpi_hold_takes_all))
        rpi_hold_warm(self);
}

/*
 * For how long a thread that was woken at a condition then waited for the mutex: as long as it was held. 0: it was free
 * for half of the way or more, so that the thread may have found it so.
 */
static uint64_t ticks_for_mutex(const struct rpi_mark *mark, uint64_t woken, uint64_t now)
{
    uint64_t way = now - woken, held = mark->held_ticks < way ? mark->held_ticks : way;
    return held > way - held ? held : 0;
}

/* After the wait for the condition: that for its mutex, from since on. Its states are counted. */
static void count_mutex(struct rpi_thread *self, const struct rpi_mark *mark, uint64_t since,
                        uint64_t ticks, uint64_t now)
{
    struct rsi_store_thread *slot = self->slot;
    uint32_t name = rpi_init_site_name(self->writer, self->mutex);
    struct rsi_wake_key key = { slot->wait_site, mark->released_site, (uintptr_t)self->mutex,
                                ROUSE_WAIT_MUTEX, name };
    struct rpi_contest contest = { .key = { (uintptr_t)self->mutex, slot->wait_site,
                                            mark->holder_site, ROUSE_WAIT_MUTEX, name },
                                   .since = since };
    struct rsi_store_wake *wake = rsi_writer_wake(self->writer, &key, NULL);
    if (rsi_unlikely(rpi_event_pages != 0))
        rpi_event_wait_for_mutex(self, mark, since, ticks, now);
    rpi_waiters_unmark_released(self->mutex, mark);
    rsi_module_note(self->writer, mark->released_site);
    rsi_module_note(self->writer, mark->holder_site);
    if (wake)
        rsi_wake_count(wake, ROUSE_VERDICT_USEFUL, ticks, now - since - ticks);
    else
        rsi_count(self->writer->shared->lost_wakes, 1);
    rpi_contest_end(self, &contest, true, now, false);
}

/* Returns for how long the wait went on for a mutex. */
static uint64_t note_run(struct rpi_thread *self, const struct rpi_mark *mark,
                         enum rouse_verdict verdict, uint64_t now)
{
    struct rsi_store_thread *slot = self->slot;
    uint64_t since = slot->since_tsc, woken = mark->tsc ? mark->tsc : now;
    woken = woken < since ? since : woken > now ? now : woken;
    uint64_t for_mutex = ticks_for_mutex(mark, woken, now);
    if (rsi_unlikely(rpi_event_pages != 0))
        rpi_event_wait(self, mark, woken, verdict, for_mutex ? woken : now);
    uint32_t seq = rsi_slot_change(slot);
    rsi_store_relaxed(&slot->wake_site, mark->site);
    rsi_store_relaxed(&slot->waker_id, mark->waker_id);
    rsi_store_relaxed(&slot->wake_tsc, woken);
    rsi_store_relaxed(&slot->verdict, (uint16_t)verdict);
    if (rsi_unlikely(for_mutex)) {
        count(self, mark, verdict, woken - since, 0);
        rsi_count(slot->ticks[RSI_IN_MUTEX], for_mutex);
        rsi_count(slot->ticks[RSI_IN_LAT], now - woken - for_mutex);
        rsi_count(slot->waits, 1);
    } else {
        count(self, mark, verdict, woken - since, now - woken);
    }
    hide_contest(self);
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_RUN);
    rsi_store_relaxed(&slot->run_tsc, now);
    rsi_slot_changed(slot, seq);
    if (rsi_unlikely(rpi_wait_rings != NULL))
        rpi_wait_ring_close(self);
    rsi_file_tick_tsc(now);
    return for_mutex;
}

static void undo_sleep(struct rpi_thread *self, uint64_t now)
{
    uint32_t seq = rsi_slot_change(self->slot);
    rsi_count(self->slot->ticks[RSI_IN_USR], now - self->slot->since_tsc);
    hide_contest(self);
    rsi_store_relaxed(&self->slot->doing, (uint16_t)RSI_DOES_RUN);
    rsi_store_relaxed(&self->slot->run_tsc, now);
    rsi_slot_changed(self->slot, seq);
    if (rsi_unlikely(rpi_wait_rings != NULL))
        rpi_wait_ring_close(self);
}

void rpi_wait_was_useless(struct rpi_thread *self, const struct rsi_wake_key *key,
                          enum rouse_verdict verdict, uint64_t now)
{
    struct rsi_store_wake *wake = rsi_writer_wake(self->writer, key, NULL);
    rsi_count(self->slot->useless, 1);
    if (rsi_unlikely(rpi_event_pages != 0))
        rpi_event_verdict(self, key->kind, verdict, now);
    if (!wake)
        return;
    rsi_count(wake->count[ROUSE_VERDICT_USEFUL], -UINT64_C(1));
    rsi_count(wake->count[verdict], 1);
    rsi_count(wake->waste_ticks, now - self->slot->run_tsc);
}

void rpi_wait_count_call(enum rouse_wait_kind kind)
{
    struct rpi_thread *self = rpi_self;
    if (!self || !self->writer || self->is_busy || !*rpi_recording_here)
        return;
    self->is_ready = false;
    self->slept_site = NULL;
    self->dry_fd = -1;
    rsi_count(self->writer->shared->calls[kind], 1);
    if (kind == ROUSE_WAIT_ACCEPT && self->slot) /* no slot: there was no room for one */
        rsi_count(self->slot->accepted, 1);
}

void rpi_wait_found_nothing(int fd)
{
    struct rpi_thread *self = rpi_self;
    if (!self)
        return;
    self->dry_fd = fd;
    if (!self->is_ready || !rpi_thread_begin(self))
        return;
    const struct rsi_store_thread *slot = self->slot;
    struct rsi_wake_key key = { slot->wait_site, slot->wake_site, 0, slot->kind, self->name };
    int error = errno;
    self->is_ready = false;
    rpi_wait_was_useless(self, &key, ROUSE_VERDICT_LOST_RACE, rsi_tsc());
    errno = error;
    self->is_busy = false;
}

/*
 * Whether self has left its wait by siglongjmp. If the frame of the next wait lies at or above the frame of the old
 * one, the old one is gone: during a wait only a handler can run, and its frames lie far below or on another stack. A
 * jump that is followed only by deeper calls is not noticed. Locks that our own code takes at the begin or end of a
 * wait also reach this check.
 */
static RSI_COLD bool is_left(const struct rpi_thread *self, const struct rpi_wait *next)
{
    uintptr_t was = (uintptr_t)self->wait, is = (uintptr_t)next;
    stack_t handlers;
    if (was == 0 || !self->is_asleep || is + HANDLER_BYTES <= was || !self->writer ||
        !*rpi_recording_here)
        return false;
    uintptr_t end = rpi_stack_end(self->writer, is);
    return end && end == rpi_stack_end(self->writer, was) && sigaltstack(NULL, &handlers) == 0 &&
           !(handlers.ss_flags & SS_ONSTACK);
}

/* Count the wait as cancelled just now. The time of the jump is unknown. */
static RSI_COLD void end_left(struct rpi_thread *self)
{
    struct rpi_mark mark = { 0 };
    int error = errno;
    self->is_asleep = false;
    if (self->object)
        rpi_waiters_leave(self, false, &mark);
    note_run(self, &(struct rpi_mark){ 0 }, ROUSE_VERDICT_CANCELLED, rsi_tsc());
    self->wait = NULL;
    self->is_busy = false;
    errno = error;
}

bool rpi_wait_is_any;

void rpi_wait_child(void)
{
    rpi_wait_is_any = false;
    clients_name = 0; /* the child has a file of its own */
}

bool rpi_wait_begin(struct rpi_wait *wait, enum rouse_wait_kind kind, const void *object,
                    const void *site)
{
    return rpi_wait_begin_for(wait, kind, object, site, false);
}

bool rpi_wait_begin_for(struct rpi_wait *wait, enum rouse_wait_kind kind, const void *object,
                        const void *site, bool is_for_clients)
{
    struct rpi_thread *self = rpi_self;
    if (!self && !(self = rpi_thread_enter()))
        return false;
    if (rsi_unlikely(self->is_busy) && is_left(self, wait))
        end_left(self);
    if (!rpi_thread_begin(self))
        return false;
    int error = errno;
    *wait =
        (struct rpi_wait){ .self = self,
                           .since = rsi_tsc(),
                           .is_queued = kind < ROUSE_WAIT_SLEEP || kind == RSI_STORE_WAIT_FUTEX };
    self->wait = wait;
    self->is_ready = false;
    if (kind != RSI_STORE_WAIT_CHILD && !rsi_load_relaxed(&rpi_wait_is_any))
        rsi_store_relaxed(&rpi_wait_is_any, true);
    /* Now, since the call that ends the wait may destroy the object. */
    self->name = rsi_wait_classes[kind].has_object ? rpi_init_site_name(self->writer, object)
                 : is_for_clients                  ? name_of_clients(self->writer)
                                                   : 0;
    note_sleep(self, kind, object, rsi_site_of(self->writer, site), is_for_clients, wait->since);
    if (wait->is_queued)
        rpi_waiters_join(self, object);
    rsi_compiler_barrier(); /* last: a handler that sees is_asleep finds the rest complete */
    self->is_asleep = true;
    errno = error;
    return true;
}

/* The wake-up may have come from another process: by the object, or by a signal, which also ends a poll. */
static RSI_COLD void find_outside(const struct rpi_thread *self, enum rouse_verdict verdict,
                                  bool is_woken, uint64_t now, struct rpi_mark *mark)
{
    const struct rsi_store_thread *slot = self->slot;
    bool is_signal = slot->kind == ROUSE_WAIT_POLL || slot->kind == ROUSE_WAIT_SET ||
                     slot->kind == RSI_STORE_WAIT_SIGNAL;
    if (is_signal && (is_woken || verdict == ROUSE_VERDICT_CANCELLED))
        rpi_outside_find(self, rpi_outside_process(getpid()), slot->since_tsc, now, mark);
    else if (is_woken && rsi_wait_classes[slot->kind].has_object)
        rpi_outside_find(self, slot->object, slot->since_tsc, now, mark);
}

bool rpi_wait_end(struct rpi_wait *wait, enum rouse_verdict verdict, struct rpi_contest *contest)
{
    int error = errno;
    struct rpi_thread *self = wait->self;
    if (rsi_unlikely(!rpi_wait_goes_on(wait)))
        return false;
    struct rpi_mark mark = { 0 };
    uint64_t now = rsi_tsc(), for_mutex = 0;
    self->is_asleep = false;
    rsi_compiler_barrier(); /* before our own first lock */
    warm(self);
    /* A futex whose word had changed before the sleep has lost a race too, but used up no wake-up. */
    bool is_woken = verdict == ROUSE_VERDICT_USEFUL || wait->has_lost;
    if (wait->is_queued)
        rpi_waiters_leave(self, is_woken, &mark);
    if (!is_woken)
        mark = (struct rpi_mark){ 0 };
    if (mark.tsc == 0 && rsi_unlikely(rsi_load_relaxed(&rpi_outside_table) != NULL))
        find_outside(self, verdict, is_woken, now, &mark);
    rsi_count(self->slot->useless, verdict == ROUSE_VERDICT_LOST_RACE);
    if (verdict != ROUSE_VERDICT_NONE)
        for_mutex = note_run(self, &mark, verdict, now);
    else
        undo_sleep(self, now);
    self->is_ready = verdict == ROUSE_VERDICT_USEFUL &&
                     (self->slot->kind == ROUSE_WAIT_SET || self->slot->kind == ROUSE_WAIT_POLL);
    if (contest && (contest->is_acquired || verdict != ROUSE_VERDICT_NONE)) {
        contest->key.site = self->slot->wait_site;
        contest->key.name = self->name;
        rpi_contest_end(self, contest, contest->is_acquired || verdict == ROUSE_VERDICT_USEFUL, now,
                        false);
    }
    wait->for_mutex = for_mutex != 0;
    if (rsi_unlikely(wait->for_mutex))
        count_mutex(self, &mark, self->slot->wake_tsc, for_mutex, now);
    self->wait = NULL;
    self->is_busy = false;
    errno = error;
    return true;
}

void rpi_wait_cancelled(void *wait)
{
    (void)rpi_wait_end(wait, ROUSE_VERDICT_CANCELLED, NULL);
}
