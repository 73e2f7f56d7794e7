/* SPDX-License-Identifier: MIT */
/*
 * event_ring.c - rings of events in the shared file.
 *
 * An event is four words in memory that only its writer writes, followed by an update of the count: no locked
 * instruction. A ring stays with its writer, also when a later kernel thread continues that.
 * Rejected: a second file for the rings. It would have to be found, protected and copied like the first. A reader
 * that needs no events skips their chunks.
 */
#include "obs/event_ring.h"

#include <string.h>

static uint64_t ring_bytes; /* allocated to rings, or requested without success; any thread adds */

/* A small file has to have room for the sums too. */
static uint64_t bytes_most(void)
{
    uint64_t half = rsi_file_bytes_most() / 2;
    return half < RSI_STORE_RINGS_MAX ? half : RSI_STORE_RINGS_MAX;
}

void rsi_event_ring_make(struct rsi_writer *writer, unsigned plenty, unsigned later)
{
    uint64_t most = bytes_most();
    bool is_plenty = rsi_load_relaxed(&ring_bytes) < most / 2;
    unsigned pages = is_plenty ? plenty : later;
    uint64_t bytes = (uint64_t)pages * RSI_PAGE;
    if (rsi_fetch_add_relaxed(&ring_bytes, bytes) + bytes <= most)
        writer->ring =
            rsi_file_chunk(RSI_STORE_EVENTS, sizeof(struct rsi_store_event), pages, writer->index);
    writer->is_ringless = !writer->ring;
}

void rsi_event_ring_end(struct rsi_writer *writer, uint64_t thread_id,
                        const char name[RSI_EVENT_RING_NAME], uint64_t now)
{
    uint64_t words[4] = { 0 };
    _Static_assert(sizeof words >= RSI_EVENT_RING_NAME, "a name is two events");
    memcpy(words, name, RSI_EVENT_RING_NAME);
    for (unsigned i = 0; i < 2 && words[2 * i]; i++)
        rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_NAME, i, 0, thread_id),
                           words[2 * i], words[2 * i + 1]);
    rsi_event_ring_put(writer, now, rsi_event_ring_what(RSI_EVENT_END, 0, 0, thread_id), 0, 0);
}

void rsi_event_ring_child(void)
{
    ring_bytes = 0;
}
