/* SPDX-License-Identifier: MIT */
/*
 * compare.c - `rouse-bench compare A B`: two files of results side by side, as libMicro's multiview does.
 *
 * Here and not in the Python command, because rouse-bench is installed without Python, and is used to compare machines
 * that have nothing else. The files hold the lines that --json prints: flat objects, whose strings have no escapes.
 * So the reader below is short, and refuses everything else.
 * The ratio of a case is the median of the ratios of all pairs of a sample of B and one of A (Hodges and Lehmann). Its
 * 95 % interval has the ranks of the Mann-Whitney test, and so needs no assumption about the samples' distribution.
 * Several lines of one case in a file, such as those of repeated runs, are taken together. A case that each file has once,
 * with another kind, or other numbers of processes or threads, is a pair, too.
 */
#include "bench.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESULTS_MAX 1024u
#define SAMPLES_MAX 4096u
#define NAME_BYTES 32u
#define LEAST_SAMPLES 4u /* in each file, for a 95 % interval */

struct result {
    char name[NAME_BYTES], threads[NAME_BYTES];
    double processes, members;
    bool is_call;
    unsigned count;
    double *sample; /* ns per operation */
};

struct results {
    const char *path;
    unsigned count;
    struct result *result;
};

/* The place that is being read. */
struct reader {
    const char *path;
    unsigned line;
    const char *at;
};

__attribute__((format(printf, 1, 2))) static bool refuse(const char *format, ...)
{
    va_list list;
    fprintf(stderr, "%s: compare: ", bench_program);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    return false;
}

static bool refuse_line(const struct reader *r, const char *why)
{
    return refuse("%s:%u: %s; give files of lines that rouse-bench --json printed", r->path,
                  r->line, why);
}

static void skip_blanks(struct reader *r)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
}

static bool skip(struct reader *r, char expected)
{
    skip_blanks(r);
    if (*r->at != expected)
        return false;
    r->at++;
    skip_blanks(r);
    return true;
}

/* A string of printable characters, cut to the buffer. */
static bool read_string(struct reader *r, char *text, size_t bytes)
{
    size_t length = 0;
    if (!skip(r, '"'))
        return false;
    for (; *r->at != '"'; r->at++) {
        if (*r->at == '\\' || (unsigned char)*r->at < ' ')
            return false;
        if (length + 1 < bytes)
            text[length++] = *r->at;
    }
    text[length] = 0;
    return skip(r, '"');
}

static bool read_number(struct reader *r, double *value)
{
    char *end;
    if (*r->at != '-' && !isdigit((unsigned char)*r->at))
        return false;
    *value = strtod(r->at, &end);
    if (end == r->at || !isfinite(*value))
        return false;
    r->at = end;
    skip_blanks(r);
    return true;
}

static bool read_numbers(struct reader *r, double *values, unsigned *count)
{
    if (!skip(r, '['))
        return false;
    for (*count = 0; *r->at != ']'; ++*count) {
        if ((*count > 0 && !skip(r, ',')) || *count == BENCH_SAMPLES_MAX ||
            !read_number(r, &values[*count]))
            return false;
    }
    return skip(r, ']');
}

/* One field. Fields that are not compared are read and dropped. */
static bool read_field(struct reader *r, struct result *result, double *samples)
{
    static double dropped[BENCH_SAMPLES_MAX];
    char name[NAME_BYTES], text[NAME_BYTES];
    unsigned count;
    double value = 0;

    if (!read_string(r, name, sizeof name) || !skip(r, ':'))
        return false;
    if (*r->at == '[') {
        const bool is_samples = strcmp(name, "sample_ns") == 0;
        if (!read_numbers(r, is_samples ? samples : dropped, &count))
            return false;
        if (is_samples)
            result->count = count;
        return true;
    }
    if (*r->at == '"') {
        if (strcmp(name, "case") == 0)
            return read_string(r, result->name, sizeof result->name);
        if (strcmp(name, "threads") == 0)
            return read_string(r, result->threads, sizeof result->threads);
        return read_string(r, text, sizeof text);
    }
    if (!read_number(r, &value))
        return false;
    if (strcmp(name, "P") == 0)
        result->processes = value;
    else if (strcmp(name, "T") == 0)
        result->members = value;
    else if (strcmp(name, "usecs_per_call") == 0)
        result->is_call = true;
    return true;
}

