/* SPDX-License-Identifier: MIT */
/*
 * wait_ring.h - shows readers in other processes which wait each thread is in (src/obs/waits.h).
 *
 * Nothing here but setup, child and finish may be called unless rpi_wait_rings is set.
 */
#ifndef RPI_RECORD_WAIT_RING_H
#define RPI_RECORD_WAIT_RING_H

#include "obs/waits.h"
#include "process/linkage.h"
#include "record/thread.h"

#include <rouse/obs.h>

extern RPI_HIDDEN struct rsi_waits *rpi_wait_rings; /* NULL: not requested */

void rpi_wait_ring_setup(void);
void rpi_wait_ring_child(void);

/* put: a wait begins. close: the wait that was put last has ended. finish: the thread is about to exit. */
void rpi_wait_ring_put(struct rpi_thread *self, enum rouse_wait_kind kind, uint64_t site);
void rpi_wait_ring_close(const struct rpi_thread *self);
void rpi_wait_ring_finish(const struct rpi_thread *thread);

#endif
