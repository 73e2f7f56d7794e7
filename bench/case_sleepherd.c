/* SPDX-License-Identifier: MIT */
/*
 * case_sleepherd.c - T threads that repeatedly sleep for --sleep-us. An operation is one wake-up.
 *
 * Each thread makes as many sleeps as fit into the sample's time, so ops / wall time is the rate of
 * wake-ups and its ideal is T / sleep. Each worker or processor counts lateness in classes that are a 64th
 * wide, so that the counters stay in the cache however many threads there are. Clumping is the mean number of
 * wake-ups per instant with at least one, where an instant is INSTANT_NS. Evenly spread sleeps of 10 ms give
 * 1 with 100 threads and 10 with 10,000 threads.
 */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>

#define INSTANT_NS 10000u
#define CLASS_BITS 6u
#define CLASSES (40u << CLASS_BITS)

struct lateness {
    _Alignas(64) _Atomic uint64_t most_ns, early;
    _Atomic uint32_t count[CLASSES];
};

struct state {
    struct bench_team team;
    uint64_t rounds; /* sleeps per thread in a sample */
    unsigned places; /* workers or processors */
    struct lateness *late;
    uint64_t instants; /* instants for which a sample has bits; later ones are not counted */
    uint64_t begin_ns; /* when the sample began */
    _Atomic uint64_t *instant, *instants_all;
};

/* Below 64 ns, each ns is a class. Above, each power of two has 64 classes. */
static unsigned class_of(uint64_t ns)
{
    if (ns < 1u << CLASS_BITS)
        return (unsigned)ns;
    const unsigned bits = 63u - (unsigned)__builtin_clzll(ns) - CLASS_BITS;
    const unsigned at = (bits << CLASS_BITS) + (unsigned)(ns >> bits);
    return at < CLASSES ? at : CLASSES - 1;
}

static double class_ns(unsigned at)
{
    const unsigned bits = at >> CLASS_BITS;
    if (bits == 0)
        return at;
    const uint64_t low = (at & ((1u << CLASS_BITS) - 1)) + (1u << CLASS_BITS);
    return (double)(low << (bits - 1));
}

static void note(struct bench_run *run, uint64_t now_ns, uint64_t due_ns)
{
    struct state *s = run->state;
    struct lateness *late = &s->late[bench_where(run) % s->places];
    const uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;
    if (now_ns < due_ns)
        atomic_fetch_add_explicit(&late->early, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&late->count[class_of(late_ns)], 1, memory_order_relaxed);
    if (late_ns > atomic_load_explicit(&late->most_ns, memory_order_relaxed))
        atomic_store_explicit(&late->most_ns, late_ns, memory_order_relaxed);

    const uint64_t instant = (now_ns - s->begin_ns) / INSTANT_NS, bit = UINT64_C(1) << instant % 64;
    if (instant >= s->instants)
        return;
    _Atomic uint64_t *word = &s->instant[instant / 64];
    if ((atomic_load_explicit(word, memory_order_relaxed) & bit) == 0)
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
}

static void sleep_again(struct bench_member *member, uint64_t rounds)
{
    struct bench_run *run = member->team->run;
    uint64_t now_ns = bench_now_ns();

    if (run->options.slack_ns)
        raw6(SYS_prctl, PR_SET_TIMERSLACK, (long)run->options.slack_ns, 0, 0, 0, 0);
    for (uint64_t i = 0; i < rounds; i++) {
        const uint64_t due_ns = now_ns + run->options.sleep_ns;
        bench_sleep_ns(run->options.sleep_ns);
        now_ns = bench_now_ns();
        note(run, now_ns, due_ns);
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
    s->places = run->workers > run->cpu_count ? run->workers : run->cpu_count;
    s->late = aligned_alloc(64, s->places * sizeof *s->late);
    s->instants = (2 * s->rounds * run->options.sleep_ns / INSTANT_NS + 64) / 64 * 64;
    s->instants_all = calloc(run->options.samples, s->instants / 8);
    if (!s->late || !s->instants_all)
        return -ENOMEM;
    for (unsigned i = 0; i < s->places; i++)
        s->late[i] = (struct lateness){ 0 };
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
    s->instant = s->instants_all + run->sample_count * (s->instants / 64);
    s->begin_ns = bench_now_ns();
    bench_team_round(&s->team, s->rounds);
    run->sample_ops = s->rounds * run->threads;
    return run->error;
}

static void end(struct bench_run *run)
{
    bench_team_end(&((struct state *)run->state)->team);
}

/* The lateness that a share of all wake-ups did not exceed. */
static double late_us(const struct state *s, double share)
{
    uint64_t all = 0, seen = 0;
    unsigned at = 0;
    for (unsigned i = 0; i < s->places; i++)
        for (unsigned k = 0; k < CLASSES; k++)
            all += s->late[i].count[k];
    for (; at < CLASSES - 1; at++) {
        for (unsigned i = 0; i < s->places; i++)
            seen += s->late[i].count[at];
        if ((double)seen >= share * (double)all)
            break;
    }
    return class_ns(at) / 1e3;
}

static void report(struct bench_run *run)
{
    const struct state *s = run->state;
    const double ops = (double)run->total_ops;
    uint64_t instants = 0, most_ns = 0, early = 0;

    for (uint64_t i = 0; i < run->options.samples * (s->instants / 64); i++)
        instants += (uint64_t)__builtin_popcountll(s->instants_all[i]);
    for (unsigned i = 0; i < s->places; i++) {
        early += s->late[i].early;
        if (s->late[i].most_ns > most_ns)
            most_ns = s->late[i].most_ns;
    }
    bench_figure(run, "wakeups_per_s", ops * 1e9 / (double)run->total.wall_ns);
    bench_figure(run, "ideal_per_s", run->threads * 1e9 / (double)run->options.sleep_ns);
    bench_figure(run, "late_p50_us", late_us(s, 0.5));
    bench_figure(run, "late_p99_us", late_us(s, 0.99));
    bench_figure(run, "late_max_us", (double)most_ns / 1e3);
    bench_figure(run, "cpu_us_per_wakeup", (double)run->total.cpu_ns / 1e3 / ops);
    bench_figure(run, "switches_per_wakeup",
                 (double)(run->total.voluntary + run->total.involuntary) / ops);
    bench_figure(run, "early", (double)early);
    bench_figure(run, "clumping", instants ? ops / (double)instants : 0);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    bench_team_release(&s->team);
    free(s->late);
    free(s->instants_all);
    free(s);
}

const struct bench_case BENCH_NAME(case_sleepherd) = {
    .name = "sleepherd",
    .summary = "T threads sleep --sleep-us again and again; rate, lateness, clumping of wake-ups",
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
