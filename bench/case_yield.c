/* SPDX-License-Identifier: MIT */
/* case_yield.c - T threads that do nothing but yield; an operation is one yield. */
#include "team.h"

#include <errno.h>
#include <stdlib.h>

static void yield(struct bench_member *member, uint64_t ops)
{
    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(member->team->run, i, ops);
        bench_thread_yield();
    }
}

static int prepare(struct bench_run *run)
{
    struct bench_team *team = malloc(sizeof *team);
    if (!team)
        return -ENOMEM;
    run->state = team;
    int error = bench_team_prepare(team, run, run->threads);
    team->body = yield;
    return error;
}

static int begin(struct bench_run *run)
{
    return bench_team_begin(run->state);
}

static int sample(struct bench_run *run, uint64_t ops)
{
    const uint64_t each = (ops + run->threads - 1) / run->threads;
    bench_team_round(run->state, each);
    run->sample_ops = each * run->threads;
    return 0;
}

static void end(struct bench_run *run)
{
    bench_team_end(run->state);
}

static void release(struct bench_run *run)
{
    bench_team_release(run->state);
    free(run->state);
}

const struct bench_case BENCH_NAME(case_yield) = {
    .name = "yield",
    .summary = "T threads that only yield",
    .threads = 2,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .release = release,
};
