/* SPDX-License-Identifier: MIT */
/*
 * locks.c - a table that many threads read and one refreshes: reader-writer lock, semaphore, barrier, once.
 *
 * usage: locks [THREADS]    (8)
 *
 * It shows the three forms of each call: plain (waits), _try (never waits) and _until (gives up at a deadline).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <rouse/rouse.h>

#define MS UINT64_C(1000000)
#define ROUNDS 100

static struct rouse_once loaded = ROUSE_ONCE_INIT;
static struct rouse_rwlock lock;
static struct rouse_sem slots; /* at most two threads work on the table at once */
static struct rouse_barrier start;
static struct rouse_mutex report;
static struct rouse_cond all_done;
static unsigned table[16], undone; /* table: under lock; undone: under report */

static void load(void *arg)
{
    unsigned *values = arg;

    for (unsigned i = 0; i < 16; i++)
        values[i] = i;
}

/* Reads the table. Returns false if the lock is not available within a second. */
static bool read_table(unsigned *sum)
{
    if (rouse_rwlock_read_lock_try(&lock) == -EBUSY &&
        rouse_rwlock_read_lock_until(&lock, rouse_now_ns() + 1000 * MS) < 0)
        return false;
    *sum = 0;
    for (unsigned i = 0; i < 16; i++)
        *sum += table[i];
    rouse_rwlock_read_unlock(&lock);
    return true;
}

/* Swaps two values, so that the sum stays the same. */
static void refresh(unsigned round)
{
    unsigned i = round % 16, j = (round * 7 + 3) % 16, value;

    if (rouse_rwlock_write_lock_try(&lock) == -EBUSY)
        rouse_rwlock_write_lock(&lock);
    value = table[i];
    table[i] = table[j];
    table[j] = value;
    rouse_rwlock_write_unlock(&lock);
}

static void *work(void *arg)
{
    unsigned *wrong = arg, sum = 0;

    rouse_once_call(&loaded, load, table); /* one thread loads the table, the others wait for it */
    rouse_barrier_wait(&start);            /* no thread begins before all are ready */
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (rouse_sem_wait_try(&slots) == -EAGAIN)
            rouse_sem_wait(&slots);
        refresh(round);
        *wrong += !read_table(&sum) || sum != 120;
        rouse_sem_post(&slots);
    }
    rouse_mutex_lock(&report);
    undone--;
    rouse_cond_signal(&all_done);
    rouse_mutex_unlock(&report);
    return NULL;
}

/* Nothing is available to the main thread: _try reports this at once, and _until at its deadline. */
static bool forms_agree(void)
{
    struct rouse_sem none = ROUSE_SEM_INIT(0);
    struct rouse_barrier pair = ROUSE_BARRIER_INIT(2);
    bool agree = rouse_sem_wait_until(&none, rouse_now_ns() + MS) == -ETIMEDOUT &&
                 rouse_barrier_wait_try(&pair) == -EBUSY &&
                 rouse_barrier_wait_until(&pair, rouse_now_ns() + MS) == -ETIMEDOUT &&
                 rouse_once_call_try(&loaded, load, table) == 0 &&
                 rouse_once_call_until(&loaded, load, table, rouse_now_ns()) == 0 &&
                 rouse_mutex_lock_try(&report) == 0;

    if (agree)
        rouse_mutex_unlock(&report);
    return agree;
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 8, wrong = 0, sum = 0;
    struct rouse_thread **thread = calloc(threads + 1, sizeof(*thread));
    unsigned *counts = calloc(threads + 1, sizeof(*counts));

    if (threads == 0 || !thread || !counts) {
        fprintf(stderr, "usage: locks [THREADS]\n");
        return 2;
    }
    rouse_rwlock_init(&lock, "table");
    rouse_sem_init(&slots, 2, "slots");
    rouse_barrier_init(&start, threads, "start");
    rouse_mutex_init(&report, "report");
    rouse_cond_init(&all_done, "all done");
    undone = threads;
    for (unsigned i = 0; i < threads; i++)
        if (rouse_thread_create(&thread[i], NULL, work, &counts[i]) < 0)
            abort();

    if (rouse_mutex_lock_until(&report, rouse_now_ns() + 60000 * MS) < 0)
        abort();
    while (undone)
        rouse_cond_wait(&all_done, &report);
    rouse_mutex_unlock(&report);
    for (unsigned i = 0; i < threads; i++) {
        rouse_thread_join(thread[i], NULL);
        wrong += counts[i];
    }
    rouse_rwlock_read_lock(&lock);
    for (unsigned i = 0; i < 16; i++)
        sum += table[i];
    rouse_rwlock_read_unlock(&lock);
    if (rouse_rwlock_write_lock_until(&lock, ROUSE_FOREVER) == 0)
        rouse_rwlock_write_unlock(&lock);
    printf("sum %u, %u wrong, %u slots free, forms %s\n", sum, wrong, rouse_sem_value(&slots),
           forms_agree() ? "agree" : "differ");

    /* These calls are optional. They check that no thread holds the object or waits for it. */
    rouse_cond_destroy(&all_done);
    rouse_mutex_destroy(&report);
    rouse_barrier_destroy(&start);
    rouse_sem_destroy(&slots);
    rouse_rwlock_destroy(&lock);
    free(counts);
    free(thread);
    return 0;
}
