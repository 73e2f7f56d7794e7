/* SPDX-License-Identifier: MIT */
/*
 * gallery.c - main hands pictures to a pool of threads, by a bounded queue. Fault: it signals only when the queue was
 * empty, so one thread does all of the work and the others wait. The threads wait in a function of its own.
 *
 * Repair: it signals for each picture. An operation is a picture.
 */
#include "findings.h"

#include <time.h>

enum { THREADS = 6, PICTURES_MOST = 32, STORE_US = 2000 };

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t picture_came = PTHREAD_COND_INITIALIZER, has_room = PTHREAD_COND_INITIALIZER,
                      all_wait = PTHREAD_COND_INITIALIZER;
/* All under queue_lock. */
static unsigned pictures, waiting;
static bool is_closed;

static void nap(long us)
{
    struct timespec time = { 0, us * 1000 };
    nanosleep(&time, NULL);
}

__attribute__((noinline)) static void store_picture(void)
{
    nap(STORE_US);
}

static bool take_picture(void)
{
    pthread_mutex_lock(&queue_lock);
    for (; pictures == 0 && !is_closed; waiting--) {
        if (++waiting == THREADS)
            pthread_cond_signal(&all_wait);
        pthread_cond_wait(&picture_came, &queue_lock);
    }
    bool is_one = pictures != 0;
    if (is_one) {
        pictures--;
        pthread_cond_signal(&has_room);
    }
    pthread_mutex_unlock(&queue_lock);
    return is_one;
}

static void *store_pictures(void *arg)
{
    unsigned long *stored = arg;
    while (take_picture()) {
        store_picture();
        __atomic_fetch_add(stored, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void add_picture(void)
{
    pthread_mutex_lock(&queue_lock);
    while (pictures == PICTURES_MOST)
        pthread_cond_wait(&has_room, &queue_lock);
    if (pictures++ == 0 || is_fixed)
        pthread_cond_signal(&picture_came);
    pthread_mutex_unlock(&queue_lock);
}

int main(int argc, char **argv)
{
    static unsigned long stored;
    pthread_t threads[THREADS];
    begin(argc, argv);
    for (unsigned i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, store_pictures, &stored) == 0);
    pthread_mutex_lock(&queue_lock);
    while (waiting != THREADS)
        pthread_cond_wait(&all_wait, &queue_lock);
    pthread_mutex_unlock(&queue_lock);
    while (!is_over())
        add_picture();
    unsigned long ops = __atomic_load_n(&stored, __ATOMIC_RELAXED);
    pthread_mutex_lock(&queue_lock);
    is_closed = true;
    pthread_cond_broadcast(&picture_came);
    pthread_mutex_unlock(&queue_lock);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    finish(ops);
    return 0;
}
