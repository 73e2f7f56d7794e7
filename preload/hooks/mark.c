/* SPDX-License-Identifier: MIT */
/* mark.c - what <rouse/mark.h> calls: it looks this function up by its name. */
#include "process/linkage.h"
#include "record/event.h"

#include <errno.h>

RPI_EXPORT void rouse_run_mark_record(const char *name, uint64_t id, int is_end);

RPI_EXPORT RSI_NOINLINE void rouse_run_mark_record(const char *name, uint64_t id, int is_end)
{
    if (rpi_event_pages == 0)
        return;
    int error = errno;
    struct rpi_thread *self = rpi_self ? rpi_self : rpi_thread_enter();
    if (self && rpi_thread_begin(self)) {
        rpi_event_mark(self, name, id, RSI_CALLER(), is_end != 0);
        self->is_busy = false;
    }
    errno = error;
}
