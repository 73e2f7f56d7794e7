/* SPDX-License-Identifier: MIT */
/*
 * case_mutex.c - T threads on one lock with a short critical section; an operation is one lock+unlock.
 *
 * All threads stop together. The first thread to see that the time is up, or that -n operations are done,
 * sets the end, and each thread checks it before every operation. Stragglers therefore do not distort fairness,
 * the most operations of one thread divided by the least.
 * User threads are not pre-empted. They yield every 64 operations (--yield-every), since one worker would
 * otherwise run one thread for ever. Kernel threads do not yield.
 */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_EVERY 256u

struct state {
    union {
        _Alignas(64) struct bench_mutex mutex;
#ifdef BENCH_CLONE
        struct clone_spin spin;
#endif
    } lock;
    _Alignas(64) uint64_t shared; /* what the lock protects */
    _Alignas(64) atomic_bool stop;
    uint64_t deadline_ns;
    uint64_t last; /* the value of shared at which all stop */
    unsigned yield_every;
    struct bench_team team;
};

static void lock(const struct bench_run *run, struct state *s)
{
#ifdef BENCH_CLONE
    if (run->options.spin_lock) {
        clone_spin_lock(&s->lock.spin);
        return;
    }
#endif
    (void)run;
    bench_mutex_lock(&s->lock.mutex);
}

static void unlock(const struct bench_run *run, struct state *s)
{
#ifdef BENCH_CLONE
    if (run->options.spin_lock) {
        clone_spin_unlock(&s->lock.spin);
        return;
    }
#endif
    (void)run;
    bench_mutex_unlock(&s->lock.mutex);
}

/* Keep the processor, and so the lock, for --hold-us. */
static void hold(const struct bench_run *run)
{
    if (run->options.hold_ns == 0)
        return;
    const uint64_t until_ns = bench_now_ns() + run->options.hold_ns;
    while (bench_now_ns() < until_ns)
        ;
}

static void contend(struct bench_member *member, uint64_t ops)
{
    struct bench_run *run = member->team->run;
    struct state *s = run->state;
    uint64_t done = 0;

    (void)ops;
    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        lock(run, s);
        hold(run);
        if (++s->shared >= s->last)
            atomic_store_explicit(&s->stop, true, memory_order_relaxed);
        unlock(run, s);
        done++;
        if (s->yield_every && done % s->yield_every == 0)
            bench_thread_yield();
        if (done % CLOCK_EVERY == 0) {
            bench_count(run, CLOCK_EVERY);
            if (bench_now_ns() >= s->deadline_ns)
                atomic_store_explicit(&s->stop, true, memory_order_relaxed);
        }
    }
    bench_count(run, done % CLOCK_EVERY);
    member->done += done;
}

static int prepare(struct bench_run *run)
{
    struct state *s = aligned_alloc(64, sizeof *s);
    if (!s)
        return -ENOMEM;
    memset(s, 0, sizeof *s);
    run->state = s;
    s->yield_every = run->options.yield_every < 0 ? (bench_is_user(run) ? 64 : 0)
                                                  : (unsigned)run->options.yield_every;
    bench_mutex_init(&s->lock.mutex);
    int error = bench_team_prepare(&s->team, run, run->threads);
    s->team.body = contend;
    return error;
}

static int begin(struct bench_run *run)
{
    return bench_team_begin(&((struct state *)run->state)->team);
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    const uint64_t before = s->shared;

    atomic_store_explicit(&s->stop, false, memory_order_relaxed);
    s->last = ops ? before + ops : UINT64_MAX;
    s->deadline_ns = ops ? UINT64_MAX : bench_now_ns() + run->sample_ns;
    bench_team_round(&s->team, ops);
    run->sample_ops = s->shared - before;
    return 0;
}

static void end(struct bench_run *run)
{
    bench_team_end(&((struct state *)run->state)->team);
}

static void report(struct bench_run *run)
{
    const struct state *s = run->state;
    uint64_t most = 0, least = UINT64_MAX, sum = 0;

    for (unsigned i = 0; i < s->team.members; i++) {
        const uint64_t done = s->team.member[i].done;
        sum += done;
        if (done > most)
            most = done;
        if (done < least)
            least = done;
    }
    bench_figure(run, "most_ops", (double)most);
    bench_figure(run, "least_ops", (double)least);
    if (least > 0)
        bench_figure(run, "fairness", (double)most / (double)least);
    bench_figure(run, "yield_every", s->yield_every);
    bench_figure(run, "lost_updates", (double)sum - (double)s->shared);
}

static void release(struct bench_run *run)
{
    bench_team_release(&((struct state *)run->state)->team);
    free(run->state);
}

#if !defined(BENCH_CLONE) && !defined(BENCH_PEER)
extern const struct bench_case BENCH_NAME(case_mutex_shared);
#define SHARED &BENCH_NAME(case_mutex_shared)
#else
#define SHARED NULL
#endif

const struct bench_case BENCH_NAME(case_mutex) = {
    .name = "mutex",
    .summary = "T threads on one lock; fairness is most/least operations of a thread",
    .threads = 8,
    .flags = BENCH_TIMED | BENCH_CALLS,
    .shared = SHARED,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
