/* SPDX-License-Identifier: MIT */
/*
 * trace.c - records the events of rouse threads.
 *
 * They go into the rings of event_ring.c. A ring is created when its kernel thread first switches threads in trace mode.
 */
#include "obs/trace.h"

#include "core/core.h"
#include "obs/event_ring.h"
#include "obs/module.h"
#include "obs/site.h"

#include <rouse/mark.h>

#include <errno.h>

/*
 * Pages of a ring: for workers while there is plenty of room, for workers later, for other kernel threads.
 */
#define PLENTY_PAGES 2048u /* 262,136 events */
#define WORKER_PAGES 256u
#define KERNEL_PAGES 32u

/* The mode before another process requested events. OFF: none requests them. */
static uint32_t mode_before;

static RSI_COLD void make_ring(struct rsi_writer *writer)
{
    bool is_worker = rsi_load_relaxed(&writer->shared->is_worker) != 0;
    if (is_worker)
        rsi_event_ring_make(writer, PLENTY_PAGES, WORKER_PAGES);
    else
        rsi_event_ring_make(writer, KERNEL_PAGES, KERNEL_PAGES);
}

/*
 * Add what is known of the wait that has ended: the wake-up may have come from a kernel thread without a ring.
 */
static void put_run(struct rsi_writer *writer, const struct rouse_thread *t, uint64_t now)
{
    const struct rsi_store_thread *slot = t->waiter.record.slot;
    if (slot && slot->doing == RSI_DOES_WAIT)
        rsi_event_ring_put(
            writer, now,
            rsi_event_ring_what(RSI_EVENT_RUN, slot->kind, rsi_load_relaxed(&slot->verdict), t->id),
            rsi_load_relaxed(&slot->wake_site), rsi_load_relaxed(&slot->wake_tsc));
    else
        rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_RUN, 0, 0, t->id), 0, 0);
}

RSI_NOINLINE void rsi_trace_switch(struct rsi_writer *writer, const struct rouse_thread *self,
                                   const struct rouse_thread *to, enum rsi_leave why, uint64_t now)
{
    if (rsi_unlikely(!writer->ring) && !writer->is_ringless)
        make_ring(writer);
    if (self && why == RSI_LEAVES_WAITING)
        rsi_event_ring_put(
            writer, now, rsi_event_ring_what(RSI_EVENT_WAIT, self->waiter.record.kind, 0, self->id),
            rsi_site_of(writer, self->waiter.record.wait_site),
            (uintptr_t)self->waiter.record.object);
    else if (self && why == RSI_LEAVES_QUEUED)
        rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_YIELD, 0, 0, self->id), 0, 0);
    if (to)
        put_run(writer, to, now);
    else
        rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_IDLE, 0, 0, 0), 0, 0);
}

/* Whether the poller ends waits of a kind, unless a thread, a timer or a cancellation does. */
static bool is_polled(uint32_t kind)
{
    return kind == ROUSE_WAIT_READ || kind == ROUSE_WAIT_WRITE || kind == ROUSE_WAIT_ACCEPT ||
           kind == ROUSE_WAIT_CONNECT || kind == ROUSE_WAIT_SET || kind == ROUSE_WAIT_POLL;
}

RSI_NOINLINE void rsi_trace_wake(struct rsi_writer *writer, const struct rouse_thread *t,
                                 uint32_t verdict, uint64_t site, uint64_t waker_id)
{
    uint32_t kind = rsi_load_relaxed(&t->waiter.record.kind);
    if (!site && verdict == ROUSE_VERDICT_USEFUL && is_polled(kind))
        rsi_event_ring_put(writer, rsi_tsc(),
                           rsi_event_ring_what(RSI_EVENT_IO, kind, verdict, t->id), 0,
                           (uintptr_t)t->waiter.record.object);
    else
        rsi_event_ring_put(writer, rsi_tsc(),
                           rsi_event_ring_what(RSI_EVENT_WAKE, kind, verdict, t->id), site,
                           waker_id);
}

