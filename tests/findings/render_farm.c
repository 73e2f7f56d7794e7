/* SPDX-License-Identifier: MIT */
/*
 * render_farm.c - a healthy program: main waits for two threads that compute, and each part is taken from a counter
 * under a lock that is nearly always free.
 */
#include "findings.h"

enum { THREADS = 2, TILE_BYTES = 200000 };

static pthread_mutex_t tiles_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long tiles;

static unsigned long next_tile(void)
{
    pthread_mutex_lock(&tiles_lock);
    unsigned long tile = tiles++;
    pthread_mutex_unlock(&tiles_lock);
    return tile;
}

static void *render(void *arg)
{
    uint64_t *sum = arg;
    while (!is_over())
        *sum ^= digest(next_tile(), TILE_BYTES);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t sums[THREADS] = { 0 };
    begin(argc, argv);
    for (unsigned i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, render, &sums[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    finish(tiles);
    return 0;
}
