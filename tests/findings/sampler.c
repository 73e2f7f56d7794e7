/* SPDX-License-Identifier: MIT */
/*
 * sampler.c - threads that read a gauge every millisecond. Fault: to save power, the timers of the program have a slack
 * of 3 ms. So the kernel ends a sleep of 1 ms up to 3 ms late.
 *
 * Repair: the slack is 1 ns. An operation is a sample.
 */
#include "findings.h"

enum { THREADS = 2, PERIOD_US = 1000, GAUGE_US = 200, SLACK_NS = 3000000 };

static uint64_t read_gauge(int gauge, uint64_t last)
{
    service_ask(gauge, GAUGE_US);
    return digest(last, PAGE_BYTES);
}

static void *sample(void *arg)
{
    struct worker *self = arg;
    int gauge = service_open();
    for (; !is_over(); self->ops++) {
        self->seed = read_gauge(gauge, self->seed);
        usleep(PERIOD_US);
    }
    close(gauge);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    check(prctl(PR_SET_TIMERSLACK, is_fixed ? 1 : SLACK_NS) == 0);
    finish(run_threads(THREADS, sample));
    return 0;
}
