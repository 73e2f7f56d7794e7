/* SPDX-License-Identifier: MIT */
/*
 * main.c - what a thread library on clone(2) can do, and how it crashed.
 *
 * Build: cc -std=gnu17 -O2 -pthread -o clone_threads clone_threads.c main.c
 *
 * usage: clone_threads run        results, exit, locks, a signal: prints what happened
 *        clone_threads shared     threads that share one libc thread block call malloc: crashes
 *        clone_threads own        the same with a block each: prints the sum
 *        clone_threads overflow   a stack that is too small: ends by SIGSEGV at the guard page
 */
#include "clone_threads.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define ROUNDS 200000
#define BLOCKS 2000000

static struct ct_spin spin;
static struct ct_mutex mutex;
static long spun, locked;
static _Atomic int signalled;

static void must(int error)
{
    if (error) {
        fprintf(stderr, "clone_threads: %s\n", strerror(-error));
        exit(1);
    }
}

/* These threads share main's block, so that they call nothing of libc. */
static void *count(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        ct_spin_lock(&spin);
        spun++;
        ct_spin_unlock(&spin);
        ct_mutex_lock(&mutex);
        locked++;
        ct_mutex_unlock(&mutex);
    }
    if ((intptr_t)arg % 2)
        ct_exit(arg);
    return arg;
}

static void on_signal(int number)
{
    (void)number;
    atomic_store(&signalled, 1);
}

static void *until_signalled(void *arg)
{
    while (!atomic_load(&signalled))
        __builtin_ia32_pause();
    return arg;
}

/* Some blocks live longer than others, so that libc's cache of free blocks is filled and emptied. */
static void *use_malloc(void *arg)
{
    unsigned char *volatile blocks[16] = { NULL };
    long sum = 0;

    for (int i = 0; i < BLOCKS; i++) {
        free(blocks[i * 7 % 16]);
        unsigned char *made = malloc(24);
        made[0] = (unsigned char)(intptr_t)arg;
        blocks[i * 7 % 16] = made;
        sum += blocks[i % 16] ? blocks[i % 16][0] : (intptr_t)arg;
    }
    for (int i = 0; i < 16; i++)
        free(blocks[i]);
    return (void *)sum;
}

static void *overflow(void *arg)
{
    volatile char large[2048];

    large[0] = *(char *)arg;
    return large[0] ? NULL : overflow((void *)(uintptr_t)large);
}

static long each(enum ct_block block, void *(*fn)(void *))
{
    struct ct_thread *threads[THREADS];
    long sum = 0;

    for (intptr_t i = 0; i < THREADS; i++)
        must(ct_create(&threads[i], block, fn, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++) {
        void *result;
        must(ct_join(threads[i], &result));
        sum += (long)(intptr_t)result;
    }
    return sum;
}

static void run(void)
{
    struct ct_thread *t;

    printf("results: %ld\n", each(CT_SHARED_BLOCK, count));
    printf("spin lock: %ld, mutex: %ld\n", spun, locked);
    signal(SIGUSR1, on_signal);
    must(ct_create(&t, CT_SHARED_BLOCK, until_signalled, NULL));
    must(ct_signal(t, SIGUSR1));
    must(ct_join(t, NULL));
    puts("a signal arrived");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "run";
    char first = 0;
    struct ct_thread *t;

    if (strcmp(what, "run") == 0) {
        run();
    } else if (strcmp(what, "shared") == 0 || strcmp(what, "own") == 0) {
        enum ct_block block = *what == 's' ? CT_SHARED_BLOCK : CT_OWN_BLOCK;
        printf("sum: %ld\n", each(block, use_malloc));
    } else if (strcmp(what, "overflow") == 0) {
        must(ct_create(&t, CT_SHARED_BLOCK, overflow, &first));
        must(ct_join(t, NULL));
    } else {
        fputs("usage: clone_threads run|shared|own|overflow\n", stderr);
        return 2;
    }
    return 0;
}
