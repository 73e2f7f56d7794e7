/* SPDX-License-Identifier: MIT */
/*
 * settings.c - threads that read settings, and one that changes them. Fault: with glibc's default lock, a reader may
 * join other readers while a writer waits. The readers overlap, and so the writer starves.
 *
 * Repair: a lock that prefers writers. An operation is a change.
 */
#include "findings.h"

enum { READERS = 4, SETTINGS = 64, READ_US = 300, THINK_US = 200, CHANGE_US = 500 };

static pthread_rwlock_t settings_lock;
static uint64_t settings[SETTINGS];

static uint64_t read_settings(uint64_t key)
{
    pthread_rwlock_rdlock(&settings_lock);
    uint64_t value = settings[key % SETTINGS];
    usleep(READ_US); /* copy them to a client */
    pthread_rwlock_unlock(&settings_lock);
    return value;
}

static void change_settings(uint64_t key)
{
    pthread_rwlock_wrlock(&settings_lock);
    settings[key % SETTINGS]++;
    pthread_rwlock_unlock(&settings_lock);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    int pause = service_open();
    while (!is_over()) {
        uint64_t key = draw(&self->seed);
        if (self->number < READERS) {
            self->seed += read_settings(key);
            service_ask(pause, THINK_US / 2 + (long)(key % THINK_US));
        } else {
            change_settings(key);
            self->ops++;
            service_ask(pause, CHANGE_US);
        }
    }
    close(pause);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_rwlockattr_t attr;
    begin(argc, argv);
    pthread_rwlockattr_init(&attr);
    if (is_fixed)
        pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&settings_lock, &attr);
    finish(run_threads(READERS + 1, work));
    return 0;
}
