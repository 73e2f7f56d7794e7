/* SPDX-License-Identifier: MIT */
/*
 * diffusion.c - four threads that compute the rows of a grid, and meet at a barrier after each step. Fault: one thread has
 * 13 of 16 parts of the rows. The others arrive soon, and sleep.
 *
 * Repair: each thread has a quarter. An operation is a step.
 */
#include "findings.h"

enum { THREADS = 4, PART_BYTES = 30000, PARTS = 16 };

static pthread_barrier_t step_done;
static bool is_last_step; /* written by thread 0, between two barriers */

static uint64_t relax_rows(uint64_t row, unsigned parts)
{
    return digest(row, parts * PART_BYTES);
}

static void *simulate(void *arg)
{
    struct worker *self = arg;
    unsigned parts = is_fixed ? PARTS / THREADS : self->number == 0 ? PARTS - (THREADS - 1) : 1;
    uint64_t rows = self->number;
    for (bool is_last = false; !is_last; self->ops += self->number == 0) {
        rows = relax_rows(rows, parts);
        if (self->number == 0)
            is_last_step = is_over();
        pthread_barrier_wait(&step_done);
        is_last = is_last_step;
        pthread_barrier_wait(&step_done);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    pthread_barrier_init(&step_done, NULL, THREADS);
    finish(run_threads(THREADS, simulate));
    return 0;
}
