/* SPDX-License-Identifier: MIT */
/*
 * price_cache.c - a cache of prices. Fault: prices are computed while the lock of the cache is held.
 *
 * Repair: the price is computed first, and the lock is held to store it. The gain is small, because two processors
 * compute the rest of each request at the same time even with the fault.
 */
#include "findings.h"

enum { THREADS = 4, PRICES = 256, REQUEST_BYTES = 30000, PRICE_BYTES = 60000 };

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t prices[PRICES];

static uint64_t compute_price(uint64_t product)
{
    return digest(product, PRICE_BYTES);
}

static void update_price(uint64_t product)
{
    uint64_t price = is_fixed ? compute_price(product) : 0;
    pthread_mutex_lock(&cache_lock);
    prices[product % PRICES] = is_fixed ? price : compute_price(product);
    pthread_mutex_unlock(&cache_lock);
}

static void *serve(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (uint64_t request = self->seed; !is_over(); ops++) {
        request = digest(request, REQUEST_BYTES); /* parse it */
        update_price(request);
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, serve));
    return 0;
}
