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

#define LABELS_MOST 64u
#define LABEL_NUMBER_MOST 0xffffu /* the bits of kind and verdict */

/* The names of requests that have a number. A thread claims a place by counting it, and then fills it. */
static struct {
    char text[sizeof(((struct rsi_store_name *)0)->text)];
    uint32_t number; /* release, after text; 0: not yet, or no room */
} labels[LABELS_MOST];
static uint32_t label_count; /* any thread adds, also beyond LABELS_MOST */

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

/* The number of a request's name + 1; 0: no room. Two threads that add a name at once both number it. */
static uint32_t label_of(struct rsi_writer *writer, const char *text)
{
    uint32_t count = rsi_load_relaxed(&label_count);
    for (uint32_t i = 0; i < count && i < LABELS_MOST; i++) {
        uint32_t number = rsi_load_acquire(&labels[i].number); /* pairs with the release below */
        if (number && strncmp(labels[i].text, text, sizeof labels[i].text - 1) == 0)
            return number;
    }
    if (count >= LABELS_MOST || (count = rsi_fetch_add_relaxed(&label_count, 1u)) >= LABELS_MOST)
        return 0;
    rsi_format(labels[count].text, sizeof labels[count].text, "%s", text);
    uint32_t number = rsi_writer_label(writer, text);
    number = number <= LABEL_NUMBER_MOST ? number : 0;
    rsi_store_release(&labels[count].number, number); /* pairs with the acquire above */
    return number;
}

void rsi_event_ring_mark(struct rsi_writer *writer, uint64_t thread_id, const char *name,
                         uint64_t id, uint64_t site, bool is_end)
{
    uint32_t number = label_of(writer, name);
    if (number == 0) {
        rsi_fetch_add_relaxed(&rsi_file_head->lost_events, UINT64_C(1));
        return;
    }
    if (rsi_unlikely(rsi_load_relaxed(&rsi_file_head->is_marked) == 0))
        rsi_store_relaxed(&rsi_file_head->is_marked, UINT64_C(1));
    rsi_event_ring_put(writer, rsi_tsc(),
                       rsi_event_ring_what(is_end ? RSI_EVENT_MARK_END : RSI_EVENT_MARK,
                                           number & 0xff, number >> 8, thread_id),
                       site, id);
}

void rsi_event_ring_child(void)
{
    ring_bytes = 0;
    memset(labels, 0, sizeof labels);
    label_count = 0;
}
