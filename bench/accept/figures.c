/* SPDX-License-Identifier: MIT */
/* figures.c - the figures that acceptherd reports. */
#include "accept.h"

static const char *const orders[] = { BENCH_ORDERS };
static const char *const shares[] = { BENCH_SHARES };

/* Jain's index: 1 when all have an equal share, 1 / n when one has everything. */
struct jain {
    double sum, squares, least, most;
    unsigned count;
};

static void jain_add(struct jain *j, double value)
{
    j->least = j->count == 0 || value < j->least ? value : j->least;
    j->most = value > j->most ? value : j->most;
    j->sum += value;
    j->squares += value * value;
    j->count++;
}

static double jain_of(const struct jain *j)
{
    return j->squares > 0 ? j->sum * j->sum / (j->count * j->squares) : 0;
}

static double class_ns(unsigned class)
{
    const unsigned octave = class / 8 + 4;
    return (double)((UINT64_C(8) + class % 8) << (octave - 3));
}

static double late_us(const struct accept_shared *shared, double part)
{
    uint64_t all = 0, seen = 0;
    unsigned at = 0;
    for (unsigned i = 0; i < ACCEPT_CLASSES; i++)
        all += shared->late[i];
    for (; at < ACCEPT_CLASSES - 1; at++) {
        seen += shared->late[at];
        if ((double)seen >= part * (double)all)
            break;
    }
    return class_ns(at) / 1e3;
}

/* The longest wait of any thread, including waits still under way. */
static double worst_wait_ms(const struct bench_run *run, const struct accept_state *s)
{
    uint64_t worst_ns = 0;
    for (unsigned i = 0; i < s->servers * run->threads; i++) {
        const struct accept_thread *t = &s->shared->threads[i];
        const uint64_t begin_ns = s->shared->begin_ns, ended_ns = t->worst_ns;
        const uint64_t since_ns = t->since_ns > begin_ns || t->since_ns == 0 ? t->since_ns
                                                                             : begin_ns;
        const uint64_t open_ns = since_ns != 0 && since_ns < s->end_ns ? s->end_ns - since_ns : 0;
        worst_ns = ended_ns > worst_ns ? ended_ns : worst_ns;
        worst_ns = open_ns > worst_ns ? open_ns : worst_ns;
    }
    return (double)worst_ns / 1e6;
}

void accept_report(struct bench_run *run)
{
    const struct accept_state *s = run->state;
    const struct accept_shared *shared = s->shared;
    struct jain threads = { .count = 0 }, processes = { .count = 0 };
    const double all = (double)shared->served;
    uint64_t wasted = 0;

    for (unsigned i = 0; i < s->servers; i++) {
        double of_process = 0;
        for (unsigned k = 0; k < run->threads; k++) {
            const struct accept_thread *t = &shared->threads[i * run->threads + k];
            jain_add(&threads, (double)t->taken);
            of_process += (double)t->taken;
            wasted += t->wasted;
        }
        jain_add(&processes, of_process);
    }
    bench_text(run, "order", orders[run->options.accept_order]);
    bench_text(run, "share", shares[run->options.accept_share]);
    bench_figure(run, "servers", s->servers);
    bench_figure(run, "connections", all);
    bench_figure(run, "jain_threads", jain_of(&threads));
    bench_figure(run, "jain_processes", jain_of(&processes));
    bench_figure(run, "thread_least", threads.least);
    bench_figure(run, "thread_most", threads.most);
    bench_figure(run, "process_least", processes.least);
    bench_figure(run, "process_most", processes.most);
    if (!run->user) /* rouse threads do not see their own wake-ups */
        bench_figure(run, "wasted_per_connection", all > 0 ? (double)wasted / all : 0);
    bench_figure(run, "switches_per_connection", all > 0 ? (double)s->switches / all : 0);
    bench_figure(run, "late_p50_us", late_us(shared, 0.5));
    bench_figure(run, "late_p99_us", late_us(shared, 0.99));
    bench_figure(run, "late_max_us", (double)shared->worst_late_ns / 1e3);
    bench_figure(run, "worst_wait_ms", worst_wait_ms(run, s));
}
