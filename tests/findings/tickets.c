/* SPDX-License-Identifier: MIT */
/*
 * tickets.c - threads that serve requests, which arrive at a rate that does not depend on the threads. Fault: they hold
 * a lock while they wait for a device.
 *
 * Repair: they wait without the lock. As many requests are served, each one sooner. With PRINT_WAIT in the environment,
 * the program prints on standard error how long a request waited for the lock on average.
 */
#include "findings.h"

enum { SERVERS = 8, DEVICE_US = 1200, TEXT_BYTES = 10000 };
enum { SOON_US = 200, LATER_US = 3800 }; /* the times between two requests, equally often */

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static unsigned queued; /* requests, under queue_lock */
static bool is_closed;
static uint64_t waited_ns; /* for device_lock, under it */

static void print_ticket(void)
{
    uint64_t began = now_ns();
    if (!is_fixed) {
        pthread_mutex_lock(&device_lock);
        waited_ns += now_ns() - began;
    }
    usleep(DEVICE_US);
    if (!is_fixed)
        pthread_mutex_unlock(&device_lock);
}

static bool next_request(void)
{
    pthread_mutex_lock(&queue_lock);
    while (!queued && !is_closed)
        pthread_cond_wait(&arrived, &queue_lock);
    bool is_there = queued > 0;
    queued -= is_there;
    pthread_mutex_unlock(&queue_lock);
    return is_there;
}

static void *serve(void *arg)
{
    struct worker *self = arg;
    for (; next_request(); self->ops++) {
        self->seed = digest(self->seed, TEXT_BYTES) | 1;
        print_ticket();
    }
    return NULL;
}

static void *arrive(void *unused)
{
    uint64_t seed = 1, at = began_ns;
    for (;;) {
        at += (draw(&seed) & 1 ? SOON_US : LATER_US) * UINT64_C(1000);
        if (at >= until_ns)
            break;
        struct timespec when = { (time_t)(at / 1000000000), (long)(at % 1000000000) };
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
        pthread_mutex_lock(&queue_lock);
        queued++;
        pthread_cond_signal(&arrived);
        pthread_mutex_unlock(&queue_lock);
    }
    pthread_mutex_lock(&queue_lock);
    is_closed = true;
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&queue_lock);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t source;
    begin(argc, argv);
    check(pthread_create(&source, NULL, arrive, NULL) == 0);
    unsigned long ops = run_threads(SERVERS, serve);
    pthread_join(source, NULL);
    finish(ops);
    if (getenv("PRINT_WAIT"))
        fprintf(stderr, "%.0f ns\n", (double)waited_ns / (double)ops);
    return 0;
}
