/* SPDX-License-Identifier: MIT */
/*
 * plain_musl.c - threads that wait for a lock, a condition, a join and the time, by POSIX alone: for any libc. It says
 * something on both streams and ends with STATUS.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum {
    STATUS = 7,
    THREADS = 4,
    ROUNDS = 200,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static long turn;

/* Each in its turn, so that all of them wait. */
static void *take_turns(void *arg)
{
    long own = *(const long *)arg;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        while (turn % THREADS != own)
            pthread_cond_wait(&turned, &lock);
        turn++;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(void)
{
    const struct timespec moment = { 0, 1000000 };
    pthread_t threads[THREADS];
    long numbers[THREADS];
    for (long i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, take_turns, &numbers[i]) != 0)
            return 1;
    }
    for (long i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    nanosleep(&moment, NULL);
    printf("%ld turns\n", turn);
    fprintf(stderr, "to standard error\n");
    return STATUS;
}
