/* SPDX-License-Identifier: MIT */
/*
 * errno.c - errno in user threads that move between workers: built in many ways by errno_test.py.
 *
 * Prints "MOVES OTHER LOST": how often a thread was on another worker after a call, how often errno was not that of
 * its own last call, and how often a value of errno did not survive a call that waits.
 */
#include <rouse/rouse.h>

#include <errno.h> /* after it, too */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define ROUNDS 5000

static struct rouse_cluster *clusters[2];
static unsigned long moves, other, lost;

static void *use_errno(void *arg)
{
    unsigned mine = (unsigned)(size_t)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        int before = rouse_worker_index();
        errno = 0;
        (void)strtol("12", NULL, 10);
        (void)rouse_thread_move(rouse_thread_self(), clusters[1]);
        rouse_thread_yield();
        if (open("/nonexistent", O_RDONLY) < 0 && errno != ENOENT)
            __atomic_fetch_add(&other, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&moves, rouse_worker_index() != before, __ATOMIC_RELAXED);
        errno = 1000 + (int)mine;
        (void)rouse_thread_move(rouse_thread_self(), clusters[0]);
        if (i % 64 == 0)
            (void)rouse_sleep(1000);
        else
            rouse_thread_yield();
        if (errno != 1000 + (int)mine)
            __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(void)
{
    struct rouse_thread *threads[THREADS];
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    for (int i = 0; i < 2; i++)
        if (rouse_cluster_create(&clusters[i], NULL) != 0)
            return 1;
    for (size_t i = 0; i < THREADS; i++) {
        attr.cluster = clusters[0];
        if (rouse_thread_create(&threads[i], &attr, use_errno, (void *)i) != 0)
            return 1;
    }
    for (size_t i = 0; i < THREADS; i++)
        (void)rouse_thread_join(threads[i], NULL);
    printf("%lu %lu %lu\n", moves, other, lost);
    return 0;
}
