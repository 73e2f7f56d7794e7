/* SPDX-License-Identifier: MIT */
/*
 * case_sleep.c - T threads that sleep --sleep-us again and again; an operation is one wake-up.
 *
 * Each thread makes as many sleeps as fit into the sample's time, so ops / wall time is the rate of
 * wake-ups and its ideal is T / sleep. Lateness is noted in the thread's own array: no line is shared.
 */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct state {
    struct bench_team team;
    uint64_t rounds;   /* sleeps a thread makes in a sample */
    uint64_t capacity; /* of a thread's array */
    uint32_t *late_ns; /* capacity a member */
};

static void sleep_again(struct bench_member *member, uint64_t rounds)
{
    struct bench_run *run = member->team->run;
    struct state *s = run->state;
    uint32_t *late_ns = s->late_ns + member->index * s->capacity;

    for (uint64_t i = 0; i < rounds; i++) {
        const uint64_t due_ns = bench_now_ns() + run->options.sleep_ns;
        bench_sleep_ns(run->options.sleep_ns);
        const uint64_t late = bench_now_ns() - due_ns;
        if (member->done < s->capacity)
            late_ns[member->done++] = late < UINT32_MAX ? (uint32_t)late : UINT32_MAX;
        bench_count_some(run, i, rounds);
    }
}

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    const double sample_ns = run->options.seconds * 1e9 / run->options.samples;
    s->rounds = (uint64_t)(sample_ns / (double)run->options.sleep_ns);
    if (run->options.ops)
        s->rounds = (run->options.ops + run->threads - 1) / run->threads;
    if (s->rounds == 0)
        s->rounds = 1;
    s->capacity = s->rounds * run->options.samples;
    const size_t bytes = run->threads * s->capacity * sizeof *s->late_ns;
    s->late_ns = malloc(bytes);
    if (!s->late_ns)
        return -ENOMEM;
    memset(s->late_ns, 0xff, bytes); /* its page faults are not ours */
    int error = bench_team_prepare(&s->team, run, run->threads);
    s->team.body = sleep_again;
    return error;
}

static int begin(struct bench_run *run)
{
    return bench_team_begin(&((struct state *)run->state)->team);
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    (void)ops;
    bench_team_round(&s->team, s->rounds);
    run->sample_ops = s->rounds * run->threads;
    return 0;
}

static void end(struct bench_run *run)
{
    bench_team_end(&((struct state *)run->state)->team);
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(struct bench_run *run)
{
    struct state *s = run->state;
    uint64_t n = 0;

    for (unsigned i = 0; i < run->threads; i++) {
        memmove(s->late_ns + n, s->late_ns + i * s->capacity,
                s->team.member[i].done * sizeof *s->late_ns);
        n += s->team.member[i].done;
    }
    qsort(s->late_ns, n, sizeof *s->late_ns, compare);
    bench_figure(run, "wakeups_per_s", (double)run->total_ops * 1e9 / (double)run->total.wall_ns);
    bench_figure(run, "ideal_per_s", run->threads * 1e9 / (double)run->options.sleep_ns);
    const size_t half = n / 2, most = n * 99 / 100;
    bench_figure(run, "late_p50_us", s->late_ns[half] / 1e3);
    bench_figure(run, "late_p99_us", s->late_ns[most] / 1e3);
    bench_figure(run, "late_max_us", s->late_ns[n - 1] / 1e3);
    bench_figure(run, "cpu_us_per_wakeup",
                 (double)run->total.cpu_ns / 1e3 / (double)run->total_ops);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    bench_team_release(&s->team);
    free(s->late_ns);
    free(s);
}

const struct bench_case BENCH_NAME(case_sleep) = {
    .name = "sleep",
    .summary = "T threads sleep --sleep-us again and again; rate and lateness of wake-ups",
    .threads = 100,
    .samples = 3,
    .flags = BENCH_TIMED,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
