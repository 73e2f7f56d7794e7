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

#define FORK_TRIES 1000u

/*
 * The mode before another process requested events. OFF: none requests them. It and rsi_obs_mode change together, under
 * the guard: else a trace that ends on one worker while another begins the next one could leave the mode trace for ever.
 */
static uint32_t mode_before;
static uint32_t mode_guard;
static bool is_held_over_fork; /* under the runtime's lock */

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

/* Change the mode, under the guard. before: the one to return to when a request ends; OFF: none has begun. */
static void change_mode_locked(uint32_t mode, uint32_t before)
{
    rsi_store_relaxed(&rsi_obs_mode, mode);
    rsi_test_delay();
    rsi_store_relaxed(&mode_before, before);
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with rsi_file_open */
    if (head)
        rsi_store_relaxed(&head->mode, mode);
}

static bool is_to_begin(uint64_t now_ns, uint64_t until_ns)
{
    uint32_t mode = rsi_load_relaxed(&rsi_obs_mode);
    return now_ns < until_ns && mode != ROUSE_OBS_OFF && mode != ROUSE_OBS_TRACE;
}

static bool is_to_end(uint64_t now_ns, uint64_t until_ns)
{
    return now_ns >= until_ns && rsi_load_relaxed(&mode_before) != ROUSE_OBS_OFF;
}

void rsi_trace_look(uint64_t now_ns)
{
    const struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    uint64_t until_ns = head ? rsi_load_relaxed(&head->trace_until_ns) : 0;
    if (!is_to_begin(now_ns, until_ns) && !is_to_end(now_ns, until_ns))
        return;
    /* Not waited for: a signal handler may look while its own thread has the guard. A later look will do. */
    if (!rsi_guard_try(&mode_guard))
        return;
    if (is_to_begin(now_ns, until_ns))
        change_mode_locked(ROUSE_OBS_TRACE, rsi_obs_mode);
    else if (is_to_end(now_ns, until_ns))
        change_mode_locked(mode_before, ROUSE_OBS_OFF);
    rsi_guard_unlock(&mode_guard);
}

void rsi_trace_set_mode(uint32_t mode)
{
    rsi_guard_lock(&mode_guard);
    change_mode_locked(mode, ROUSE_OBS_OFF);
    rsi_guard_unlock(&mode_guard);
}

void rsi_trace_publish_mode(void)
{
    rsi_guard_lock(&mode_guard);
    change_mode_locked(rsi_obs_mode, mode_before);
    rsi_guard_unlock(&mode_guard);
}

/* Not for ever: a signal handler may fork while its own thread has the guard. */
void rsi_trace_fork_prepare(void)
{
    is_held_over_fork = false;
    for (unsigned i = 0; i < FORK_TRIES && !is_held_over_fork; i++) {
        is_held_over_fork = rsi_guard_try(&mode_guard);
        if (!is_held_over_fork)
            rsi_syscall0(SYS_sched_yield);
    }
}

void rsi_trace_fork_parent(void)
{
    if (is_held_over_fork)
        rsi_guard_unlock(&mode_guard);
}

void rsi_trace_child(void)
{
    mode_guard = 0;
    if (mode_before != ROUSE_OBS_OFF)
        rsi_store_relaxed(&rsi_obs_mode, mode_before);
    mode_before = ROUSE_OBS_OFF;
    rsi_event_ring_child();
}
