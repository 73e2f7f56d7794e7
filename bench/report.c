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
#define OUTLIERS_FROM 40u /* samples: with fewer, none is removed */
#define BUCKETS 16u
#define BAR 32u

/* libMicro's statistics, of ns per operation. */
struct statistics {
    double least, most, mean, median, deviation;
    double error;      /* standard error of the mean */
    double confidence; /* half of the mean's 99 % interval */
    double skew, kurtosis;
    double trend; /* slope over the samples' order */
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slope of the line that fits the samples best. */
static double slope_of(const double *sample, unsigned n, double mean)
{
    const double middle = (n - 1) / 2.0;
    double products = 0, squares = 0;
    for (unsigned i = 0; i < n; i++) {
        products += (i - middle) * (sample[i] - mean);
        squares += (i - middle) * (i - middle);
    }
    return squares > 0 ? products / squares : 0;
}

static struct statistics statistics_of(const double *sample, unsigned n)
{
    struct statistics s = { 0 };
    double sorted[BENCH_SAMPLES_MAX], squares = 0, cubes = 0, fourths = 0;

    if (n == 0)
        return s;
    memcpy(sorted, sample, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    for (unsigned i = 0; i < n; i++)
        s.mean += sorted[i] / n;
    for (unsigned i = 0; i < n; i++) {
        const double off = sorted[i] - s.mean;
        squares += off * off;
        cubes += off * off * off;
        fourths += off * off * off * off;
    }
    s.least = sorted[0];
    s.most = sorted[n - 1];
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    s.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    s.error = s.deviation / sqrt(n);
    s.confidence = 2.576 * s.error;
    if (s.deviation > 0) {
        s.skew = cubes / n / pow(s.deviation, 3);
        s.kurtosis = fourths / n / pow(s.deviation, 4) - 3;
    }
    s.trend = slope_of(sample, n, s.mean);
    return s;
}

/*
 * Remove samples that are more than 3 standard deviations from the mean, until there are none, as libMicro does.
 * Returns how many are left.
 */
static unsigned remove_outliers(double *sample, unsigned n)
{
    unsigned removed = 1;
    while (removed > 0 && n > OUTLIERS_FROM) {
        const struct statistics s = statistics_of(sample, n);
        unsigned kept = 0;
        for (unsigned i = 0; i < n; i++)
            if (fabs(sample[i] - s.mean) <= 3 * s.deviation)
                sample[kept++] = sample[i];
        removed = n - kept;
        n = kept;
    }
    return n;
}

/* The text's usecs/call: of one thread, as libMicro has it, or of all threads together. */
static double us_per_call(const struct bench_run *run, double ns_per_op)
{
    const bool is_call = run->test->flags & BENCH_CALLS;
    return ns_per_op * (is_call ? run->threads * run->processes : 1) / 1e3;
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text != '"' && *text != '\\' && (unsigned char)*text >= ' ')
            putchar(*text);
    putchar('"');
}

double bench_median(const struct bench_run *run)
{
    return statistics_of(run->sample_ns_per_op, run->sample_count).median;
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
    const struct statistics s = statistics_of(run->sample_ns_per_op, run->sample_count);

    printf(
        "{\"case\": \"%s\", \"threads\": \"%s\", \"workers\": %u, \"P\": %u, \"T\": %u, \"ops\": %" PRIu64
        ", \"samples\": %u",
        run->test->name, run->options.kind->name, run->workers, run->processes, run->threads,
        run->ops, run->sample_count);
    if (run->test->flags & BENCH_CALLS)
        printf(", \"usecs_per_call\": %.5f", us_per_call(run, s.median));
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
    printf(", \"sample_ns\": [");
    for (unsigned i = 0; i < run->sample_count; i++)
        printf("%s%.3f", i ? ", " : "", run->sample_ns_per_op[i]);
    printf("]}\n");
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

void bench_report_machine(const struct bench_run *run)
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
}

void bench_report_columns(void)
{
    printf("%-*s %3s %6s %12s %8s %7s %10s\n", NAME_WIDTH, "", "prc", "thr", "usecs/call",
           "samples", "errors", "cnt/samp");
}

void bench_report_absent(const struct bench_options *options, const struct bench_case *test,
                         unsigned errors, const char *reason)
{
    const unsigned threads = options->threads ? options->threads : test->threads;
    const unsigned processes = options->processes ? options->processes : 1;

    if (options->json) {
        printf("{\"case\": \"%s\", \"threads\": \"%s\", \"P\": %u, \"T\": %u, \"errors\": %u, "
               "\"reason\": ",
               test->name, options->kind->name, processes, threads, errors);
        print_string(reason);
        printf("}\n");
        return;
    }
    printf("%-*s %3u %6u %12s %8s %7s %10s  # %s\n", NAME_WIDTH, test->name, processes, threads,
           "-", "-", errors ? "1" : "-", "-", reason);
}

static void print_row(const struct bench_run *run, const struct statistics *s)
{
    const struct bench_options *o = &run->options;
    const bool is_call = run->test->flags & BENCH_CALLS;
    /* acceptherd's servers have T threads each. The forked processes of selectherd have one. */
    const unsigned processes = o->forked        ? run->threads
                               : o->servers > 1 ? o->servers
                                                : run->processes;

    printf("%-*s %3u %6u %12.5f %8u %7d %10" PRIu64 "\n", NAME_WIDTH, run->test->name, processes,
           o->forked ? 1 : run->threads, us_per_call(run, s->median), run->sample_count,
           run->error ? 1 : 0, is_call ? run->ops / (run->threads * run->processes) : run->ops);
}

/* One line: of all samples, and of those that are left without outliers. */
static void print_pair(const struct bench_run *run, const char *name, double raw, double rest)
{
    printf("# %20s %12.5f            %12.5f\n", name, us_per_call(run, raw),
           us_per_call(run, rest));
}

static void print_statistics(const struct bench_run *run, const struct statistics *raw,
                             const struct statistics *rest, unsigned outliers)
{
    printf("# STATISTICS         usecs/call (raw)          usecs/call (outliers removed)\n");
    print_pair(run, "min", raw->least, rest->least);
    print_pair(run, "max", raw->most, rest->most);
    print_pair(run, "mean", raw->mean, rest->mean);
    print_pair(run, "median", raw->median, rest->median);
    print_pair(run, "stddev", raw->deviation, rest->deviation);
    print_pair(run, "standard error", raw->error, rest->error);
    print_pair(run, "99% confidence level", raw->confidence, rest->confidence);
    printf("# %20s %12.5f            %12.5f\n", "skew", raw->skew, rest->skew);
    printf("# %20s %12.5f            %12.5f\n", "kurtosis", raw->kurtosis, rest->kurtosis);
    print_pair(run, "time correlation", raw->trend, rest->trend);
    printf("#\n");
    printf("# %20s %12.5f\n", "elapsed time", (double)run->total.wall_ns / 1e9);
    printf("# %20s %12u\n", "number of samples", run->sample_count);
    printf("# %20s %12u\n", "number of outliers", outliers);
    printf("# %20s %12.5f\n", "cpu per call", cpu_ns_per_op(run) / 1e3);
    printf("# %20s %12.5f  (the harness; not taken off)\n", "empty call",
           run->harness_ns_per_op / 1e3);
    printf("# %20s %12" PRIu64 " voluntary, %" PRIu64 " involuntary, in %" PRIu64 " calls\n",
           "switches", run->total.voluntary, run->total.involuntary, run->total_ops);
    printf("# calls/%s ", run->user ? "worker " : "processor");
    print_tally(run, " ");
    printf("\n");
}

static void print_bar(unsigned count, unsigned most, double mean_us)
{
    const unsigned stars = count ? 1 + (BAR - 1) * count / most : 0;
    for (unsigned i = 0; i < BAR; i++)
        putchar(i < stars ? '*' : ' ');
    if (count)
        printf(" %12.5f\n", mean_us);
    else
        printf(" %12s\n", "-");
}

/* The samples up to the 95th percentile in buckets of one width, and those beyond it together. */
static void print_distribution(const struct bench_run *run)
{
    const unsigned n = run->sample_count, within = (n * 95 + 99) / 100;
    double sorted[BENCH_SAMPLES_MAX], sums[BUCKETS + 1] = { 0 };
    unsigned counts[BUCKETS + 1] = { 0 }, most = 0;

    if (n == 0)
        return;
    memcpy(sorted, run->sample_ns_per_op, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    const double first = sorted[0], width = (sorted[within - 1] - first) / BUCKETS;
    for (unsigned i = 0; i < n; i++) {
        unsigned at = width > 0 ? (unsigned)((sorted[i] - first) / width) : 0;
        at = i >= within ? BUCKETS : at < BUCKETS ? at : BUCKETS - 1;
        sums[at] += sorted[i];
        most = ++counts[at] > most ? counts[at] : most;
    }
    printf("#\n# DISTRIBUTION\n");
    printf("# %12s %12s  %*s %12s\n", "counts", "usecs/call", (int)BAR, "", "means");
    for (unsigned at = 0; at <= BUCKETS; at++) {
        const double mean = counts[at] ? sums[at] / counts[at] : 0;
        if (at < BUCKETS && at > 0 && width <= 0)
            continue;
        if (at < BUCKETS)
            printf("# %12u %12.5f |", counts[at], us_per_call(run, first + at * width));
        else
            printf("# %12u %12s |", counts[at], "> 95%");
        print_bar(counts[at], most, us_per_call(run, mean));
    }
    printf("#\n");
}

static void print_figures(const struct bench_run *run)
{
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
    const struct statistics raw = statistics_of(run->sample_ns_per_op, run->sample_count);
    double rest[BENCH_SAMPLES_MAX];

    memcpy(rest, run->sample_ns_per_op, run->sample_count * sizeof *rest);
    const unsigned kept = remove_outliers(rest, run->sample_count);
    const struct statistics without = statistics_of(rest, kept);
    if (run->options.row) {
        print_row(run, &without);
        return;
    }
    bench_report_machine(run);
    printf("#   threads    %s, workers %u, pinned %u, recording %s\n", run->options.kind->name,
           run->workers, run->pinned, bench_obs_modes[run->options.obs]);
    bench_report_columns();
    print_row(run, &without);
    printf("#\n");
    print_statistics(run, &raw, &without, run->sample_count - kept);
    print_distribution(run);
    print_figures(run);
}
