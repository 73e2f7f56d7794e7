/* SPDX-License-Identifier: MIT */
/* tuning.h - changes that `rouse run` makes to the program on request. */
#ifndef RPI_PROCESS_TUNING_H
#define RPI_PROCESS_TUNING_H

#include "process/linkage.h"

#include <stdint.h>

/* How long to try for a held mutex before its thread sleeps. 0: do not (hooks/mutex.c). */
extern RPI_HIDDEN uint64_t rpi_tuning_spin_ns;

/*
 * The mutex that each of its holders keeps for a while longer. NULL: none. Each unlock compares it: 2 of the 129
 * instructions of a pair of lock and unlock.
 */
extern RPI_HIDDEN const void *rpi_tuning_delayed;
void rpi_tuning_delay(void); /* its holder is about to release it */

void rpi_tuning_setup(void); /* read the environment and set the timer slack */
void rpi_tuning_note(void);  /* in the head of the file */

#endif
