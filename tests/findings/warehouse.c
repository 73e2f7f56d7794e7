/* SPDX-License-Identifier: MIT */
/*
 * warehouse.c - orders are reserved, packed and loaded, under one lock each. Fault: each lock is held while a device
 * works, and all three are busy nearly all the time. Without one of them, the next one is the limit.
 *
 * Repair: the devices, of which there are enough, work without the locks.
 */
#include "findings.h"

enum { THREADS = 8, RESERVE_US = 500, PACK_US = 460, LOAD_US = 420, ORDER_BYTES = 10000 };

static pthread_mutex_t stock_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t packing_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t truck_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t reserved, packed, loaded;

/* The device works before the lock is taken, or under it. */
static void work(bool is_locked, useconds_t us)
{
    if (is_locked != is_fixed)
        usleep(us);
}

static void reserve(void)
{
    work(false, RESERVE_US);
    pthread_mutex_lock(&stock_lock);
    work(true, RESERVE_US);
    reserved++;
    pthread_mutex_unlock(&stock_lock);
}

static void pack(void)
{
    work(false, PACK_US);
    pthread_mutex_lock(&packing_lock);
    work(true, PACK_US);
    packed++;
    pthread_mutex_unlock(&packing_lock);
}

static void load(void)
{
    work(false, LOAD_US);
    pthread_mutex_lock(&truck_lock);
    work(true, LOAD_US);
    loaded++;
    pthread_mutex_unlock(&truck_lock);
}

static void *deliver(void *arg)
{
    struct worker *self = arg;
    for (; !is_over(); self->ops++) {
        self->seed = digest(self->seed, ORDER_BYTES);
        reserve();
        pack();
        load();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, deliver));
    return 0;
}