static bool read_object(struct reader *r, struct result *result, double *samples)
{
    if (!skip(r, '{'))
        return false;
    do {
        if (!read_field(r, result, samples))
            return false;
    } while (skip(r, ','));
    return skip(r, '}') && *r->at == 0;
}

static struct result *find(const struct results *all, const struct result *like)
{
    for (unsigned i = 0; i < all->count; i++) {
        struct result *one = &all->result[i];
        if (strcmp(one->name, like->name) == 0 && strcmp(one->threads, like->threads) == 0 &&
            one->processes == like->processes && one->members == like->members)
            return one;
    }
    return NULL;
}

/* Add the samples of a line to those of its case. */
static bool add(struct reader *r, struct results *all, const struct result *one,
                const double *samples)
{
    struct result *known = find(all, one);

    if (!known) {
        if (all->count == RESULTS_MAX)
            return refuse_line(r, "too many cases");
        known = &all->result[all->count++];
        *known = *one;
        known->count = 0;
        known->sample = NULL;
    }
    if (known->count + one->count > SAMPLES_MAX)
        return refuse_line(r, "too many samples of one case");
    double *more = realloc(known->sample, (known->count + one->count + 1) * sizeof *more);
    if (!more)
        return refuse("out of memory");
    memcpy(more + known->count, samples, one->count * sizeof *more);
    known->sample = more;
    known->count += one->count;
    known->is_call |= one->is_call;
    return true;
}

static bool read_line(struct reader *r, struct results *all)
{
    static double samples[BENCH_SAMPLES_MAX];
    struct result one = { .processes = 1 };

    skip_blanks(r);
    if (*r->at == 0)
        return true;
    if (!read_object(r, &one, samples))
        return refuse_line(r, "not a result");
    if (!*one.name || !*one.threads || one.members < 1 || one.processes < 1)
        return refuse_line(r, "a result without case, threads, P or T");
    for (unsigned i = 0; i < one.count; i++)
        if (samples[i] <= 0)
            return refuse_line(r, "a sample that is not above 0");
    return add(r, all, &one, samples);
}

