/* SPDX-License-Identifier: MIT */
/* team.c - see team.h. */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int bench_team_prepare(struct bench_team *team, struct bench_run *run, unsigned members)
{
    const size_t bytes = members * sizeof *team->member;
    memset(team, 0, sizeof *team);
    team->member = aligned_alloc(64, bytes);
    if (!team->member)
        return -ENOMEM;
    memset(team->member, 0, bytes);
    team->run = run;
    team->members = members;
    bench_sem_init(&team->finished);
    for (unsigned i = 0; i < members; i++) {
        bench_sem_init(&team->member[i].start);
        team->member[i].team = team;
        team->member[i].index = i;
    }
    return 0;
}

static void *member_main(void *arg)
{
    struct bench_member *member = arg;
    struct bench_team *team = member->team;

    bench_thread_entered(team->run, member->index);
    for (;;) {
        bench_sem_wait(&member->start);
        if (team->stop)
            return NULL;
        team->body(member, team->ops);
        bench_sem_post(&team->finished);
    }
}

int bench_team_begin(struct bench_team *team)
{
    for (unsigned i = 1; i < team->members; i++) {
        struct bench_member *member = &team->member[i];
        int error = bench_thread_create(team->run, &member->thread, member_main, member);
        if (error) {
            bench_team_end(team);
            return bench_fail(team->run, error, "creating a thread");
        }
        team->created = i;
    }
    return 0;
}

void bench_team_run(struct bench_team *team, uint64_t ops)
{
    team->ops = ops;
    for (unsigned i = 1; i < team->members; i++)
        bench_sem_post(&team->member[i].start);
    team->body(&team->member[0], ops);
    for (unsigned i = 1; i < team->members; i++)
        bench_sem_wait(&team->finished);
}

void bench_team_round(struct bench_team *team, uint64_t ops)
{
    bench_start(team->run);
    bench_team_run(team, ops);
    bench_stop(team->run);
}

void bench_team_end(struct bench_team *team)
{
    team->stop = true;
    for (unsigned i = 1; i <= team->created; i++)
        bench_sem_post(&team->member[i].start);
    for (unsigned i = 1; i <= team->created; i++)
        bench_thread_join(&team->member[i].thread);
    team->created = 0;
}

void bench_team_release(struct bench_team *team)
{
    free(team->member);
    team->member = NULL;
}

int bench_plain_prepare(struct bench_run *run,
                        void (*body)(struct bench_member *member, uint64_t ops))
{
    struct bench_team *team = malloc(sizeof *team);
    if (!team)
        return -ENOMEM;
    run->state = team;
    int error = bench_team_prepare(team, run, run->threads);
    team->body = body;
    return error;
}

int bench_plain_begin(struct bench_run *run)
{
    return bench_team_begin(run->state);
}

int bench_plain_sample(struct bench_run *run, uint64_t ops)
{
    const uint64_t each = (ops + run->threads - 1) / run->threads;
    bench_team_round(run->state, each);
    run->sample_ops = each * run->threads;
    return run->error;
}

void bench_plain_end(struct bench_run *run)
{
    bench_team_end(run->state);
}

void bench_plain_release(struct bench_run *run)
{
    bench_team_release(run->state);
    free(run->state);
}
