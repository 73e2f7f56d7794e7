/* SPDX-License-Identifier: MIT */
/*
 * event.c - writes the events of kernel threads, where `rouse run` asks for them (ROUSE_RUN_TRACE, KiB per ring).
 *
 * All events of a wait are written when it ends, since only then it is known whether the call has waited, and which
 * wake-up ended it. A wait under way is in the thread's slot, where the reader of a killed program finds it. The stamps
 * are those of the sums, so that events and sums agree.
 */
#include "record/event.h"

#include "obs/event_ring.h"
#include "obs/module.h"
#include "obs/site.h"

#include <stdlib.h>

#define LATER_PAGES 8u
#define KIB_MOST (unsigned long)(RSI_STORE_RINGS_MAX >> 10)

unsigned rpi_event_pages;

/* The command has checked the number. The program sees the variable too. */
void rpi_event_setup(void)
{
    const char *text = secure_getenv("ROUSE_RUN_TRACE");
    char *end = NULL;
    unsigned long kib = text ? strtoul(text, &end, 10) : 0;
    if (end && *end == 0 && kib <= KIB_MOST)
        rpi_event_pages = (unsigned)((kib * 1024 + RSI_PAGE - 1) / RSI_PAGE);
}

static void put(const struct rpi_thread *self, uint64_t tsc, enum rsi_event type, uint64_t kind,
                uint64_t verdict, uint64_t site, uint64_t value)
{
    rsi_event_ring_put(self->writer, tsc,
                       rsi_event_ring_what(type, kind, verdict, (uint64_t)self->tid), site, value);
}

void rpi_event_begin(const struct rpi_thread *self)
{
    unsigned later = rpi_event_pages < LATER_PAGES ? rpi_event_pages : LATER_PAGES;
    if (!self->writer->ring && !self->writer->is_ringless)
        rsi_event_ring_make(self->writer, rpi_event_pages, later);
    put(self, self->begin_tsc, RSI_EVENT_NEW, 0, 0, 0, 0);
}

void rpi_event_wait(const struct rpi_thread *self, const struct rpi_mark *mark, uint64_t woken,
                    enum rouse_verdict verdict, uint64_t now)
{
    const struct rsi_store_thread *slot = self->slot;
    put(self, slot->since_tsc, RSI_EVENT_WAIT, slot->kind, 0, slot->wait_site, slot->object);
    if (mark->tsc)
        put(self, woken, RSI_EVENT_WAKE, slot->kind, verdict, mark->site, mark->waker_id);
    put(self, now, RSI_EVENT_RUN, slot->kind, verdict, mark->site, mark->tsc ? woken : 0);
}

void rpi_event_wait_for_mutex(const struct rpi_thread *self, const struct rpi_mark *mark,
                              uint64_t since, uint64_t ticks, uint64_t now)
{
    const enum rouse_verdict verdict = ROUSE_VERDICT_USEFUL;
    put(self, since, RSI_EVENT_WAIT, ROUSE_WAIT_MUTEX, 0, self->slot->wait_site,
        (uintptr_t)self->mutex);
    put(self, since + ticks, RSI_EVENT_WAKE, ROUSE_WAIT_MUTEX, verdict, mark->released_site,
        mark->releaser_id);
    put(self, now, RSI_EVENT_RUN, ROUSE_WAIT_MUTEX, verdict, mark->released_site, since + ticks);
}

void rpi_event_verdict(const struct rpi_thread *self, uint32_t kind, enum rouse_verdict verdict,
                       uint64_t now)
{
    put(self, now, RSI_EVENT_VERDICT, kind, verdict, 0, 0);
}

void rpi_event_mark(const struct rpi_thread *self, const char *name, uint64_t id, const void *site,
                    bool is_end)
{
    uint64_t where = rsi_site_of(self->writer, site);
    rsi_module_note(self->writer, where);
    rsi_event_ring_mark(self->writer, (uint64_t)self->tid, name, id, where, is_end);
}

void rpi_event_end(const struct rpi_thread *self, uint64_t now)
{
    if (self->slot->doing == RSI_DOES_WAIT) /* it was cancelled there, or a handler ended it */
        rsi_event_ring_put(self->writer, self->slot->since_tsc,
                           rsi_event_ring_what(RSI_EVENT_WAIT, self->slot->kind, 0, self->slot->id),
                           self->slot->wait_site, self->slot->object);
    rsi_event_ring_end(self->writer, self->slot->id, self->slot->name, now);
}
