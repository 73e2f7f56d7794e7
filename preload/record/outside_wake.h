/* SPDX-License-Identifier: MIT */
/* outside_wake.h - wake-ups that come from another process of the program. */
#ifndef RPI_RECORD_OUTSIDE_WAKE_H
#define RPI_RECORD_OUTSIDE_WAKE_H

#include "process/linkage.h"
#include "record/thread.h"

#include <unistd.h>

struct rpi_outside_table;
extern RPI_HIDDEN struct rpi_outside_table
    *rpi_outside_table; /* NULL: no lock is shared between processes */

/*
 * The program makes a lock that processes share: from now on its wake-ups are noted, in this process and in those that
 * it forks. To be called before the lock is made. Any thread, not in a signal handler. Leaves errno alone.
 */
void rpi_outside_begin(void);

/* The key of a wake-up by this object. */
RSI_INLINE uint64_t rpi_outside_object(const void *object)
{
    return (uintptr_t)object;
}

/* A signal to a process. */
#define RPI_OUTSIDE_SIGNALS (UINT64_C(1) << 63) /* no address has this bit */
RSI_INLINE uint64_t rpi_outside_process(pid_t pid)
{
    return RPI_OUTSIDE_SIGNALS | (uint32_t)pid;
}

/* self, which is busy, is about to wake waiters of key, perhaps in another process. */
void rpi_outside_put(const struct rpi_thread *self, uint64_t key, const void *site);

/* Likewise for the calling thread. Leaves errno alone. */
void rpi_outside_note_slow(uint64_t key, const void *site);
RSI_INLINE void rpi_outside_note(uint64_t key, const void *site)
{
    if (rsi_unlikely(rsi_load_relaxed(&rpi_outside_table) != NULL))
        rpi_outside_note_slow(key, site);
}

/* The last noted wake-up of key from since to now: sets *mark if there is one. self is busy. */
void rpi_outside_find(const struct rpi_thread *self, uint64_t key, uint64_t since, uint64_t now,
                      struct rpi_mark *mark);

#endif
