/* SPDX-License-Identifier: MIT */
/*
 * trace.c - writes events into rings.
 *
 * An event is four words in memory that only its writer writes, followed by an update of the count: no locked
 * instruction. A ring is created when its kernel thread first switches threads in trace mode, and stays.
 * Rejected: a second file for the rings. It would have to be found, protected and copied like the first. A reader
 * that needs no events skips their chunks.
 */
#include "obs/trace.h"

#include "core/core.h"
#include "obs/site.h"

#include <string.h>

/*
 * Pages of a ring: for workers while there is plenty of room, for workers later, for other kernel threads.
 */
#define PLENTY_PAGES 2048u /* 262,136 events */
#define WORKER_PAGES 256u
#define KERNEL_PAGES 32u

static uint64_t ring_bytes; /* allocated to rings, or requested without success; any thread adds */
/* The mode before another process requested events. OFF: none requests them. */
static uint32_t mode_before;

static uint64_t what(enum rsi_event type, uint64_t kind, uint64_t verdict, uint64_t thread_id)
{
    return (uint64_t)type | kind << 8 | verdict << 16 | thread_id << 24;
}

RSI_INLINE void put(struct rsi_writer *writer, uint64_t tsc, uint64_t word, uint64_t site,
                    uint64_t value)
{
    struct rsi_store_chunk *ring = writer->ring;
    if (rsi_unlikely(!ring)) {
        if (writer->is_ringless)
            rsi_fetch_add_relaxed(&rsi_file_head->lost_events, UINT64_C(1));
        return;
    }
    struct rsi_store_event *event = rsi_chunk_entry(ring, writer->ring_next);
    /*
     * A reader that sees a word of this event also sees the earlier count, so it knows that the older event in this
     * entry is invalid.
     */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    rsi_store_relaxed(&event->tsc, tsc);
    rsi_store_relaxed(&event->what, word);
    rsi_store_relaxed(&event->site, site);
    rsi_store_relaxed(&event->value, value);
    writer->ring_next = writer->ring_next + 1 < ring->capacity ? writer->ring_next + 1 : 0;
    rsi_store_release(&ring->written, ring->written + 1); /* pairs with the reader's acquire */
}

static RSI_COLD void make_ring(struct rsi_writer *writer)
{
    bool is_worker = rsi_load_relaxed(&writer->shared->is_worker) != 0;
    bool is_plenty = rsi_load_relaxed(&ring_bytes) < RSI_STORE_RINGS_MAX / 2;
    unsigned pages = !is_worker ? KERNEL_PAGES : is_plenty ? PLENTY_PAGES : WORKER_PAGES;
    uint64_t bytes = (uint64_t)pages * RSI_PAGE;
    if (rsi_fetch_add_relaxed(&ring_bytes, bytes) + bytes <= RSI_STORE_RINGS_MAX)
        writer->ring =
            rsi_file_chunk(RSI_STORE_EVENTS, sizeof(struct rsi_store_event), pages, writer->index);
    writer->is_ringless = !writer->ring;
}

/*
 * Add what is known of the wait that has ended: the wake-up may have come from a kernel thread without a ring.
 */
static void put_run(struct rsi_writer *writer, const struct rouse_thread *t, uint64_t now)
{
    const struct rsi_store_thread *slot = t->waiter.record.slot;
    if (slot && slot->doing == RSI_DOES_WAIT)
        put(writer, now, what(RSI_EVENT_RUN, slot->kind, rsi_load_relaxed(&slot->verdict), t->id),
            rsi_load_relaxed(&slot->wake_site), rsi_load_relaxed(&slot->wake_tsc));
    else
        put(writer, now, what(RSI_EVENT_RUN, 0, 0, t->id), 0, 0);
}

RSI_NOINLINE void rsi_trace_switch(struct rsi_writer *writer, const struct rouse_thread *self,
                                   const struct rouse_thread *to, enum rsi_leave why, uint64_t now)
{
    if (rsi_unlikely(!writer->ring) && !writer->is_ringless)
        make_ring(writer);
    if (self && why == RSI_LEAVES_WAITING)
        put(writer, now, what(RSI_EVENT_WAIT, self->waiter.record.kind, 0, self->id),
            rsi_site_of(writer, self->waiter.record.wait_site),
            (uintptr_t)self->waiter.record.object);
    else if (self && why == RSI_LEAVES_QUEUED)
        put(writer, now, what(RSI_EVENT_YIELD, 0, 0, self->id), 0, 0);
    if (to)
        put_run(writer, to, now);
    else
        put(writer, now, what(RSI_EVENT_IDLE, 0, 0, 0), 0, 0);
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
        put(writer, rsi_tsc(), what(RSI_EVENT_IO, kind, verdict, t->id), 0,
            (uintptr_t)t->waiter.record.object);
    else
        put(writer, rsi_tsc(), what(RSI_EVENT_WAKE, kind, verdict, t->id), site, waker_id);
}

RSI_NOINLINE void rsi_trace_verdict(struct rsi_writer *writer, const struct rouse_thread *t,
                                    uint32_t kind, uint32_t verdict)
{
    put(writer, rsi_tsc(), what(RSI_EVENT_VERDICT, kind, verdict, t->id), 0, 0);
}

RSI_NOINLINE void rsi_trace_steal(struct rsi_writer *writer, unsigned count)
{
    put(writer, rsi_tsc(), what(RSI_EVENT_STEAL, 0, 0, 0), 0, count);
}

RSI_NOINLINE void rsi_trace_lock(struct rsi_writer *writer, const struct rouse_thread *self,
                                 const struct rsi_contest *contest, const struct rsi_lock_key *key,
                                 uint32_t verdict, uint64_t now)
{
    put(writer, contest->since_tsc, what(RSI_EVENT_LOCK, key->kind, 0, self->id), key->site,
        key->lock);
    put(writer, now, what(RSI_EVENT_GOT, key->kind, verdict, self->id), key->holder_site,
        contest->spin_ticks);
}

RSI_NOINLINE void rsi_trace_new(struct rsi_writer *writer, const struct rouse_thread *t,
                                uint64_t maker_id, uint64_t now)
{
    put(writer, now, what(RSI_EVENT_NEW, 0, 0, t->id), 0, maker_id);
}

RSI_NOINLINE void rsi_trace_end(struct rsi_writer *writer, const struct rouse_thread *self)
{
    uint64_t words[4] = { 0 }, now = rsi_tsc();
    _Static_assert(sizeof words >= ROUSE_NAME_BYTES, "a name is two events");
    char name[ROUSE_NAME_BYTES] = "";
    rouse_thread_name(self, name, sizeof name);
    memcpy(words, name, sizeof name);
    for (unsigned i = 0; i < 2 && words[2 * i]; i++)
        put(writer, now, what(RSI_EVENT_NAME, i, 0, self->id), words[2 * i], words[2 * i + 1]);
    put(writer, now, what(RSI_EVENT_END, 0, 0, self->id), 0, 0);
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
    ring_bytes = 0;
}
