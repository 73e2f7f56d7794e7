/* SPDX-License-Identifier: MIT */
/*
 * queue.c - acceptherd: the order in which Solaris woke threads that slept in accept.
 *
 * It woke the thread of the highest priority that had slept longest. A quarter of the threads have a low
 * priority, as compute-bound threads do after a while, and starve. With promotion, a thread that has slept for
 * 100 ms rises above all other priorities, as ts_sleep_promote did. One kernel thread plays the role of the
 * kernel: it accepts connections and hands them on.
 */
#include "accept.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

struct sleeper {
    struct sleeper *next;
    pthread_cond_t cond;
    uint64_t since_ns;
    struct sockaddr_in peer;
    int fd; /* the connection that was handed over; -1: none yet */
    bool is_low;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_sleeper = PTHREAD_COND_INITIALIZER;
static struct sleeper *first; /* oldest first; lock protects the list */
static bool is_promoting;

static bool is_high(const struct sleeper *sleeper, uint64_t now_ns)
{
    return !sleeper->is_low || (is_promoting && now_ns - sleeper->since_ns >= ACCEPT_PROMOTE_NS);
}

/* The oldest thread of the highest priority. Promoted threads have slept longest. */
static struct sleeper *take_one(void)
{
    const uint64_t now_ns = bench_now_ns();
    struct sleeper **at = &first;
    while (!first)
        pthread_cond_wait(&has_sleeper, &lock);
    while (*at && !is_high(*at, now_ns))
        at = &(*at)->next;
    if (!*at)
        at = &first;
    struct sleeper *taken = *at;
    *at = taken->next;
    return taken;
}

static void *hand_on(void *arg)
{
    const struct accept_state *s = arg;
    for (;;) {
        struct sockaddr_in peer = { .sin_port = 0 };
        socklen_t length = sizeof peer;
        const int fd = accept4(s->listener, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        pthread_mutex_lock(&lock);
        struct sleeper *taken = take_one();
        taken->fd = fd;
        taken->peer = peer;
        pthread_cond_signal(&taken->cond);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int accept_queue_start(const struct bench_run *run, struct accept_state *s)
{
    pthread_t thread;
    is_promoting = run->options.accept_order == BENCH_ORDER_PROMOTED;
    return -pthread_create(&thread, NULL, hand_on, s);
}

void accept_in_queue(struct accept_state *s, struct accept_thread *t, unsigned index)
{
    struct sleeper self = { .cond = PTHREAD_COND_INITIALIZER, .is_low = index % 4 == 3 };
    for (;;) {
        accept_begin_wait(t);
        pthread_mutex_lock(&lock);
        self.fd = -1;
        self.next = NULL;
        self.since_ns = bench_now_ns();
        struct sleeper **end = &first;
        while (*end)
            end = &(*end)->next;
        *end = &self;
        pthread_cond_signal(&has_sleeper);
        while (self.fd < 0)
            pthread_cond_wait(&self.cond, &lock);
        pthread_mutex_unlock(&lock);
        accept_note(s, t, &self.peer);
        close(self.fd);
    }
}
