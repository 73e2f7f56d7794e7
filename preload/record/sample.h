/* SPDX-License-Identifier: MIT */
/*
 * sample.h - chooses which acquisitions of free locks are timed.
 *
 * Each acquisition is chosen with the chance 1/N, independent of all others, and counts N times. So the sums are right
 * on average, whatever the program does (Horvitz and Thompson, 1952). Every Nth acquisition would be wrong: a program
 * that takes turns may hold the lock longest each Nth time. The gap to the next chosen one is drawn at once, from the
 * geometric distribution, so that the others only count down.
 *
 * N is a power of 2 and follows the rate of acquisitions in the thread's place for the lock: a lock that is acquired
 * seldom has each acquisition timed. It is larger for all locks of a thread that would else spend more than about a
 * hundredth of its CPU time on samples. N depends on earlier acquisitions alone, which keeps the sums right.
 */
#ifndef RPI_RECORD_SAMPLE_H
#define RPI_RECORD_SAMPLE_H

#include "record/thread.h"

/* An acquisition is chosen: draw the gap to the next one. Returns N, its weight, or 0 if recording has ended. */
uint32_t rpi_sample_next(struct rpi_thread *self, struct rpi_held *held);

#endif
