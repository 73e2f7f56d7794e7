/* SPDX-License-Identifier: MIT */
/*
 * metrics.c - metrics in the text format of Prometheus, version 0.0.4.
 *
 * The names are those of `rouse report --format prometheus`. To Prometheus, a counter that decreases has restarted.
 * A wake-up whose verdict is corrected moves from one sum to another, so each sum is shown as the highest value
 * that it ever had.
 *
 * Producing an answer reads all records, which can take milliseconds. So the answer is kept and sent to all clients
 * that ask within KEEP_NS. Asking more often costs only a copy of the text.
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

/* All fields are uint64_t. A gauge keeps its current value. */
static void keep_most_locked(struct rouse_totals *totals)
{
    uint64_t *now = (uint64_t *)totals, *most = (uint64_t *)&shown, threads = totals->threads;

    _Static_assert(sizeof(*totals) % sizeof(*now) == 0, "it consists of words");
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

/* Names of kinds and verdicts come from the library and need no escaping. */
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

    head(out, name, "counter", "Records lost for lack of room.");
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
    seconds_by_kind(out, "rouse_wasted_cpu_seconds_total", "CPU time after useless wake-ups.",
                    t->waste_ns);
    by_kind(out, "rouse_lock_contended_total", "Lock calls that found the lock held.",
            t->lock_contested);
    seconds_by_kind(out, "rouse_lock_wait_seconds_total", "Time waited for locks, all waiters.",
                    t->lock_wait_ns);
    seconds_by_kind(out, "rouse_lock_spin_seconds_total", "Time spent spinning for locks.",
                    t->lock_spin_ns);
    by_kind(out, "rouse_calls_total", "Blocking calls that completed.", t->calls);
    single(out, "rouse_switches_total", "counter", "Times a worker began to run a thread.",
           t->switches);
    single(out, "rouse_signals_unheard_total", "counter", "Signals without a waiter.",
           t->signals_unheard);
    single(out, "rouse_broadcasts_unheard_total", "counter", "Broadcasts without a waiter.",
           t->broadcasts_unheard);
    single(out, "rouse_threads", "gauge", "Threads that have not ended.", t->threads);
    single(out, "rouse_threads_ended_total", "counter", "Threads that have ended.",
           t->threads_ended);
    lost(out, t);
}

/* Connections that the server ended because of a limit. */
static void ended(FILE *out)
{
    static const char name[] = "rouse_serve_limited_total";
    static const char *const causes[CAUSES] = {
        [CAUSE_ADDRESS] = "address", [CAUSE_BODY] = "body", [CAUSE_FULL] = "full",
        [CAUSE_HEADER] = "header",   [CAUSE_IDLE] = "idle", [CAUSE_RATE] = "rate",
        [CAUSE_WRITE] = "write",
    };

    head(out, name, "counter", "Connections that a limit ended, by the limit.");
    for (unsigned cause = 0; cause < CAUSES; cause++)
        fprintf(out, "%s{cause=\"%s\"} %" PRIu64 "\n", name, causes[cause], limits_counted(cause));
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
    single(out, "rouse_serve_errors_total", "counter", "Answers with a status of 400 or more.",
           figures.errors);
    if (settings.access_log)
        single(out, "rouse_serve_log_lost_total", "counter", "Lines that the access log lacks.",
               access_log_lost());
    ended(out);
}

static bool write_all_locked(FILE *out)
{
    struct rouse_totals totals;
    bool is_recorded = rouse_obs_totals(&totals) == 0;

    single(out, "rouse_recorded", "gauge", "1: waits of threads have been recorded.", is_recorded);
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
