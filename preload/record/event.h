/* SPDX-License-Identifier: MIT */
/*
 * event.h - records each wait as events, in a ring per thread, where `rouse run --trace` asks for it.
 *
 * Each call but setup and child requires that rpi_event_pages is not 0, that the caller is the thread itself, and that
 * it is busy: so a signal handler cannot interrupt one with another.
 */
#ifndef RPI_RECORD_EVENT_H
#define RPI_RECORD_EVENT_H

#include "process/linkage.h"
#include "record/thread.h"

#include <rouse/obs.h>

/* Pages of a thread's ring. 0: no events are recorded. Written before any thread is recorded. */
extern RPI_HIDDEN unsigned rpi_event_pages;

void rpi_event_setup(void);

/* The thread has its slot: create its ring, unless an earlier thread has left one. */
void rpi_event_begin(const struct rpi_thread *self);

/*
 * The wait that self's slot describes ends now. To be called while the slot still has it: if the process is killed in
 * between, the reader finds the wait in both and counts it once.
 */
void rpi_event_wait(const struct rpi_thread *self, const struct rpi_mark *mark, uint64_t woken,
                    enum rouse_verdict verdict, uint64_t now);

/* After that, self waited for the mutex of a condition, for so many ticks, and runs now. */
void rpi_event_wait_for_mutex(const struct rpi_thread *self, const struct rpi_mark *mark,
                              uint64_t since, uint64_t ticks, uint64_t now);

/* The verdict on self's last wait, of this kind, has changed. */
void rpi_event_verdict(const struct rpi_thread *self, uint32_t kind, enum rouse_verdict verdict,
                       uint64_t now);

/* The thread marks a request, or its end, at site; see rouse/mark.h. */
void rpi_event_mark(const struct rpi_thread *self, const char *name, uint64_t id, const void *site,
                    bool is_end);

/* The thread ends. Its slot has its name. */
void rpi_event_end(const struct rpi_thread *self, uint64_t now);

#endif
