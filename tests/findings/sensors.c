/* SPDX-License-Identifier: MIT */
/*
 * sensors.c - a table of sensors. Fault: the lock of the table is held while a slow sensor is read.
 *
 * Repair: the sensor is read first, and the lock is held to store the value.
 */
#include "findings.h"

enum { THREADS = 6, SENSORS = 64, VALUE_BYTES = 10000, SENSOR_US = 500 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t values[SENSORS];

static uint64_t read_sensor(unsigned sensor)
{
    usleep(SENSOR_US); /* the device converts */
    return sensor;
}

static void refresh_sensor(unsigned sensor)
{
    uint64_t value = is_fixed ? read_sensor(sensor) : 0;
    pthread_mutex_lock(&table_lock);
    values[sensor] = is_fixed ? value : read_sensor(sensor);
    pthread_mutex_unlock(&table_lock);
}

static void *watch(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        unsigned sensor = (unsigned)(draw(&self->seed) % SENSORS);
        refresh_sensor(sensor);
        self->seed = digest(self->seed, VALUE_BYTES) | 1; /* check the limits */
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, watch));
    return 0;
}
