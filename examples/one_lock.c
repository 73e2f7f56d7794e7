/* SPDX-License-Identifier: MIT */
/*
 * one_lock.c - four POSIX threads that share one lock, for `rouse run -- ./one_lock`. It does not use rouse.
 *
 * Each request waits 0.2 ms for a back end. The requests could wait in parallel, but one lock is held all the time.
 */
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;

static void *serve(void *arg)
{
    for (int request = 0; request < 500; request++) {
        pthread_mutex_lock(&cache_lock);
        usleep(200); /* ask the back end */
        pthread_mutex_unlock(&cache_lock);
    }
    return arg;
}

int main(void)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, serve, NULL))
            return 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
