/* SPDX-License-Identifier: MIT */
/*
 * case_pingpong.c - pairs of threads with two semaphores per pair. An operation is one round trip.
 *
 * T threads form T/2 pairs: each member of the team has its own partner.
 */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct court {
    _Alignas(64) struct bench_sem ping;
    _Alignas(64) struct bench_sem pong;
    struct bench_run *run;
    struct bench_thread partner;
    unsigned index;
    bool stop; /* written before the last ping */
};

struct state {
    struct bench_team team;
    struct court *courts; /* one per member */
    unsigned partners;    /* created */
};

static void play(struct bench_member *member, uint64_t ops)
{
    struct bench_run *run = member->team->run;
    struct court *court = &((struct state *)run->state)->courts[member->index];

    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(run, i, ops);
        bench_sem_post(&court->ping);
        bench_sem_wait(&court->pong);
    }
}

static int prepare(struct bench_run *run)
{
    const unsigned pairs = run->threads / 2;
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->courts = aligned_alloc(64, pairs * sizeof *s->courts);
    if (!s->courts)
        return -ENOMEM;
    memset(s->courts, 0, pairs * sizeof *s->courts);
    for (unsigned i = 0; i < pairs; i++) {
        bench_sem_init(&s->courts[i].ping);
        bench_sem_init(&s->courts[i].pong);
        s->courts[i].run = run;
        s->courts[i].index = i;
    }
    int error = bench_team_prepare(&s->team, run, pairs);
    s->team.body = play;
    return error;
}

static void *partner_main(void *arg)
{
    struct court *court = arg;
    bench_thread_entered(court->run, court->index + court->run->threads / 2);
    for (;;) {
        bench_sem_wait(&court->ping);
        if (court->stop)
            return NULL;
        bench_sem_post(&court->pong);
    }
}

static void end(struct bench_run *run)
{
    struct state *s = run->state;
    for (; s->partners > 0; s->partners--) {
        struct court *court = &s->courts[s->partners - 1];
        court->stop = true;
        bench_sem_post(&court->ping);
        bench_thread_join(&court->partner);
    }
    bench_team_end(&s->team);
}

static int begin(struct bench_run *run)
{
    struct state *s = run->state;
    int error = bench_team_begin(&s->team);
    if (error)
        return error;
    for (; s->partners < run->threads / 2; s->partners++) {
        struct court *court = &s->courts[s->partners];
        error = bench_thread_create(run, &court->partner, partner_main, court);
        if (error) {
            end(run);
            return bench_fail(run, error, "creating a thread");
        }
    }
    return 0;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    const unsigned pairs = run->threads / 2;
    const uint64_t each = (ops + pairs - 1) / pairs;
    bench_team_round(&((struct state *)run->state)->team, each);
    run->sample_ops = each * pairs;
    return 0;
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    bench_team_release(&s->team);
    free(s->courts);
    free(s);
}

const struct bench_case BENCH_NAME(case_pingpong) = {
    .name = "pingpong",
    .summary = "pairs of threads wake each other by two semaphores; a round trip",
    .threads = 2,
    .flags = BENCH_PAIRS,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .release = release,
};
