/* SPDX-License-Identifier: MIT */
/* member.c - what a thread of the herd does, over whichever select() it is to use. */
#include "herd/herd.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

void herd_note_timer(struct herd_member *m, uint64_t at_ns, uint64_t now_ns)
{
    const uint64_t at = m->counts.stamps++;
    if (at < HERD_STAMPS)
        m->stamp[at] = (struct herd_stamp){
            .at_ns = at_ns,
            .late_ns = now_ns >= m->deadline_ns ? now_ns - m->deadline_ns : UINT64_MAX,
        };
}

static uint32_t random_below(struct herd_member *m, uint32_t end)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % end);
}

void herd_poll_post(struct herd_member *by, uint32_t at)
{
    const uint64_t one = 1;
    raw6(SYS_write, by->herd->eventfd[at], (long)&one, sizeof one, 0, 0, 0);
}

/* Read what poll found; others who share the window may have been faster. */
static int take_polled(struct herd_member *m, uint32_t *taken)
{
    const struct herd *h = m->herd;
    int count = 0;

    for (uint32_t i = 0; i < h->sets && count < (int)HERD_TAKEN_MAX; i++) {
        uint64_t value;
        if (m->polled[i].revents != 0 &&
            raw6(SYS_read, m->polled[i].fd, (long)&value, sizeof value, 0, 0, 0) > 0)
            taken[count++] = herd_window(h, m->index) + i;
    }
    return count;
}

/*
 * What the caller cannot know is told as it looks from outside: whether a call that found events slept for
 * them, so all are counted as useful; nor whether a wake-up inside the call was false or early.
 */
static int judge_polled(struct herd_member *m, int ready, uint32_t *taken, bool *over)
{
    struct herd_verdicts *v = &m->counts.verdicts;
    const int count = ready > 0 ? take_polled(m, taken) : 0;
    const uint64_t now_ns = herd_now_ns();

    *over = now_ns >= m->deadline_ns;
    if (count > 0)
        v->useful++;
    else if (ready > 0)
        v->lost_race++;
    else if (*over) {
        herd_note_timer(m, now_ns, now_ns);
        v->timeout++;
    }
    if (atomic_load_explicit(&m->herd->stop, memory_order_relaxed))
        return -1;
    return count;
}

static void begin_polled(struct herd_member *m)
{
    const uint64_t timeout_ns = m->herd->options->timeout_ns;
    m->deadline_ns = timeout_ns ? herd_now_ns() + timeout_ns : UINT64_MAX;
}

int herd_poll_call(struct herd_member *m, uint32_t *taken)
{
    const struct herd *h = m->herd;
    bool over = false;
    int count = 0;

    begin_polled(m);
    while (count == 0 && !over) {
        const uint64_t now_ns = herd_now_ns();
        const uint64_t left_ns = m->deadline_ns > now_ns ? m->deadline_ns - now_ns : 0;
        struct timespec t = { .tv_sec = (time_t)(left_ns / 1000000000u),
                              .tv_nsec = (long)(left_ns % 1000000000u) };
        const long ready = raw6(SYS_ppoll, (long)m->polled, h->sets,
                                m->deadline_ns == UINT64_MAX ? 0 : (long)&t, 0, 0, 0);
        count = judge_polled(m, (int)ready, taken, &over);
    }
    return count;
}

static int call(struct herd_member *m, uint32_t *taken)
{
    switch (m->herd->options->via) {
    case BENCH_VIA_LAYER: return herd_layer_call(m, taken);
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

/* Hand an event that was taken on to the next window, unless enough have been. */
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
    if (!h->options->processes)
        bench_count(h->run, m->counts.calls - before);
}

/* A tick is no finer for a kernel's slack; the exact timer asks for none. */
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
