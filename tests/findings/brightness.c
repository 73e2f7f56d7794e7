/* SPDX-License-Identifier: MIT */
/*
 * brightness.c - threads that sum up the pixels of an image. Fault: they go down the columns, so that each pixel is a
 * cache miss. The threads never wait in a call, but the processors wait for memory.
 *
 * Repair: they go along the rows. An operation is one column, or one row of the same length.
 */
#include "findings.h"

enum { THREADS = 2, SIDE = 4096 };

static uint16_t image[SIDE][SIDE]; /* written before the threads start */

static uint64_t sum_line(unsigned line)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < SIDE; i++)
        sum += is_fixed ? image[line][i] : image[i][line];
    return sum;
}

static void *measure(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (uint64_t sum = 0; !is_over(); ops++) {
        sum += sum_line((unsigned)(draw(&self->seed) % SIDE));
        self->seed += sum & 2;
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    for (unsigned y = 0; y < SIDE; y++)
        for (unsigned x = 0; x < SIDE; x++)
            image[y][x] = (uint16_t)(x * y);
    begin(argc, argv);
    finish(run_threads(THREADS, measure));
    return 0;
}
