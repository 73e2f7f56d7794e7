/* SPDX-License-Identifier: MIT */
/*
 * findings.h - shared by the programs of this folder: their arguments, work of a known size, and their line of output.
 *
 *     PROGRAM [fixed] [SECONDS]
 *
 * Each program has one planted fault, or none. With `fixed` the fault is repaired. The threads work in a closed loop
 * for SECONDS (1), and the program prints `ops N seconds S`. So the gain of the repair is the ratio of two rates.
 */
#ifndef FINDINGS_H
#define FINDINGS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MOST = 16, PAGE_BYTES = 4096 };

static bool is_fixed;
static uint64_t began_ns, until_ns; /* written before the threads start */

static inline void check_at(const char *file, int line, bool is_so)
{
    if (!is_so) {
        fprintf(stderr, "%s:%d: ", file, line);
        perror("failed");
        _exit(1);
    }
}
#define check(is_so) check_at(__FILE__, __LINE__, (is_so))

/* The size of an object, as calls that transfer it return it. */
#define WHOLE(object) ((ssize_t)sizeof(object))

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline bool is_over(void)
{
    return now_ns() >= until_ns;
}

/* Read the arguments and start the clock. */
static inline void begin(int argc, char **argv)
{
    double seconds = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "fixed") == 0)
            is_fixed = true;
        else
            seconds = strtod(argv[i], NULL);
    }
    if (!(seconds > 0 && seconds <= 60)) {
        fprintf(stderr, "usage: %s [fixed] [SECONDS]\n", argv[0]);
        exit(2);
    }
    prctl(PR_SET_TIMERSLACK, 1); /* sleeps as long as requested; threads inherit it */
    began_ns = now_ns();
    until_ns = began_ns + (uint64_t)(seconds * 1e9);
}

static inline void finish(unsigned long ops)
{
    printf("ops %lu seconds %.6f\n", ops, (double)(now_ns() - began_ns) / 1e9);
}

/* A checksum of so many bytes (FNV-1a). It uses the processor for roughly 1 ns per byte, and nothing else. */
static inline uint64_t digest(uint64_t seed, unsigned bytes)
{
    static const unsigned char page[PAGE_BYTES] = "the text that is repeated";
    uint64_t sum = 14695981039346656037u ^ seed;
    for (unsigned i = 0; i < bytes; i++)
        sum = (sum ^ page[i % PAGE_BYTES]) * 1099511628211u;
    /* The compiler must not leave it out where no one reads the sum. */
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

/* A remote service that answers after a known time. Each thread has its own descriptor. */
static inline int service_open(void)
{
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    check(fd >= 0);
    return fd;
}

static inline void service_ask(int fd, long us)
{
    struct itimerspec answer = { { 0, 0 }, { us / 1000000, us % 1000000 * 1000 } };
    uint64_t count;
    check(timerfd_settime(fd, 0, &answer, NULL) == 0);
    check(read(fd, &count, sizeof count) == WHOLE(count));
}

/* The argument of a thread. */
struct worker {
    uint64_t seed;
    unsigned long ops; /* written by the thread, read after its end */
    unsigned number;
};

/* A pseudo-random number (xorshift). The same seed gives the same numbers. */
static inline uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Run so many threads to their end. Returns the sum of their operations. */
static inline unsigned long run_threads(unsigned count, void *(*fn)(void *))
{
    pthread_t threads[THREADS_MOST];
    struct worker workers[THREADS_MOST];
    unsigned long ops = 0;
    check(count <= THREADS_MOST);
    for (unsigned i = 0; i < count; i++) {
        workers[i].seed = i + 1;
        workers[i].ops = 0;
        workers[i].number = i;
        check(pthread_create(&threads[i], NULL, fn, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        ops += workers[i].ops;
    }
    return ops;
}

#endif
