/* SPDX-License-Identifier: MIT */
/*
 * cold_locks.c - ns to lock and unlock 15 free mutexes in a thread with a cold cache.
 *
 * 64 threads take turns, so the other 63 evict each one's cache lines, as between two queries of a server's
 * thread. The figure is the median of all turns after the first quarter. It uses POSIX only. interposer.py runs it.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 64, LOCKS = 15, TURNS = 200, LINE = 64, WORK = 1 << 20 };

static struct seat {
    sem_t turn;
    pthread_mutex_t mutexes[LOCKS];
    volatile char *work; /* memory that the thread works on, one line at a time */
} seats[THREADS];
static uint64_t took[THREADS * TURNS];
static size_t took_count; /* accessed by the thread whose turn it is */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* There is one code location per lock, so that each makes its own record. */
#define ONE(n) (pthread_mutex_lock(&seat->mutexes[n]), pthread_mutex_unlock(&seat->mutexes[n]))

static void *serve(void *of)
{
    struct seat *seat = of, *next = seat + 1 < seats + THREADS ? seat + 1 : seats;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        sem_wait(&seat->turn);
        for (size_t at = 0; at < WORK; at += LINE)
            seat->work[at]++;
        uint64_t began = now_ns();
        ONE(0), ONE(1), ONE(2), ONE(3), ONE(4), ONE(5), ONE(6), ONE(7);
        ONE(8), ONE(9), ONE(10), ONE(11), ONE(12), ONE(13), ONE(14);
        took[took_count++] = now_ns() - began;
        sem_post(&next->turn);
    }
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        sem_init(&seats[i].turn, 0, i == 0);
        for (unsigned n = 0; n < LOCKS; n++)
            pthread_mutex_init(&seats[i].mutexes[n], NULL);
        char *work = malloc(WORK);
        if (!work)
            return 1;
        seats[i].work = memset(work, 1, WORK);
    }
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, serve, &seats[i]) != 0)
            return 1;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    size_t from = took_count / 4, count = took_count - from;
    qsort(took + from, count, sizeof *took, by_time);
    printf("%llu\n", (unsigned long long)took[from + count / 2]);
    return 0;
}
