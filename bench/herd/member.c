/* SPDX-License-Identifier: MIT */
/* member.c - the loop of a herd thread, over the selected kind of select(). */
#include "herd/herd.h"

#include <sys/prctl.h>
#include <unistd.h>

static uint32_t random_below(struct herd_member *m, uint32_t end)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % end);
}

static int call(struct herd_member *m, uint32_t *taken)
{
    switch (m->herd->options->via) {
    case BENCH_VIA_LAYER: return herd_layer_call(m, taken);
    case BENCH_VIA_ROUSE: return herd_rouse_call(m, taken);
    default: return herd_poll_call(m, taken);
    }
}

void herd_post(struct herd_member *by, uint32_t at)
{
    by->counts.events++;
    if (by->herd->options->via == BENCH_VIA_LAYER)
        herd_layer_post(by, at);
    else
        herd_poll_post(by, at);
}

/* Pass a taken event on to the next window, unless the sample has enough events. */
static void hand_on(struct herd_member *m)
{
    struct herd *h = m->herd;
    const uint64_t most = atomic_load_explicit(&h->hops_most, memory_order_relaxed);
    const uint64_t hop = atomic_fetch_add_explicit(&h->hops, 1, memory_order_relaxed) + 1;

    if (h->options->stepped)
        return;
    if (hop < most) {
        const uint32_t next = herd_window(h, (m->index + h->options->share) % h->active);
        herd_post(m, next + random_below(m, h->sets));
    } else {
        atomic_fetch_sub_explicit(&h->tokens, 1, memory_order_relaxed);
    }
}

static uint64_t microseconds_ns(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_usec * 1000u;
}

struct herd_use herd_own_use(void)
{
    struct rusage usage = { 0 };
    getrusage(RUSAGE_SELF, &usage);
    return (struct herd_use){
        .user_ns = microseconds_ns(usage.ru_utime),
        .system_ns = microseconds_ns(usage.ru_stime),
        .voluntary = (uint64_t)usage.ru_nvcsw,
        .involuntary = (uint64_t)usage.ru_nivcsw,
    };
}

void herd_member_run(struct herd_member *m)
{
    struct herd *h = m->herd;
    uint32_t taken[HERD_TAKEN_MAX];
    const uint64_t before = m->counts.calls;
    int count;

    while (!atomic_load_explicit(&h->stop, memory_order_relaxed) && (count = call(m, taken)) >= 0) {
        m->counts.calls++;
        for (int i = 0; i < count; i++)
            hand_on(m);
    }
    if (!h->options->forked)
        bench_count(h->run, m->counts.calls - before);
}

/* For the exact timer, set the timer slack to its minimum. It does not matter for ticks. */
void herd_member_enter(struct herd_member *m)
{
    const struct bench_options *o = m->herd->options;
    if (o->via == BENCH_VIA_LAYER && !o->tick)
        prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    bench_thread_entered(m->herd->run, m->index);
    if (o->via == BENCH_VIA_LAYER && o->broadcast)
        herd_layer_tie_all(m);
}

_Noreturn void herd_process_main(struct herd_member *m)
{
    struct herd *h = m->herd;
    uint32_t round = 0;

    prctl(PR_SET_PDEATHSIG, 9ul, 0ul, 0ul, 0ul);
    herd_member_enter(m);
    for (;;) {
        m->used = herd_own_use();
        atomic_fetch_add_explicit(&h->finished, 1, memory_order_acq_rel); /* herd_gang_wait */
        herd_futex_wake(h, &h->finished, 1);
        while (atomic_load_explicit(&h->round, memory_order_acquire) == round)
            herd_futex_wait(h, &h->round, round, UINT64_MAX);
        if (atomic_load_explicit(&h->quit, memory_order_relaxed))
            _exit(0);
        round++;
        herd_member_run(m);
    }
}
