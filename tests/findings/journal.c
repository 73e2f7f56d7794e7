/* SPDX-License-Identifier: MIT */
/*
 * journal.c - a journal on disk. Fault: each record is synced on its own while the lock of the journal is held.
 *
 * Repair: group commit. One thread syncs for all that have appended, without the lock. The file is created in the
 * current folder or in TMPDIR, has no name, and is written in a circle.
 */
#include "findings.h"

#include <fcntl.h>

enum { THREADS = 4, RECORD_BYTES = 512, RECORDS = 1024, REQUEST_BYTES = 10000, PATH_MOST = 4096 };

static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t synced = PTHREAD_COND_INITIALIZER;
static int journal;
/* All under journal_lock. */
static uint64_t appended, durable;
static bool is_syncing;

/* Called with journal_lock: return when this record is on disk. */
static void join_group(uint64_t record)
{
    while (durable < record) {
        if (is_syncing) {
            pthread_cond_wait(&synced, &journal_lock);
            continue;
        }
        uint64_t group = appended;
        is_syncing = true;
        pthread_mutex_unlock(&journal_lock);
        check(fsync(journal) == 0);
        pthread_mutex_lock(&journal_lock);
        is_syncing = false;
        durable = group;
        pthread_cond_broadcast(&synced);
    }
}

static void append_record(uint64_t key)
{
    uint64_t record[RECORD_BYTES / sizeof(uint64_t)] = { key };
    pthread_mutex_lock(&journal_lock);
    off_t at = (off_t)(appended++ % RECORDS * RECORD_BYTES);
    check(pwrite(journal, record, sizeof record, at) == WHOLE(record));
    if (is_fixed)
        join_group(appended);
    else
        check(fsync(journal) == 0);
    pthread_mutex_unlock(&journal_lock);
}

/* Write the whole file once, so that a sync has no blocks to allocate. */
static void create_journal(void)
{
    static const char zeros[RECORDS * RECORD_BYTES];
    char path[PATH_MOST];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/journal-XXXXXX", folder ? folder : ".");
    journal = mkostemp(path, O_CLOEXEC);
    check(journal >= 0);
    unlink(path);
    check(write(journal, zeros, sizeof zeros) == WHOLE(zeros));
    check(fsync(journal) == 0);
}

static void *commit(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    for (uint64_t key = self->seed; !is_over(); ops++) {
        key = digest(key, REQUEST_BYTES);
        append_record(key);
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    create_journal();
    begin(argc, argv);
    finish(run_threads(THREADS, commit));
    return 0;
}
