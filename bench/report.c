/* SPDX-License-Identifier: MIT */
/* report.c - renders a finished run: a JSON object, or a table like libMicro's. Measures nothing. */
#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define NAME_WIDTH 16

struct statistics {
    double least, most, mean, median, deviation;
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct statistics statistics_of(const struct bench_run *run)
{
    struct statistics s = { 0 };
    const unsigned n = run->sample_count;
    double sorted[BENCH_SAMPLES_MAX], squares = 0;

    if (n == 0)
        return s;
    memcpy(sorted, run->sample_ns_per_op, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    for (unsigned i = 0; i < n; i++)
        s.mean += sorted[i] / n;
    for (unsigned i = 0; i < n; i++)
        squares += (sorted[i] - s.mean) * (sorted[i] - s.mean);
    s.least = sorted[0];
    s.most = sorted[n - 1];
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    s.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return s;
}

double bench_median(const struct bench_run *run)
{
    return statistics_of(run).median;
}

static double cpu_ns_per_op(const struct bench_run *run)
{
    return run->total_ops ? (double)run->total.cpu_ns / (double)run->total_ops : 0;
}

/* Operations per worker: one entry per worker, more only where something ran. */
static unsigned tally_count(const struct bench_run *run)
{
    unsigned count = run->workers < BENCH_TALLIES ? run->workers : BENCH_TALLIES;
    for (unsigned i = count; i < BENCH_TALLIES; i++)
        if (atomic_load_explicit(&run->tally[i].ops, memory_order_relaxed))
            count = i + 1;
    return count;
}

static void print_tally(const struct bench_run *run, const char *separator)
{
    const unsigned count = tally_count(run);
    for (unsigned i = 0; i < count; i++)
        printf("%s%" PRIu64, i ? separator : "",
               (uint64_t)atomic_load_explicit(&run->tally[i].ops, memory_order_relaxed));
}

void bench_report_json(const struct bench_run *run)
{
    const struct statistics s = statistics_of(run);

    printf("{\"case\": \"%s\", \"threads\": \"%s\", \"workers\": %u, \"T\": %u, \"ops\": %" PRIu64
           ", \"samples\": %u",
           run->test->name, run->options.kind->name, run->workers, run->threads, run->ops,
           run->sample_count);
    printf(", \"ns_per_op\": %.3f, \"ns_min\": %.3f, \"ns_max\": %.3f, \"cpu_ns_per_op\": %.3f",
           s.median, s.least, s.most, cpu_ns_per_op(run));
    printf(", \"total_ops\": %" PRIu64 ", \"voluntary_switches\": %" PRIu64
           ", \"involuntary_switches\": %" PRIu64 ", \"ops_per_worker\": [",
           run->total_ops, run->total.voluntary, run->total.involuntary);
    print_tally(run, ", ");
    printf("], \"harness_ns_per_op\": %.3f, \"pinned\": %u, \"obs\": \"%s\", \"errors\": %d",
           run->harness_ns_per_op, run->pinned, bench_obs_modes[run->options.obs],
           run->error ? 1 : 0);
    for (unsigned i = 0; i < run->figure_count; i++) {
        const struct bench_figure *f = &run->figures[i];
        if (f->text)
            printf(", \"%s\": \"%s\"", f->name, f->text);
        else
            printf(", \"%s\": %.9g", f->name, f->value);
    }
    printf("}\n");
}

/* The value of a line "key : value" in /proc/cpuinfo, or "?" if there is no such line. */
static void cpu_model(char *text, size_t bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    snprintf(text, bytes, "?");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(text, bytes, "%s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
}

static void print_header(const struct bench_run *run)
{
    struct utsname u;
    char model[256];

    uname(&u);
    cpu_model(model, sizeof model);
    printf("# %s %s\n", bench_program, BENCH_VERSION);
    printf("#   machine    %s, %u processors used\n", model, run->cpu_count);
    printf("#   kernel     %s %s %s\n", u.sysname, u.release, u.machine);
#if defined(__clang__)
    printf("#   compiler   clang %s\n", __clang_version__);
#else
    printf("#   compiler   gcc %s\n", __VERSION__);
#endif
    printf("#   threads    %s, workers %u, pinned %u, recording %s\n", run->options.kind->name,
           run->workers, run->pinned, bench_obs_modes[run->options.obs]);
}

static void print_statistics(const struct bench_run *run, const struct statistics *s)
{
    printf("# STATISTICS     usecs/call\n");
    printf("#            min %12.5f\n", s->least / 1e3);
    printf("#            max %12.5f\n", s->most / 1e3);
    printf("#           mean %12.5f\n", s->mean / 1e3);
    printf("#         median %12.5f\n", s->median / 1e3);
    printf("#         stddev %12.5f\n", s->deviation / 1e3);
    printf("#   cpu per call %12.5f\n", cpu_ns_per_op(run) / 1e3);
    printf("#     empty call %12.5f  (the harness; not taken off)\n", run->harness_ns_per_op / 1e3);
    printf("#       switches %12" PRIu64 " voluntary, %" PRIu64 " involuntary, in %" PRIu64
           " calls\n",
           run->total.voluntary, run->total.involuntary, run->total_ops);
    printf("# calls/%s ", run->user ? "worker " : "processor");
    print_tally(run, " ");
    printf("\n");
    for (unsigned i = 0; i < run->figure_count; i++) {
        const struct bench_figure *f = &run->figures[i];
        if (f->text)
            printf("# %-22s %s\n", f->name, f->text);
        else
            printf("# %-22s %.6g\n", f->name, f->value);
    }
}

void bench_report_text(const struct bench_run *run)
{
    const struct statistics s = statistics_of(run);

    print_header(run);
    printf("%-*s %3s %6s %12s %8s %7s %10s\n", NAME_WIDTH, "", "prc", "thr", "usecs/call",
           "samples", "errors", "cnt/samp");
    printf("%-*s %3d %6u %12.5f %8u %7d %10" PRIu64 "\n", NAME_WIDTH, run->test->name, 1,
           run->threads, s.median / 1e3, run->sample_count, run->error ? 1 : 0, run->ops);
    printf("#\n");
    print_statistics(run, &s);
}
