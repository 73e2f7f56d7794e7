/* SPDX-License-Identifier: MIT */
/*
 * case_steal.c - how the workers of a cluster share threads that are created on one of them.
 *
 * A creator repeatedly makes T threads at once and waits until they have ended. Each thread has one to
 * TURNS_MOST turns, and the number differs between threads. An operation is a turn. In a turn a thread reads
 * its own --footprint bytes, or computes for about as long if it has none, and then yields. The bytes of a
 * stolen thread are in another CPU's cache.
 * Each turn's wait in the run queue is counted, from creation or yield to the start of the turn.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TURNS_MOST 16u
#define COMPUTE_ROUNDS 1000u
#define LINE 64u
#define STEPS 8u /* histogram buckets per doubling */
#define BUCKETS (48u * STEPS)

struct member {
    struct state *state;
    char *bytes;
    uint64_t made_ns;
    unsigned turns;
};

struct state {
    struct bench_run *run;
    struct rouse_cluster *cluster;
    struct member *members;
    struct rouse_sem done;
    uint64_t ops;
    _Atomic uint64_t left;           /* members of the round that have not ended */
    _Atomic uint64_t waits[BUCKETS]; /* counted from the first recorded sample on */
    _Atomic uint64_t turns;
    uint64_t random;
    struct rouse_cluster_stats before;
};

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    size_t footprint = run->options.footprint;
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->run = run;
    s->random = 1;
    rouse_sem_init(&s->done, 0, NULL);
    s->members = calloc(run->threads, sizeof *s->members);
    for (unsigned i = 0; s->members && i < run->threads; i++) {
        s->members[i].state = s;
        s->members[i].bytes = aligned_alloc(LINE, footprint ? footprint : LINE);
        if (!s->members[i].bytes)
            return -ENOMEM;
        memset(s->members[i].bytes, 1, footprint ? footprint : LINE);
    }
    return s->members ? 0 : -ENOMEM;
}

static int begin(struct bench_run *run)
{
    struct state *s = run->state;
    struct rouse_cluster_attr attr = {
        .name = "steal",
        .workers = run->workers,
        .place = run->options.shortest ? ROUSE_PLACE_SHORTEST : ROUSE_PLACE_STEAL,
        .steal_affinity = run->options.affinity,
    };
    return rouse_cluster_create(&s->cluster, &attr);
}

static unsigned bucket_of(uint64_t ns)
{
    if (ns < STEPS)
        return (unsigned)ns;
    unsigned power = 63 - (unsigned)__builtin_clzll(ns);
    unsigned bucket = (power - 2) * STEPS + (unsigned)(ns >> (power - 3) & (STEPS - 1));
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* The lower bound of the bucket. */
static double least_of(unsigned bucket)
{
    if (bucket < STEPS)
        return bucket;
    return ldexp(STEPS + bucket % STEPS, (int)(bucket / STEPS) - 1);
}

static void work(struct member *member)
{
    const size_t footprint = member->state->run->options.footprint;
    volatile char *bytes = member->bytes;
    for (size_t at = 0; at < footprint; at += LINE)
        bytes[at] = (char)(bytes[at] + 1);
    for (unsigned i = 0; footprint == 0 && i < COMPUTE_ROUNDS; i++)
        bytes[0] = (char)(bytes[0] + 1);
}

static void *member_run(void *arg)
{
    struct member *member = arg;
    struct state *s = member->state;
    uint64_t since = member->made_ns;
    for (unsigned turn = 0; turn < member->turns; turn++) {
        uint64_t now = bench_now_ns();
        atomic_fetch_add_explicit(&s->waits[bucket_of(now - since)], 1, memory_order_relaxed);
        work(member);
        since = bench_now_ns();
        if (turn + 1 < member->turns)
            bench_thread_yield();
    }
    bench_count(s->run, member->turns);
    if (atomic_fetch_sub(&s->left, 1) == 1)
        rouse_sem_post(&s->done);
    return NULL;
}

/* Run one round. Returns its number of turns, or 0 when a thread could not be created. */
static uint64_t round_make(struct state *s)
{
    const struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER,
                                            .detached = true,
                                            .stack_bytes = BENCH_STACK_BYTES };
    uint64_t turns = 0;
    atomic_store(&s->left, s->run->threads);
    for (unsigned i = 0; i < s->run->threads; i++) {
        struct member *member = &s->members[i];
        s->random = s->random * 6364136223846793005u + 1442695040888963407u;
        member->turns = 1 + (unsigned)(s->random >> 33) % TURNS_MOST;
        member->made_ns = bench_now_ns();
        if (rouse_thread_create(NULL, &attr, member_run, member) != 0)
            return 0;
        turns += member->turns;
    }
    rouse_sem_wait(&s->done);
    return turns;
}

static void *creator(void *arg)
{
    struct state *s = arg;
    uint64_t turns = 0, more = 1;
    while (turns < s->ops && more != 0) {
        more = round_make(s);
        turns += more;
    }
    s->run->sample_ops = more != 0 ? turns : 0;
    return NULL;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER, .cluster = s->cluster };
    struct rouse_thread *thread;
    s->ops = ops;
    if (run->sample_count == 0) { /* discard the counts of the calibration */
        memset(s->waits, 0, sizeof s->waits);
        rouse_cluster_stats_read(s->cluster, &s->before);
    }
    bench_start(run);
    int error = rouse_thread_create(&thread, &attr, creator, s);
    if (!error)
        error = rouse_thread_join(thread, NULL);
    bench_stop(run);
    if (!error && run->sample_ops == 0)
        error = -EAGAIN;
    return error ? bench_fail(run, error, "creating a thread") : 0;
}

/* A quantile of the turns' waits, in us. */
static double wait_us(const struct state *s, double share)
{
    uint64_t total = 0, seen = 0;
    unsigned bucket = 0;
    for (unsigned i = 0; i < BUCKETS; i++)
        total += s->waits[i];
    while (bucket < BUCKETS - 1 && (double)(seen += s->waits[bucket]) < share * (double)total)
        bucket++;
    return least_of(bucket + 1) / 1000;
}

static void report(struct bench_run *run)
{
    struct state *s = run->state;
    struct rouse_cluster_stats after;
    rouse_cluster_stats_read(s->cluster, &after);
    const double ops = (double)run->total_ops;
    bench_figure(run, "affinity", after.steal_affinity);
    bench_text(run, "place", after.place == ROUSE_PLACE_SHORTEST ? "shortest" : "steal");
    bench_figure(run, "footprint", run->options.footprint);
    bench_figure(run, "steals_per_1000", 1000 * (double)(after.steals - s->before.steals) / ops);
    bench_figure(run, "stolen_per_1000", 1000 * (double)(after.stolen - s->before.stolen) / ops);
    bench_figure(run, "wait_p50_us", wait_us(s, 0.5));
    bench_figure(run, "wait_p99_us", wait_us(s, 0.99));
    (void)rouse_cluster_destroy(s->cluster);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    for (unsigned i = 0; s->members && i < run->threads; i++)
        free(s->members[i].bytes);
    free(s->members);
    free(s);
}

const struct bench_case BENCH_NAME(case_steal) = {
    .name = "steal",
    .summary =
        "threads made on one worker of a cluster, by steal affinity, placement and footprint",
    .threads = 64,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .report = report,
    .release = release,
};
