/* SPDX-License-Identifier: MIT */
/*
 * stencil.c - four threads that meet at a barrier after each step. Fault: the rows are not divided evenly. One thread
 * has as many as the other three together, and they wait for it.
 *
 * Repair: each thread has a quarter. An operation is a step. Rows take time at a service, not on the processor.
 */
#include "findings.h"

enum { THREADS = 4, ROW_US = 100, ROWS = 24 };

static pthread_barrier_t step_done;
static bool is_last_step; /* written by thread 0, between two barriers */

static void compute_rows(int service, unsigned count)
{
    service_ask(service, (long)count * ROW_US);
}

static unsigned rows_of(unsigned number)
{
    if (is_fixed)
        return ROWS / THREADS;
    return number == 2 ? ROWS / 2 : ROWS / 2 / (THREADS - 1);
}

static void *step(void *arg)
{
    struct worker *self = arg;
    int service = service_open();
    for (bool is_last = false; !is_last; self->ops += self->number == 0) {
        compute_rows(service, rows_of(self->number));
        if (self->number == 0)
            is_last_step = is_over();
        pthread_barrier_wait(&step_done);
        is_last = is_last_step;
        pthread_barrier_wait(&step_done);
    }
    close(service);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    pthread_barrier_init(&step_done, NULL, THREADS);
    finish(run_threads(THREADS, step));
    return 0;
}
