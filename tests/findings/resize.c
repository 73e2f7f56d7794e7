/* SPDX-License-Identifier: MIT */
/*
 * resize.c - pictures are divided among four threads, and main joins them. Fault: each thread has the same number of
 * pictures, but one has all of the large ones. It runs when the others have ended long ago.
 *
 * Repair: the threads take the next picture from a counter. An operation is a picture.
 */
#include "findings.h"

enum { THREADS = 4, PICTURES = 200, LARGE = PICTURES / THREADS, LARGE_TIMES = 5 };

static long small_us; /* so long that all pictures take about as long as was requested */
static unsigned next_picture;

static void resize(int disk, unsigned picture)
{
    service_ask(disk, picture < LARGE ? small_us * LARGE_TIMES : small_us);
}

static void *resize_part(void *arg)
{
    struct worker *self = arg;
    int disk = service_open();
    unsigned end = is_fixed ? PICTURES : (self->number + 1) * LARGE;
    for (unsigned picture = self->number * LARGE;; picture++) {
        if (is_fixed)
            picture = __atomic_fetch_add(&next_picture, 1, __ATOMIC_RELAXED);
        if (picture >= end)
            break;
        resize(disk, picture);
        self->ops++;
    }
    close(disk);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    small_us = (long)((until_ns - began_ns) / 1000 / LARGE / LARGE_TIMES);
    finish(run_threads(THREADS, resize_part));
    return 0;
}
