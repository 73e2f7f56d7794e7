/* SPDX-License-Identifier: MIT */
/*
 * importer.c - records are fetched and then indexed, under one lock each. Fault: the first lock is held while a remote
 * source answers, and is busy all the time.
 *
 * Repair: records are fetched without the lock. The lock of the index, which was busy for half of the time, is then
 * the limit.
 */
#include "findings.h"

enum { THREADS = 4, FETCH_US = 800, INDEX_US = 400, RECORD_BYTES = 20000 };

static pthread_mutex_t source_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t index_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t fetched, indexed;

static void ask_source(void)
{
    usleep(FETCH_US);
}

static uint64_t fetch_record(uint64_t record)
{
    if (is_fixed)
        ask_source();
    pthread_mutex_lock(&source_lock);
    if (!is_fixed)
        ask_source();
    fetched++;
    pthread_mutex_unlock(&source_lock);
    return digest(record, RECORD_BYTES);
}

static void index_record(uint64_t key)
{
    pthread_mutex_lock(&index_lock);
    usleep(INDEX_US); /* the disk writes a page of the index */
    indexed += key & 1;
    pthread_mutex_unlock(&index_lock);
}

static void *import(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (uint64_t key = self->seed; !is_over(); ops++) {
        key = fetch_record(key);
        index_record(key);
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(THREADS, import));
    return 0;
}
