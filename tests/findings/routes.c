/* SPDX-License-Identifier: MIT */
/*
 * routes.c - a routing table with a read-write lock. Fault: readers ask a slow name server while they hold the lock,
 * and readers that come later overtake the writers, which starve.
 *
 * Repair: readers copy the entry, and ask without the lock.
 */
#include "findings.h"

enum { THREADS = 6, ROUTES = 256, READS_PER_WRITE = 3, NAME_US = 400, ROUTE_BYTES = 20000 };

static pthread_rwlock_t routes_lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t routes[ROUTES];

static uint64_t resolve_name(uint64_t route)
{
    usleep(NAME_US); /* the name server answers */
    return route;
}

static uint64_t find_route(uint64_t key)
{
    pthread_rwlock_rdlock(&routes_lock);
    uint64_t route = routes[key % ROUTES];
    if (!is_fixed)
        route = resolve_name(route);
    pthread_rwlock_unlock(&routes_lock);
    return is_fixed ? resolve_name(route) : route;
}

static void add_route(uint64_t key)
{
    pthread_rwlock_wrlock(&routes_lock);
    routes[key % ROUTES] = digest(key, ROUTE_BYTES);
    pthread_rwlock_unlock(&routes_lock);
}

static void *forward(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    uint64_t sent = 0;
    for (; !is_over(); ops++) {
        uint64_t key = draw(&self->seed) >> 8;
        if (key % (READS_PER_WRITE + 1) == 0)
            add_route(key >> 8);
        else
            sent += find_route(key >> 8);
    }
    self->ops = ops;
    self->seed = sent;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, forward));
    return 0;
}
