/* SPDX-License-Identifier: MIT */
/* threads.h - start a number of threads that use a library, and wait for all of them. */
#ifndef LIBRARIES_THREADS_H
#define LIBRARIES_THREADS_H

#include <rouse/rouse.h>

#include <stdio.h>
#include <stdlib.h>

#define MS UINT64_C(1000000)

#define CHECK(condition, text) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, text); \
            exit(1); \
        } \
    } while (0)

/* Run fn in this many threads at once, each with its number. */
static inline void run_all(unsigned count, void *(*fn)(void *))
{
    /* Libraries use more than the default stack. */
    const struct rouse_thread_attr attr = { .stack_bytes = (size_t)256 << 10 };
    struct rouse_thread **threads = calloc(count, sizeof(*threads));

    CHECK(threads != NULL, "no memory");
    for (unsigned i = 0; i < count; i++)
        CHECK(rouse_thread_create(&threads[i], &attr, fn, (void *)(uintptr_t)i) == 0, "no thread");
    for (unsigned i = 0; i < count; i++)
        CHECK(rouse_thread_join(threads[i], NULL) == 0, "no end");
    free(threads);
}

#endif
