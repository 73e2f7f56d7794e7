/* SPDX-License-Identifier: MIT */
/*
 * districts.c - four districts, each with three threads and a lock of its own. Fault: a slow sensor is read under each lock.
 *
 * Repair: that of the first district is read before its lock is acquired. The other three stay as they are.
 */
#include "findings.h"

enum { THREADS = 12, DISTRICTS = 4, VALUE_BYTES = 10000, SENSOR_US = 500 };

static struct district {
    pthread_mutex_t lock;
    uint64_t level;
} districts[DISTRICTS];

static uint64_t read_level(unsigned district)
{
    usleep(SENSOR_US); /* the device converts */
    return district;
}

static void visit_district(unsigned number)
{
    struct district *district = &districts[number];
    bool is_repaired = is_fixed && number == 0;
    uint64_t level = is_repaired ? read_level(number) : 0;
    pthread_mutex_lock(&district->lock);
    district->level = is_repaired ? level : read_level(number);
    pthread_mutex_unlock(&district->lock);
}

static void *inspect(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        visit_district(self->number % DISTRICTS);
        self->seed = digest(self->seed, VALUE_BYTES) | 1; /* the report */
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    for (unsigned i = 0; i < DISTRICTS; i++)
        check(pthread_mutex_init(&districts[i].lock, NULL) == 0);
    finish(run_threads(THREADS, inspect));
    return 0;
}
