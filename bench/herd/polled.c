/* SPDX-License-Identifier: MIT */
/*
 * polled.c - the herd's calls by poll(2) and by rouse_poll, with eventfds for descriptors.
 *
 * An eventfd counts its posts, so two posts make two events. The caller of poll(2) cannot see whether it
 * slept or had spurious wake-ups inside, so all calls that returned an event count as useful. The records of
 * rouse_poll show both when recording is on.
 */
#include "herd/herd.h"

#include <poll.h>

void herd_note_timer(struct herd_member *m, uint64_t at_ns, uint64_t now_ns)
{
    const uint64_t at = m->counts.stamps++;
    if (at < HERD_STAMPS)
        m->stamp[at] = (struct herd_stamp){
            .at_ns = at_ns,
            .late_ns = now_ns >= m->deadline_ns ? now_ns - m->deadline_ns : UINT64_MAX,
        };
}

void herd_poll_post(struct herd_member *by, uint32_t at)
{
    const uint64_t one = 1;
    raw6(SYS_write, by->herd->eventfd[at], (long)&one, sizeof one, 0, 0, 0);
}

/* Read the descriptors that poll returned. Other threads that share the window may have been faster. */
static int take(struct herd_member *m, uint32_t *taken)
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

/* Classify the end of one check or sleep. slept is true only if known. Returns -1 when the sample is over. */
static int judge(struct herd_member *m, long ready, bool slept, uint32_t *taken, bool *over)
{
    struct herd_verdicts *v = &m->counts.verdicts;
    const int count = ready > 0 ? take(m, taken) : 0;
    const uint64_t now_ns = herd_now_ns();

    *over = now_ns >= m->deadline_ns;
    if (atomic_load_explicit(&m->herd->stop, memory_order_relaxed))
        return -1;
    if (count > 0) {
        v->useful += slept;
    } else if (ready > 0) {
        v->lost_race++;
    } else if (*over) {
        herd_note_timer(m, now_ns, now_ns);
        v->timeout++;
    }
    return count;
}

static void begin(struct herd_member *m)
{
    const uint64_t timeout_ns = m->herd->options->timeout_ns;
    m->deadline_ns = timeout_ns ? herd_now_ns() + timeout_ns : UINT64_MAX;
}

int herd_poll_call(struct herd_member *m, uint32_t *taken)
{
    const struct herd *h = m->herd;
    bool over = false;
    int count = 0;

    begin(m);
    while (count == 0 && !over) {
        const uint64_t now_ns = herd_now_ns();
        const uint64_t left_ns = m->deadline_ns > now_ns ? m->deadline_ns - now_ns : 0;
        struct timespec t = { .tv_sec = (time_t)(left_ns / 1000000000u),
                              .tv_nsec = (long)(left_ns % 1000000000u) };
        const long ready = raw6(SYS_ppoll, (long)m->polled, h->sets,
                                m->deadline_ns == UINT64_MAX ? 0 : (long)&t, 0, 0, 0);
        count = judge(m, ready, true, taken, &over);
    }
    return count;
}

int herd_rouse_call(struct herd_member *m, uint32_t *taken)
{
    const bool recorded = m->herd->options->obs;
    struct rouse_wait_record before = { 0 }, after = { .wait_count = 1 };
    bool over = false;
    int count = 0;

    begin(m);
    while (count == 0 && !over) {
        if (recorded)
            rouse_obs_last_wait(&before);
        const int ready = rouse_poll_until(m->polled, m->herd->sets, m->deadline_ns);
        if (recorded)
            rouse_obs_last_wait(&after);
        m->counts.verdicts.lost_race += after.useless_count - before.useless_count;
        count = judge(m, ready, after.wait_count != before.wait_count, taken, &over);
    }
    return count;
}