static bool read_file(struct results *all)
{
    FILE *file = fopen(all->path, "re");
    char *line = NULL;
    size_t bytes = 0;
    ssize_t length;
    bool is_good = true;
    struct reader r = { .path = all->path };

    if (!file)
        return refuse("%s: %s", all->path, strerror(errno));
    errno = 0;
    while (is_good && (length = getline(&line, &bytes, file)) >= 0) {
        r.line++;
        r.at = line;
        is_good = strlen(line) == (size_t)length ? read_line(&r, all)
                                                 : refuse_line(&r, "a byte of 0");
    }
    if (is_good && ferror(file))
        is_good = refuse("%s: %s", all->path, strerror(errno));
    if (is_good && all->count == 0)
        is_good = refuse("%s: no results; give files of lines that rouse-bench --json printed",
                         all->path);
    free(line);
    fclose(file);
    return is_good;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *sorted, size_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Median usecs/call. Sorts the samples. */
static double usecs_of(const struct result *r)
{
    qsort(r->sample, r->count, sizeof *r->sample, ascending);
    return median_of(r->sample, r->count) / 1e3 * (r->is_call ? r->processes * r->members : 1);
}

/* All ratios of a sample of B and one of A, in order. NULL without memory. */
static double *ratios_of(const struct result *a, const struct result *b)
{
    double *ratio = malloc((size_t)a->count * b->count * sizeof *ratio);

    for (unsigned i = 0; ratio && i < a->count; i++)
        for (unsigned j = 0; j < b->count; j++)
            ratio[(size_t)i * b->count + j] = b->sample[j] / a->sample[i];
    if (ratio)
        qsort(ratio, (size_t)a->count * b->count, sizeof *ratio, ascending);
    return ratio;
}

/* The rank, from 1, at which the interval begins, by the normal approximation; 0: too few samples. */
static size_t first_rank(unsigned a, unsigned b)
{
    if (a < LEAST_SAMPLES || b < LEAST_SAMPLES)
        return 0;
    const double mean = (double)a * b / 2;
    const double deviation = sqrt((double)a * b * (a + b + 1.0) / 12);
    const double rank = floor(mean - 1.96 * deviation);
    return rank < 1 ? 1 : (size_t)rank;
}

/* Returns the only result of a name. NULL: there is none, or there are several. */
static struct result *only_one(const struct results *all, const char *name)
{
    struct result *found = NULL;
    for (unsigned i = 0; i < all->count; i++) {
        struct result *one = &all->result[i];
        if (strcmp(one->name, name) != 0)
            continue;
        if (found)
            return NULL;
        found = one;
    }
    return found;
}

/* Returns what a result of one file is compared with. NULL: with nothing. */
static struct result *partner(const struct results *all, const struct result *one,
                              const struct results *other)
{
    struct result *same = find(other, one);
    if (same)
        return same;
    return only_one(all, one->name) ? only_one(other, one->name) : NULL;
}

/* Print a value once if both results have it, else as A/B. */
static void print_name(const struct result *a, const struct result *b)
{
    char processes[64], members[64], kinds[2 * NAME_BYTES];

    snprintf(processes, sizeof processes, "%.0f", a->processes);
    snprintf(members, sizeof members, "%.0f", a->members);
    snprintf(kinds, sizeof kinds, "%s", a->threads);
    if (a->processes != b->processes)
        snprintf(processes, sizeof processes, "%.0f/%.0f", a->processes, b->processes);
    if (a->members != b->members)
        snprintf(members, sizeof members, "%.0f/%.0f", a->members, b->members);
    if (strcmp(a->threads, b->threads) != 0)
        snprintf(kinds, sizeof kinds, "%s/%s", a->threads, b->threads);
    printf("%-16s %3s %6s %-11s ", a->name, processes, members, kinds);
}

static bool print_pair(const struct result *a, const struct result *b)
{
    const size_t n = (size_t)a->count * b->count, rank = first_rank(a->count, b->count);
    const double a_us = usecs_of(a), b_us = usecs_of(b);
    double *ratio = ratios_of(a, b);

    if (!ratio)
        return refuse("out of memory");
    print_name(a, b);
    printf("%12.5f %12.5f %8.3f  ", a_us, b_us, median_of(ratio, n));
    if (rank)
        printf("%.3f to %.3f\n", ratio[rank - 1], ratio[n - rank]);
    else
        printf("-  (fewer than %u samples)\n", LEAST_SAMPLES);
    free(ratio);
    return true;
}

/* A case without samples in one of the files, or that one of them (NULL) does not have. */
static void print_uneven(const struct result *a, const struct result *b)
{
    print_name(a ? a : b, b ? b : a);
    for (unsigned i = 0; i < 2; i++) {
        const struct result *one = i ? b : a;
        if (one && one->count > 0)
            printf("%12.5f ", usecs_of(one));
        else
            printf("%12s ", "-");
    }
    printf("%8s  -\n", "-");
}

static bool print_all(const struct results *a, const struct results *b)
{
    printf("# A %s\n# B %s\n", a->path, b->path);
    printf("# B/A: median ratio of all pairs of samples, and its 95 %% interval (Mann-Whitney)\n");
    printf("%-16s %3s %6s %-11s %12s %12s %8s  %s\n", "", "prc", "thr", "kind", "A usecs/call",
           "B usecs/call", "B/A", "95 %");
    for (unsigned i = 0; i < a->count; i++) {
        const struct result *one = &a->result[i], *other = partner(a, one, b);
        if (!other || !one->count || !other->count)
            print_uneven(one, other);
        else if (!print_pair(one, other))
            return false;
    }
    for (unsigned i = 0; i < b->count; i++)
        if (!partner(b, &b->result[i], a))
            print_uneven(NULL, &b->result[i]);
    return true;
}

static bool make_results(struct results *all, const char *path)
{
    all->path = path;
    all->count = 0;
    all->result = calloc(RESULTS_MAX, sizeof *all->result);
    return all->result ? true : refuse("out of memory");
}

static void free_results(struct results *all)
{
    for (unsigned i = 0; all->result && i < all->count; i++)
        free(all->result[i].sample);
    free(all->result);
}

int bench_compare(int count, char **paths)
{
    struct results a = { 0 }, b = { 0 };
    int status = 2;

    if (count != 2) {
        fprintf(stderr, "%s: compare: give two files of results; see %s --help\n", bench_program,
                bench_program);
        return 2;
    }
    if (make_results(&a, paths[0]) && make_results(&b, paths[1]) && read_file(&a) &&
        read_file(&b)) {
        status = print_all(&a, &b) ? 0 : 1;
        if (fflush(stdout) != 0 || ferror(stdout)) {
            fprintf(stderr, "%s: writing the report failed: %s\n", bench_program, strerror(errno));
            status = 1;
        }
    }
    free_results(&a);
    free_results(&b);
    return status;
}
