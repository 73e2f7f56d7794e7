/* SPDX-License-Identifier: MIT */
/*
 * shop.c - orders that look into a catalogue and its stock. Fault: the catalogue's lock is held while the stock is
 * counted, and the stock's lock while a slow warehouse answers. So each lock alone lets one order through at a time.
 *
 * Repair: the catalogue's lock is released before the stock is counted, and the warehouse is asked without a lock.
 */
#include "findings.h"

enum { THREADS = 8, ARTICLES = 256, WAREHOUSE_US = 300, PRICE_BYTES = 8000, ORDER_BYTES = 30000 };

static pthread_mutex_t catalogue_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before stock_lock */
static pthread_mutex_t stock_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t prices[ARTICLES]; /* under catalogue_lock */
static uint64_t stock[ARTICLES];  /* under stock_lock */

static void ask_warehouse(void)
{
    usleep(WAREHOUSE_US);
}

static void count_stock(uint64_t article)
{
    pthread_mutex_lock(&stock_lock);
    stock[article]++;
    if (!is_fixed)
        ask_warehouse();
    pthread_mutex_unlock(&stock_lock);
    if (is_fixed)
        ask_warehouse();
}

static void restock(uint64_t article)
{
    pthread_mutex_lock(&stock_lock);
    stock[article]--;
    if (!is_fixed)
        ask_warehouse();
    pthread_mutex_unlock(&stock_lock);
    if (is_fixed)
        ask_warehouse();
}

static void place_order(uint64_t article)
{
    pthread_mutex_lock(&catalogue_lock);
    prices[article] = digest(prices[article], PRICE_BYTES);
    if (!is_fixed)
        count_stock(article);
    pthread_mutex_unlock(&catalogue_lock);
    if (is_fixed)
        count_stock(article);
}

static void *serve(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        uint64_t article = digest(draw(&self->seed), ORDER_BYTES) % ARTICLES;
        if (ops % 4 == 0)
            restock(article);
        else
            place_order(article);
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
