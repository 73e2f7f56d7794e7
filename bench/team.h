/* SPDX-License-Identifier: MIT */
/*
 * team.h - T threads that do the same work in each sample.
 *
 * Member 0 is the measuring thread. The others wait for their own semaphore between samples, so a
 * sample's cost excludes thread creation. A case whose threads run a single loop consists of a body and
 * the bench_plain functions. Its state is the team.
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include "impl.h"

struct bench_team;

struct bench_member {
    _Alignas(64) struct bench_sem start;
    struct bench_thread thread;
    struct bench_team *team;
    unsigned index;
    uint64_t done; /* operations of all samples together, for use by the case */
};

struct bench_team {
    struct bench_run *run;
    void (*body)(struct bench_member *member, uint64_t ops);
    uint64_t ops; /* operations of each member in this sample */
    bool stop;
    unsigned members, created;
    struct bench_sem finished;
    struct bench_member *member;
};

/* Called in prepare. Returns 0 or -ENOMEM. */
int BENCH_NAME(bench_team_prepare)(struct bench_team *team, struct bench_run *run,
                                   unsigned members);
/* Called in begin. Starts members 1 and up. On error, it stops those that it has started. */
int BENCH_NAME(bench_team_begin)(struct bench_team *team);
/* Every member runs body(member, ops) once. */
void BENCH_NAME(bench_team_run)(struct bench_team *team, uint64_t ops);
/* Called in sample. As bench_team_run, and the whole is measured. */
void BENCH_NAME(bench_team_round)(struct bench_team *team, uint64_t ops);
void BENCH_NAME(bench_team_end)(struct bench_team *team);
void BENCH_NAME(bench_team_release)(struct bench_team *team);

int BENCH_NAME(bench_plain_prepare)(struct bench_run *run,
                                    void (*body)(struct bench_member *member, uint64_t ops));
int BENCH_NAME(bench_plain_begin)(struct bench_run *run);
int BENCH_NAME(bench_plain_sample)(struct bench_run *run, uint64_t ops);
void BENCH_NAME(bench_plain_end)(struct bench_run *run);
void BENCH_NAME(bench_plain_release)(struct bench_run *run);

#define bench_plain_prepare BENCH_NAME(bench_plain_prepare)
#define bench_plain_begin BENCH_NAME(bench_plain_begin)
#define bench_plain_sample BENCH_NAME(bench_plain_sample)
#define bench_plain_end BENCH_NAME(bench_plain_end)
#define bench_plain_release BENCH_NAME(bench_plain_release)

#define bench_team_prepare BENCH_NAME(bench_team_prepare)
#define bench_team_begin BENCH_NAME(bench_team_begin)
#define bench_team_run BENCH_NAME(bench_team_run)
#define bench_team_round BENCH_NAME(bench_team_round)
#define bench_team_end BENCH_NAME(bench_team_end)
#define bench_team_release BENCH_NAME(bench_team_release)

#endif
