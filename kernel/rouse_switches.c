/* SPDX-License-Identifier: MIT */
/*
 * rouse-switches - records when a program's threads are put on a processor and taken off it, without BPF. The command
 * `rouse` uses it where BPF is not allowed: any user may see this of their own processes.
 *
 * rouse-switches THREAD [WAITS]   The next process that this thread makes, from its exec on, with all that it makes
 *                                 itself. WAITS: the file in which librouse-preload.so notes the waits of its threads.
 *
 * It prints `ready` when everything is watched, and when its standard input ends the lines of rouse-kernel: now,
 * thread, sleep (the run queue after a sleep is in it; there is no waker, and no system call), lost (threads that have
 * no room for their waits in the place of processes), and before them
 *   perf       records that the kernel had no room for
 * and behind a thread, where that is known,
 *   queue      thread's id, time in the run queue in all, also after it was woken (schedstat)
 * An error is one line on standard error, and the status 1.
 */
#include "sums.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EVERY_MS 100

static _Noreturn void die(const char *what, int error)
{
    (void)fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static void take(bool is_all)
{
    struct rsi_records records;
    if (!rsi_rings_take(is_all, &records))
        die("records", ENOMEM);
    for (size_t i = 0; i < records.count; i++)
        rsi_sums_add(&records.all[i]);
}

/* Runs until standard input ends. */
static void watch(void)
{
    const struct pollfd *rings;
    size_t count = rsi_rings_polls(&rings);
    struct pollfd *polls = calloc(count + 1, sizeof(*polls));
    if (!polls)
        die("processors", ENOMEM);
    memcpy(&polls[1], rings, count * sizeof(*polls));
    polls[0] = (struct pollfd){ STDIN_FILENO, POLLIN, 0 };
    puts("ready");
    (void)fflush(stdout);
    for (;;) {
        char any[64];
        (void)poll(polls, count + 1, EVERY_MS);
        take(false);
        if (polls[0].revents && read(STDIN_FILENO, any, sizeof(any)) <= 0)
            break;
    }
    rsi_rings_stop();
    take(true);
    free(polls);
}

/* Prints the name, limited to printable text of one line. */
static const char *clean(const char *name)
{
    static char text[RSI_BPF_NAME];
    size_t i = 0;
    for (; i < RSI_BPF_NAME - 1 && name[i]; i++)
        text[i] = (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i];
    text[i] = 0;
    return text;
}

static void print_thread(struct rsi_sums_thread *t)
{
    if (t->state != RSI_BPF_ENDED)
        t->has_all_queued = rsi_joins_queue(t->pid, t->tid, &t->all_queued_ns);
    printf("thread\t%u\t%u\t%u\t%u\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t-\t%s\n", t->id,
           t->tid, t->pid, t->state, t->since_ns, t->first_ns, t->voluntary, t->involuntary,
           t->cpu_ns, t->queued_ns, t->queued_most_ns, clean(t->name));
    if (t->has_all_queued)
        printf("queue\t%u\t%llu\n", t->id, t->all_queued_ns);
}

static void print_sleep(const struct rsi_sums_sleep *s)
{
    printf("sleep\t%u\t-\t%u\t%u\t%llx\t%llu\t%llu\t%llu\t0\t0\t0\t\n", s->thread,
           (unsigned)s->wait.join, s->wait.kind, s->wait.site, s->count, s->ns, s->most_ns);
}

static void print_all(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("perf\t%llu\n", rsi_sums.lost_records);
    printf("now\t%llu\n",
           (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    for (__u32 i = 0; i < rsi_sums.count; i++)
        print_thread(&rsi_sums.threads[i]);
    for (size_t i = 0; i < RSI_BPF_SLEEPS; i++)
        if (rsi_sums.sleeps[i].count)
            print_sleep(&rsi_sums.sleeps[i]);
    printf("lost\t%llu\t%llu\t%llu\t0\n", rsi_sums.lost_threads, rsi_sums.lost_sleeps,
           rsi_joins_refused());
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        (void)fputs("usage: rouse-switches THREAD [WAITS]\n", stderr);
        return 2;
    }
    int error = argc == 3 ? rsi_joins_open(argv[2]) : 0;
    if (error < 0)
        die(argv[2], -error);
    error = rsi_rings_open((pid_t)strtol(argv[1], NULL, 10));
    if (error < 0)
        die("perf_event_open(2)", -error);
    watch();
    print_all();
    return ferror(stdout) || fflush(stdout) != 0;
}
