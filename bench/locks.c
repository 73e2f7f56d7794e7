/* SPDX-License-Identifier: MIT */
/*
 * locks.c - ns per lock and unlock of a free mutex, a free reader-writer lock (to read and to write) and a free spin
 * lock. It reports the least of many rounds, so that other load does not matter. Uses POSIX only; interposer.py
 * runs it.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 3000, EACH = 1000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define LEAST(lock, unlock) \
    do { \
        uint64_t least = UINT64_MAX; \
        for (unsigned round = 0; round < ROUNDS; round++) { \
            uint64_t began = now_ns(); \
            for (unsigned i = 0; i < EACH; i++) { \
                lock; \
                unlock; \
            } \
            uint64_t took = now_ns() - began; \
            least = took < least ? took : least; \
        } \
        printf("%.2f\n", (double)least / EACH); \
    } while (0)

static void *nothing(void *unused)
{
    return unused;
}

int main(void)
{
    pthread_t thread; /* libc has short cuts for single-threaded programs */
    if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0 ||
        pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE) != 0)
        return 1;
    LEAST(pthread_mutex_lock(&mutex), pthread_mutex_unlock(&mutex));
    LEAST(pthread_rwlock_rdlock(&rwlock), pthread_rwlock_unlock(&rwlock));
    LEAST(pthread_rwlock_wrlock(&rwlock), pthread_rwlock_unlock(&rwlock));
    LEAST(pthread_spin_lock(&spin), pthread_spin_unlock(&spin));
    return 0;
}