RSI_NOINLINE void rsi_trace_verdict(struct rsi_writer *writer, const struct rouse_thread *t,
                                    uint32_t kind, uint32_t verdict)
{
    rsi_event_ring_put(writer, rsi_tsc(),
                       rsi_event_ring_what(RSI_EVENT_VERDICT, kind, verdict, t->id), 0, 0);
}

RSI_NOINLINE void rsi_trace_steal(struct rsi_writer *writer, unsigned count)
{
    rsi_event_ring_put(writer, rsi_tsc(), rsi_event_ring_what(RSI_EVENT_STEAL, 0, 0, 0), 0, count);
}

RSI_NOINLINE void rsi_trace_lock(struct rsi_writer *writer, const struct rouse_thread *self,
                                 const struct rsi_contest *contest, const struct rsi_lock_key *key,
                                 uint32_t verdict, uint64_t now)
{
    rsi_event_ring_put(writer, contest->since_tsc,
                       rsi_event_ring_what(RSI_EVENT_LOCK, key->kind, 0, self->id), key->site,
                       key->lock);
    rsi_event_ring_put(writer, now,
                       rsi_event_ring_what(RSI_EVENT_GOT, key->kind, verdict, self->id),
                       key->holder_site, contest->spin_ticks);
}

RSI_NOINLINE void rsi_trace_new(struct rsi_writer *writer, const struct rouse_thread *t,
                                uint64_t maker_id, uint64_t now)
{
    rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_NEW, 0, 0, t->id), 0, maker_id);
}

RSI_NOINLINE void rsi_trace_end(struct rsi_writer *writer, const struct rouse_thread *self)
{
    char name[RSI_EVENT_RING_NAME] = "";
    _Static_assert(sizeof name == ROUSE_NAME_BYTES, "no name is cut");
    rouse_thread_name(self, name, sizeof name);
    rsi_event_ring_end(writer, self->id, name, rsi_tsc());
}

void rouse_mark_record(const char *name, uint64_t id, int is_end)
{
    if (!rsi_trace_is_on())
        return;
    int error = errno;
    const struct rouse_thread *self = rsi_self();
    struct rsi_writer *writer = rsi_account_writer();
    if (writer) {
        if (rsi_unlikely(!writer->ring) && !writer->is_ringless)
            make_ring(writer);
        uint64_t site = rsi_site_of(writer, RSI_CALLER());
        rsi_module_note(writer, site);
        rsi_event_ring_mark(writer, self->id, name, id, site, is_end != 0);
    }
    errno = error;
}

/* If the program sets the mode at the same time, its mode wins. */
static void change_mode(uint32_t from, uint32_t to)
{
    uint32_t mode = from;
    if (!rsi_cas_relaxed(&rsi_obs_mode, &mode, to))
        return;
    rsi_store_relaxed(&mode_before, to == ROUSE_OBS_TRACE ? from : (uint32_t)ROUSE_OBS_OFF);
    rsi_store_relaxed(&rsi_file_head->mode, to);
}

void rsi_trace_look(uint64_t now_ns)
{
    const struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    uint64_t until_ns = head ? rsi_load_relaxed(&head->trace_until_ns) : 0;
    uint32_t mode = rsi_load_relaxed(&rsi_obs_mode), before = rsi_load_relaxed(&mode_before);
    if (now_ns < until_ns && mode != ROUSE_OBS_OFF && mode != ROUSE_OBS_TRACE)
        change_mode(mode, ROUSE_OBS_TRACE);
    else if (now_ns >= until_ns && before != ROUSE_OBS_OFF)
        change_mode(ROUSE_OBS_TRACE, before);
}

void rsi_trace_settled(void)
{
    rsi_store_relaxed(&mode_before, (uint32_t)ROUSE_OBS_OFF);
}

void rsi_trace_child(void)
{
    if (mode_before != ROUSE_OBS_OFF)
        rsi_store_relaxed(&rsi_obs_mode, mode_before);
    mode_before = ROUSE_OBS_OFF;
    rsi_event_ring_child();
}
