/* SPDX-License-Identifier: MIT */
/*
 * event_ring.h - rings of events in the shared file, one per writer; struct rsi_store_event says what they hold.
 *
 * src/obs/trace.c (the runtime) and preload/record/event.c (the interposer) fill them. Only the kernel thread of the
 * writer makes these calls with it. They are safe in signal handlers that do not interrupt one of them.
 */
#ifndef RSI_OBS_EVENT_RING_H
#define RSI_OBS_EVENT_RING_H

#include "obs/ledger.h"

#define RSI_EVENT_RING_NAME 24 /* bytes of a thread's name, with its end */

/*
 * Create the writer's ring, of `plenty` pages while rings have less than half of their room, and of `later` pages
 * then. If there is no room at all, the writer is ringless. Takes up to milliseconds, for the ring's memory.
 */
void rsi_event_ring_make(struct rsi_writer *writer, unsigned plenty, unsigned later);

/* In a child after fork: its file has no rings, and no names of requests. */
void rsi_event_ring_child(void);

/* The first word of an event. */
RSI_INLINE uint64_t rsi_event_ring_what(enum rsi_event type, uint64_t kind, uint64_t verdict,
                                        uint64_t thread_id)
{
    return (uint64_t)type | kind << 8 | verdict << 16 | thread_id << 24;
}

/* Without a ring, the event is counted as lost if there was no room for one, and otherwise dropped. */
RSI_INLINE void rsi_event_ring_put(struct rsi_writer *writer, uint64_t tsc, uint64_t word,
                                   uint64_t site, uint64_t value)
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

/*
 * The thread marks the request `id` of this name at site, or its end. The caller has noted site's module. The text is
 * read during the call.
 */
void rsi_event_ring_mark(struct rsi_writer *writer, uint64_t thread_id, const char *name,
                         uint64_t id, uint64_t site, bool is_end);

/* The end of a thread, preceded by its name if that is not empty. */
void rsi_event_ring_end(struct rsi_writer *writer, uint64_t thread_id,
                        const char name[RSI_EVENT_RING_NAME], uint64_t now);

#endif
