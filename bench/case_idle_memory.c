/* SPDX-License-Identifier: MIT */
/*
 * case_idle_memory.c - resident bytes of threads that wait, by what they wait for, before and after stacks are
 * trimmed.
 *
 * There are four sorts of T threads each: one waits for a semaphore, one sleeps for a day, one reads from a
 * socket, and one waits for a semaphore after using 32 KiB of its stack. The sorts are created one after the
 * other and all threads stay until the end, so that no thread reuses another's pages. Then all threads end and
 * the memory that the free stacks retain is measured.
 */
#include "impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEEP_BYTES 32768
#define DAY_NS 86400000000000u

enum sort { SEMAPHORE, SLEEP, SOCKET, DEEP, SORTS };

struct idler {
    struct bench_sem sem;
    struct bench_thread thread;
    struct state *state;
    int ends[2]; /* the thread has the second one */
};

struct state {
    struct bench_sem ready;
    struct idler *idlers[SORTS];
    uint64_t capacity, opened;
    uint64_t pages[SORTS + 1];   /* before each sort, and after the last */
    uint64_t trimmed[SORTS + 1]; /* the same, after the stacks were trimmed */
    uint64_t before_end, ended, ended_trimmed;
};

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    bench_sem_init(&s->ready);
    s->capacity = run->threads;
    const size_t bytes = s->capacity * sizeof *s->idlers[0];
    for (unsigned sort = 0; sort < SORTS; sort++) {
        s->idlers[sort] = malloc(bytes);
        if (!s->idlers[sort])
            return -ENOMEM;
        memset(s->idlers[sort], 0xff, bytes); /* touched, so that it is not counted */
        memset(s->idlers[sort], 0, bytes);
        for (uint64_t i = 0; i < s->capacity; i++) {
            bench_sem_init(&s->idlers[sort][i].sem);
            s->idlers[sort][i].state = s;
        }
    }
    for (; s->opened < s->capacity; s->opened++)
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s->idlers[SOCKET][s->opened].ends))
            return bench_fail(run, -errno, "making a pair of sockets");
    return 0;
}

static void *wait_for_semaphore(void *arg)
{
    struct idler *idler = arg;
    bench_sem_post(&idler->state->ready);
    bench_sem_wait(&idler->sem);
    return NULL;
}

static void *sleep_long(void *arg)
{
    struct idler *idler = arg;
    bench_sem_post(&idler->state->ready);
    (void)rouse_sleep(DAY_NS);
    return NULL;
}

static void *read_socket(void *arg)
{
    struct idler *idler = arg;
    char byte;
    bench_sem_post(&idler->state->ready);
    (void)rouse_read(idler->ends[1], &byte, 1);
    return NULL;
}

__attribute__((noinline)) static void go_deep(void)
{
    volatile char frame[DEEP_BYTES];
    for (size_t i = 0; i < sizeof frame; i += 1024)
        frame[i] = 1;
}

static void *wait_after_depth(void *arg)
{
    go_deep();
    return wait_for_semaphore(arg);
}

static void *(*const functions[SORTS])(void *) = { wait_for_semaphore, sleep_long, read_socket,
                                                   wait_after_depth };

static int gather(struct bench_run *run, enum sort sort)
{
    struct state *s = run->state;
    for (uint64_t i = 0; i < s->capacity; i++) {
        struct idler *idler = &s->idlers[sort][i];
        int error = bench_thread_create(run, &idler->thread, functions[sort], idler);
        if (error)
            return bench_fail(run, error, "creating a thread");
        bench_sem_wait(&s->ready);
    }
    bench_sleep_ns(100000000); /* the last threads may not have gone to sleep yet */
    return 0;
}

static void look(struct state *s, unsigned at)
{
    s->pages[at] = raw_resident_pages();
    (void)rouse_stacks_trim(0);
    s->trimmed[at] = raw_resident_pages();
}

static void end_all(struct state *s)
{
    for (uint64_t i = 0; i < s->capacity; i++) {
        bench_sem_post(&s->idlers[SEMAPHORE][i].sem);
        (void)rouse_thread_cancel(s->idlers[SLEEP][i].thread.handle);
        (void)bench_send(s->idlers[SOCKET][i].ends[0], "x", 1);
        bench_sem_post(&s->idlers[DEEP][i].sem);
    }
    for (unsigned sort = 0; sort < SORTS; sort++)
        for (uint64_t i = 0; i < s->capacity; i++)
            bench_thread_join(&s->idlers[sort][i].thread);
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    (void)ops;
    bench_start(run);
    look(s, 0);
    for (unsigned sort = 0; sort < SORTS; sort++) {
        int error = gather(run, sort);
        if (error)
            return error;
        look(s, sort + 1);
    }
    bench_stop(run);
    s->before_end = raw_resident_pages();
    end_all(s);
    s->ended = raw_resident_pages();
    (void)rouse_stacks_trim(0);
    s->ended_trimmed = raw_resident_pages();
    bench_count(run, SORTS * s->capacity);
    run->sample_ops = SORTS * s->capacity;
    return 0;
}

static double bytes_each(const struct bench_run *run, uint64_t more, uint64_t less, uint64_t count)
{
    return ((double)more - (double)less) * run->page_bytes / (double)count;
}

static void report(struct bench_run *run)
{
    static const char *const names[SORTS][2] = {
        { "semaphore_bytes", "semaphore_bytes_trimmed" },
        { "sleep_bytes", "sleep_bytes_trimmed" },
        { "socket_bytes", "socket_bytes_trimmed" },
        { "deep_bytes", "deep_bytes_trimmed" },
    };
    const struct state *s = run->state;
    for (unsigned i = 0; i < SORTS; i++) {
        const uint64_t less = s->trimmed[i];
        bench_figure(run, names[i][0], bytes_each(run, s->pages[i + 1], less, s->capacity));
        bench_figure(run, names[i][1], bytes_each(run, s->trimmed[i + 1], less, s->capacity));
    }
    const uint64_t all = SORTS * s->capacity;
    bench_figure(run, "ended_bytes", bytes_each(run, s->ended, s->trimmed[0], all));
    bench_figure(run, "ended_bytes_trimmed", bytes_each(run, s->ended_trimmed, s->trimmed[0], all));
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    for (uint64_t i = 0; i < s->opened; i++) {
        close(s->idlers[SOCKET][i].ends[0]);
        rouse_close(s->idlers[SOCKET][i].ends[1]);
    }
    for (unsigned sort = 0; sort < SORTS; sort++)
        free(s->idlers[sort]);
    free(s);
}

const struct bench_case BENCH_NAME(case_idle_memory) = {
    .name = "idle_memory",
    .summary =
        "resident bytes of T threads of each sort of wait, before and after stacks are trimmed",
    .threads = 2000,
    .samples = 1,
    .flags = BENCH_FIXED_OPS | BENCH_ONE_SAMPLE,
    .prepare = prepare,
    .sample = sample,
    .report = report,
    .release = release,
};
