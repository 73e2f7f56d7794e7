/* SPDX-License-Identifier: MIT */
/*
 * catalogue.c - threads that look items up, one that changes prices, and one that writes a report. The lock prefers
 * writers. Fault: the report is written under the read lock. A writer waits for it, and all readers wait behind the
 * writer.
 *
 * Repair: the report's data are copied under the lock, and written without it. An operation is a look-up.
 */
#include "findings.h"

enum { READERS = 4, ITEMS = 256, REPORT_US = 4000, THINK_US = 400, CHANGE_US = 1000 };
enum { WRITER = READERS, REPORTER };

static pthread_rwlock_t catalogue_lock;
static uint64_t prices[ITEMS];

static uint64_t look_up(uint64_t key)
{
    pthread_rwlock_rdlock(&catalogue_lock);
    uint64_t price = prices[key % ITEMS];
    pthread_rwlock_unlock(&catalogue_lock);
    return price;
}

static void change_price(uint64_t key)
{
    pthread_rwlock_wrlock(&catalogue_lock);
    prices[key % ITEMS]++;
    pthread_rwlock_unlock(&catalogue_lock);
}

static void write_report(void)
{
    uint64_t copy[ITEMS];
    pthread_rwlock_rdlock(&catalogue_lock);
    memcpy(copy, prices, sizeof copy);
    if (!is_fixed)
        usleep(REPORT_US);
    pthread_rwlock_unlock(&catalogue_lock);
    if (is_fixed)
        usleep(REPORT_US);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    int pause = service_open();
    while (!is_over()) {
        uint64_t key = draw(&self->seed);
        if (self->number == WRITER) {
            change_price(key);
            service_ask(pause, CHANGE_US);
        } else if (self->number == REPORTER) {
            write_report();
            service_ask(pause, CHANGE_US);
        } else {
            self->seed += look_up(key);
            self->ops++;
            service_ask(pause, THINK_US);
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
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&catalogue_lock, &attr);
    finish(run_threads(READERS + 2, work));
    return 0;
}
