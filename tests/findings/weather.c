/* SPDX-License-Identifier: MIT */
/*
 * weather.c - a healthy program: one thread reads a station, which takes 2 ms, and another one evaluates each value.
 */
#include "findings.h"

enum { READ_US = 2000, VALUE_BYTES = 20000, VALUES_MOST = 64 };

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t value_came = PTHREAD_COND_INITIALIZER;
/* All under queue_lock. */
static uint64_t values[VALUES_MOST];
static unsigned long first, after;
static bool is_closed;

static uint64_t read_station(uint64_t number)
{
    usleep(READ_US); /* the station measures */
    return number;
}

static void *observe(void *arg)
{
    for (uint64_t number = 0; !is_over(); number++) {
        uint64_t value = read_station(number);
        pthread_mutex_lock(&queue_lock);
        if (after - first < VALUES_MOST)
            values[after++ % VALUES_MOST] = value;
        pthread_cond_signal(&value_came);
        pthread_mutex_unlock(&queue_lock);
    }
    pthread_mutex_lock(&queue_lock);
    is_closed = true;
    pthread_cond_signal(&value_came);
    pthread_mutex_unlock(&queue_lock);
    return arg;
}

static bool next_value(uint64_t *value)
{
    pthread_mutex_lock(&queue_lock);
    while (first == after && !is_closed)
        pthread_cond_wait(&value_came, &queue_lock);
    bool is_one = first != after;
    if (is_one)
        *value = values[first++ % VALUES_MOST];
    pthread_mutex_unlock(&queue_lock);
    return is_one;
}

static void *evaluate(void *arg)
{
    struct worker *self = arg;
    uint64_t value;
    unsigned long ops = 0;
    for (; next_value(&value); ops++)
        self->seed ^= digest(value, VALUE_BYTES);
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t observer;
    begin(argc, argv);
    check(pthread_create(&observer, NULL, observe, NULL) == 0);
    unsigned long ops = run_threads(1, evaluate);
    pthread_join(observer, NULL);
    finish(ops);
    return 0;
}
