/* SPDX-License-Identifier: MIT */
/* figures.c - the figures of a run of the herd. */
#include "herd/herd.h"

#include <stdlib.h>

#define BIN_NS 100000u /* timer wake-ups this close together count as one instant */

static const char *const via_names[] = { "default", "layer", "poll", "rouse" };

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void add_waits(struct herd_waits *sum, const struct herd_waits *w)
{
    sum->taken += w->taken;
    sum->contended += w->contended;
    sum->wait_ns += w->wait_ns;
}

static struct herd_counts sum_of(const struct herd *h)
{
    struct herd_counts sum = { 0 };
    for (unsigned i = 0; i < h->members + HERD_OTHERS; i++) {
        const struct herd_counts *c = &h->member[i].counts;
        sum.calls += c->calls;
        sum.events += c->events;
        sum.verdicts.useful += c->verdicts.useful;
        sum.verdicts.lost_race += c->verdicts.lost_race;
        sum.verdicts.none += c->verdicts.none;
        sum.verdicts.early += c->verdicts.early;
        sum.verdicts.timeout += c->verdicts.timeout;
        add_waits(&sum.sched, &c->sched);
        add_waits(&sum.select, &c->select);
        sum.stamps += c->stamps < HERD_STAMPS ? c->stamps : HERD_STAMPS;
    }
    return sum;
}

struct stamps {
    uint64_t *at, *late;
    size_t count, late_count;
};

static void gather(const struct herd *h, struct stamps *s)
{
    for (unsigned i = 0; i < h->members; i++) {
        const struct herd_member *m = &h->member[i];
        for (uint64_t k = 0; k < m->counts.stamps && k < HERD_STAMPS; k++) {
            s->at[s->count++] = m->stamp[k].at_ns / BIN_NS;
            if (m->stamp[k].late_ns != UINT64_MAX)
                s->late[s->late_count++] = m->stamp[k].late_ns;
        }
    }
    qsort(s->at, s->count, sizeof *s->at, compare);
    qsort(s->late, s->late_count, sizeof *s->late, compare);
}

static double late_us(const struct stamps *s, double share)
{
    const size_t at = (size_t)((double)s->late_count * share);
    return s->late_count ? (double)s->late[at < s->late_count ? at : s->late_count - 1] / 1e3 : 0;
}

static void report_times(struct bench_run *run, const struct herd *h, size_t count)
{
    struct stamps s = { .at = calloc(count + 1, sizeof *s.at),
                        .late = calloc(count + 1, sizeof *s.late) };
    uint64_t instants = 0;

    if (s.at && s.late) {
        gather(h, &s);
        for (size_t i = 0; i < s.count; i++)
            instants += i == 0 || s.at[i] != s.at[i - 1];
    }
    bench_figure(run, "late_p50_us", late_us(&s, 0.5));
    bench_figure(run, "late_p99_us", late_us(&s, 0.99));
    bench_figure(run, "late_max_us", late_us(&s, 1));
    bench_figure(run, "clumping", instants ? (double)s.count / (double)instants : 0);
    free(s.at);
    free(s.late);
}

static void report_settings(struct bench_run *run, const struct bench_options *o)
{
    const bool layer = o->via == BENCH_VIA_LAYER;
    bench_text(run, "via", via_names[o->via]);
    if (layer) {
        bench_text(run, "wake", o->broadcast ? "broadcast" : "precise");
        bench_text(run, "sched_lock", o->process_lock ? "process" : "thread");
        bench_text(run, "select_lock", o->global_lock ? "global" : "fine");
        bench_text(run, "timer", o->tick ? "tick" : "exact");
        if (o->tick)
            bench_figure(run, "hz", o->hz);
    }
    bench_text(run, "load", o->stepped ? "stepped" : "free");
    bench_figure(run, "sets", o->sets);
    bench_figure(run, "share", o->share);
    bench_figure(run, "processes", o->forked);
    bench_figure(run, "timeout_us", (double)o->timeout_ns / 1e3);
}

void herd_report(struct herd *h)
{
    struct bench_run *run = h->run;
    const struct herd_counts sum = sum_of(h);
    const double calls = sum.calls ? (double)sum.calls : 1;

    report_settings(run, h->options);
    bench_figure(run, "calls_per_s", (double)sum.calls * 1e9 / (double)run->total.wall_ns);
    bench_figure(run, "events", (double)sum.events);
    bench_figure(run, "events_per_s", (double)sum.events * 1e9 / (double)run->total.wall_ns);
    bench_figure(run, "switches_per_call",
                 (double)(run->total.voluntary + run->total.involuntary) / calls);
    bench_figure(run, "useful", (double)sum.verdicts.useful);
    bench_figure(run, "lost_race", (double)sum.verdicts.lost_race);
    bench_figure(run, "false", (double)sum.verdicts.none);
    bench_figure(run, "early", (double)sum.verdicts.early);
    bench_figure(run, "timeout", (double)sum.verdicts.timeout);
    bench_figure(run, "sched_lock_wait_ns_per_call", (double)sum.sched.wait_ns / calls);
    bench_figure(run, "sched_lock_contended", (double)sum.sched.contended);
    bench_figure(run, "sched_lock_taken", (double)sum.sched.taken);
    bench_figure(run, "select_lock_wait_ns_per_call", (double)sum.select.wait_ns / calls);
    bench_figure(run, "select_lock_contended", (double)sum.select.contended);
    bench_figure(run, "select_lock_taken", (double)sum.select.taken);
    report_times(run, h, sum.stamps);
    bench_figure(run, "user_us_per_call", (double)h->used.user_ns / 1e3 / calls);
    bench_figure(run, "system_us_per_call", (double)h->used.system_ns / 1e3 / calls);
}
