/* SPDX-License-Identifier: MIT */
/*
 * metrics.c - the figures in Prometheus' text format, version 0.0.4.
 *
 * Names are those of `rouse report --prometheus`. There a counter that goes down has begun anew; a wake-up whose
 * verdict turns out otherwise is taken back from its sum, so each is shown as high as it ever was.
 *
 * To make an answer is to go over all that was recorded, which can take milliseconds. So one is kept and given to
 * all who ask within KEEP_NS of its making: whoever asks more often costs a copy of the text.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

#define TYPE "text/plain; version=0.0.4; charset=utf-8"
#define SECOND_NS UINT64_C(1000000000)
#define KEEP_NS (SECOND_NS / 10)

static struct rouse_mutex lock = ROUSE_MUTEX_INIT_NAMED("metrics");
static struct rouse_totals shown; /* under lock */
static struct {
    char *text; /* NULL: there is none */
    size_t bytes;
    uint64_t made_ns;
} kept; /* under lock */

/* All is uint64_t. What is no counter is as it is now. */
static void keep_most_locked(struct rouse_totals *totals)
{
    uint64_t *now = (uint64_t *)totals, *most = (uint64_t *)&shown, threads = totals->threads;

    _Static_assert(sizeof(*totals) % sizeof(*now) == 0, "it is made of words");
    for (size_t i = 0; i < sizeof(*totals) / sizeof(*now); i++)
        now[i] = most[i] = now[i] > most[i] ? now[i] : most[i];
    totals->threads = threads;
}

static void head(FILE *out, const char *name, const char *type, const char *about)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, about, name, type);
}

static void single(FILE *out, const char *name, const char *type, const char *about, uint64_t value)
{
    head(out, name, type, about);
    fprintf(out, "%s %" PRIu64 "\n", name, value);
}

/* Names of kinds and verdicts are the library's own, without a character to be escaped. */
static void by_kind(FILE *out, const char *name, const char *about, const uint64_t *values)
{
    head(out, name, "counter", about);
    for (unsigned kind = ROUSE_WAIT_NONE + 1; kind < ROUSE_WAIT_KINDS; kind++)
        fprintf(out, "%s{kind=\"%s\"} %" PRIu64 "\n", name, rouse_wait_kind_name(kind),
                values[kind]);
}

static void seconds_by_kind(FILE *out, const char *name, const char *about, const uint64_t *ns)
{
    head(out, name, "counter", about);
    for (unsigned kind = ROUSE_WAIT_NONE + 1; kind < ROUSE_WAIT_KINDS; kind++)
        fprintf(out, "%s{kind=\"%s\"} %" PRIu64 ".%09" PRIu64 "\n", name,
                rouse_wait_kind_name(kind), ns[kind] / SECOND_NS, ns[kind] % SECOND_NS);
}

static void wakes(FILE *out, const struct rouse_totals *totals)
{
    static const char name[] = "rouse_wakeups_total";

    head(out, name, "counter", "Wake-ups by kind and verdict.");
    for (unsigned kind = ROUSE_WAIT_NONE + 1; kind < ROUSE_WAIT_KINDS; kind++)
        for (unsigned i = 0; i < ROUSE_VERDICTS; i++)
            fprintf(out, "%s{kind=\"%s\",verdict=\"%s\"} %" PRIu64 "\n", name,
                    rouse_wait_kind_name(kind),
                    i == ROUSE_VERDICT_NONE ? "unrecorded" : rouse_verdict_name(i),
                    totals->wakes[kind][i]);
}

static void lost(FILE *out, const struct rouse_totals *totals)
{
    static const char name[] = "rouse_lost_total";

    head(out, name, "counter", "What the record had no room for.");
    fprintf(out, "%s{what=\"threads\"} %" PRIu64 "\n", name, totals->lost_threads);
    fprintf(out, "%s{what=\"wakes\"} %" PRIu64 "\n", name, totals->lost_wakes);
    fprintf(out, "%s{what=\"locks\"} %" PRIu64 "\n", name, totals->lost_locks);
    fprintf(out, "%s{what=\"names\"} %" PRIu64 "\n", name, totals->lost_names);
}

static void recorded(FILE *out, const struct rouse_totals *t)
{
    wakes(out, t);
    seconds_by_kind(out, "rouse_wait_seconds_total", "Time waited, by kind.", t->wait_ns);
    seconds_by_kind(out, "rouse_wake_to_run_seconds_total",
                    "From the wake-up until the thread ran.", t->late_ns);
    seconds_by_kind(out, "rouse_wasted_cpu_seconds_total", "CPU time of wake-ups of no use.",
                    t->waste_ns);
    by_kind(out, "rouse_lock_contended_total", "Times a lock was held on arrival.",
            t->lock_contested);
    seconds_by_kind(out, "rouse_lock_wait_seconds_total", "Time waited for a lock, all waiters.",
                    t->lock_wait_ns);
    seconds_by_kind(out, "rouse_lock_spin_seconds_total", "Of it, time spun.", t->lock_spin_ns);
    by_kind(out, "rouse_calls_total", "Blocking calls that completed.", t->calls);
    single(out, "rouse_switches_total", "counter", "Threads put on a CPU.", t->switches);
    single(out, "rouse_signals_unheard_total", "counter", "Signals nobody waited for.",
           t->signals_unheard);
    single(out, "rouse_broadcasts_unheard_total", "counter", "Broadcasts nobody waited for.",
           t->broadcasts_unheard);
    single(out, "rouse_threads", "gauge", "Threads that have not ended.", t->threads);
    single(out, "rouse_threads_ended_total", "counter", "Threads that have ended.",
           t->threads_ended);
    lost(out, t);
}

static void served(FILE *out)
{
    struct figures figures = server_figures(&pages);

    single(out, "rouse_serve_connections", "gauge", "Connections that are open.",
           figures.connections);
    single(out, "rouse_serve_connections_max", "gauge", "Connections that may be open.",
           pages.max_connections);
    single(out, "rouse_serve_connections_total", "counter", "Connections that were served.",
           figures.accepted);
    single(out, "rouse_serve_answers_total", "counter", "Requests answered.", figures.answers);
    single(out, "rouse_serve_errors_total", "counter", "Of them, with a status from 400.",
           figures.errors);
}

static bool write_all_locked(FILE *out)
{
    struct rouse_totals totals;
    bool is_recorded = rouse_obs_totals(&totals) == 0;

    single(out, "rouse_recorded", "gauge", "1: what threads wait for has been recorded.",
           is_recorded);
    if (is_recorded) {
        keep_most_locked(&totals);
        recorded(out, &totals);
    }
    served(out);
    return !ferror(out);
}

/* False: there is no memory for an answer. */
static bool make_locked(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    bool is_whole = out && write_all_locked(out);

    if (out && fclose(out) == 0 && is_whole) {
        free(kept.text);
        kept.text = text;
        kept.bytes = bytes;
        kept.made_ns = rouse_now_ns();
        return true;
    }
    free(text);
    return false;
}

void metrics_answer(struct connection *c)
{
    const char *path = files_path(c->in + c->request_at + c->target.at, c->target.bytes);

    if (path == NULL || strcmp(path, "metrics") != 0) {
        response_status(c, path ? 404 : 400);
        return;
    }
    rouse_mutex_lock(&lock);
    if ((kept.text && rouse_now_ns() - kept.made_ns < KEEP_NS) || make_locked())
        response_text(c, TYPE, kept.text, kept.bytes);
    else
        response_status(c, 500);
    rouse_mutex_unlock(&lock);
}
