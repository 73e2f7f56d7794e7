/* SPDX-License-Identifier: MIT */
/*
 * timetable.c - a table with functions of its own to lock and unlock it. Fault: it is locked while a slow line is asked.
 *
 * Repair: the line is asked first, and the lock is held to store the answer.
 */
#include "findings.h"

enum { THREADS = 6, STATIONS = 64, PAGE = 10000, LINE_US = 500 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t departures[STATIONS];

__attribute__((noinline)) static void lock_table(void)
{
    check(pthread_mutex_lock(&table_lock) == 0);
}

__attribute__((noinline)) static void unlock_table(void)
{
    check(pthread_mutex_unlock(&table_lock) == 0);
}

__attribute__((noinline)) static uint64_t ask_line(unsigned station)
{
    usleep(LINE_US);
    return station;
}

__attribute__((noinline)) static uint64_t look_up(unsigned station)
{
    lock_table();
    uint64_t departure = departures[station];
    unlock_table();
    return departure;
}

__attribute__((noinline)) static void refresh_station(unsigned station)
{
    uint64_t departure = is_fixed ? ask_line(station) : 0;
    lock_table();
    departures[station] = is_fixed ? departure : ask_line(station);
    unlock_table();
}

static void *show(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        unsigned station = (unsigned)(draw(&self->seed) % STATIONS);
        refresh_station(station);
        self->seed = digest(self->seed ^ look_up(station), PAGE) | 1; /* the page */
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, show));
    return 0;
}
