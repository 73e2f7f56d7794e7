/* SPDX-License-Identifier: MIT */
/* options.c - the command line. Every mistake is told in one line, with status 2. */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_THREADS = 256,
    OPT_WORKERS,
    OPT_SECONDS,
    OPT_SAMPLES,
    OPT_PIN,
    OPT_OBS,
    OPT_JSON,
    OPT_SLEEP_US,
    OPT_BYTES,
    OPT_SOCKET,
    OPT_LOCK,
    OPT_YIELD_EVERY,
    OPT_HELP,
};

static const struct option long_options[] = {
    { "threads", required_argument, NULL, OPT_THREADS },
    { "workers", required_argument, NULL, OPT_WORKERS },
    { "seconds", required_argument, NULL, OPT_SECONDS },
    { "samples", required_argument, NULL, OPT_SAMPLES },
    { "pin", no_argument, NULL, OPT_PIN },
    { "obs", required_argument, NULL, OPT_OBS },
    { "json", no_argument, NULL, OPT_JSON },
    { "sleep-us", required_argument, NULL, OPT_SLEEP_US },
    { "bytes", required_argument, NULL, OPT_BYTES },
    { "socket", required_argument, NULL, OPT_SOCKET },
    { "lock", required_argument, NULL, OPT_LOCK },
    { "yield-every", required_argument, NULL, OPT_YIELD_EVERY },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

static const char help[] =
    "usage: rouse-bench list\n"
    "       rouse-bench CASE [options]\n"
    "\n"
    "Measure one thing on one kind of threads; the same source runs on all kinds.\n"
    "\n"
    "  --threads KIND     user    many threads on few workers (default)\n"
    "                     kernel  one pthread each\n"
    "                     clone   one bare clone() each, a library of the benchmark's own\n"
    "  --workers N        user threads: workers; others: use the first N processors only\n"
    "                     (default: one a usable processor, or all of them)\n"
    "  -T N               threads that take part (default: the case's own)\n"
    "  -n N               operations a sample (default: as many as last 10 ms)\n"
    "  --seconds S        begin no sample after S seconds (default 2)\n"
    "  --samples N        samples, at most 1000 (default 11; sleep 3, memory 1)\n"
    "  --pin              workers, or kernel threads, each to a processor, in turn\n"
    "  --obs off|counted  recording of waits (default off)\n"
    "  --json             one object a line\n"
    "  --sleep-us N       sleep: how long (default 10000)\n"
    "  --bytes N          echo: size of a message (default 1)\n"
    "  --socket KIND      echo: unix (default) or tcp\n"
    "  --lock KIND        mutex: mutex (default), or spin with --threads clone\n"
    "  --yield-every N    mutex: operations between two yields, 0 for none\n"
    "                     (default 64 for user threads, which are not pre-empted, else 0)\n"
    "\n"
    "Operations per worker are counted where they ran; for kernel threads, per processor.\n"
    "Exit status: 0, 1 when the case failed, 2 for wrong arguments.\n";

__attribute__((format(printf, 1, 2))) static int wrong(const char *format, ...)
{
    va_list list;
    fputs("rouse-bench: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputs("; see rouse-bench --help\n", stderr);
    return 2;
}

static int parse_number(const char *option, const char *text, uint64_t least, uint64_t most,
                        uint64_t *out)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > most)
        return wrong("%s: '%s' is not a number from %llu to %llu", option, text,
                     (unsigned long long)least, (unsigned long long)most);
    *out = value;
    return 0;
}

/* Which of the words, which end with NULL. */
static int parse_word(const char *option, const char *text, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    return wrong("%s: '%s' is not known", option, text);
}

static int parse_seconds(const char *text, double *out)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0 || value > 3600)
        return wrong("--seconds: '%s' is not a number above 0, at most 3600", text);
    *out = value;
    return 0;
}

static int parse_kind(struct bench_options *o, int option)
{
    static const char *const kinds[] = { "user", "kernel", "clone", NULL };
    static const char *const modes[] = { "off", "counted", NULL };
    static const char *const sockets[] = { "unix", "tcp", NULL };
    static const char *const locks[] = { "mutex", "spin", NULL };
    int word = 0, status = 0;

    if (option == OPT_THREADS) {
        status = parse_word("--threads", optarg, kinds, &word);
        o->kind = (enum bench_kind)word;
    } else if (option == OPT_OBS) {
        status = parse_word("--obs", optarg, modes, &word);
        o->obs = word;
    } else if (option == OPT_SOCKET) {
        status = parse_word("--socket", optarg, sockets, &word);
        o->tcp = word;
    } else {
        status = parse_word("--lock", optarg, locks, &word);
        o->spin_lock = word;
    }
    return status;
}

static int parse_one(struct bench_options *o, int option)
{
    uint64_t n = 0;
    int status = 0;

    switch (option) {
    case OPT_WORKERS:
        status = parse_number("--workers", optarg, 1, BENCH_TALLIES, &n);
        o->workers = (unsigned)n;
        return status;
    case 'T':
        status = parse_number("-T", optarg, 1, 4000000, &n);
        o->threads = (unsigned)n;
        return status;
    case 'n': return parse_number("-n", optarg, 1, 1000000000000, &o->ops);
    case OPT_SECONDS: return parse_seconds(optarg, &o->seconds);
    case OPT_SAMPLES:
        status = parse_number("--samples", optarg, 1, BENCH_SAMPLES_MAX, &n);
        o->samples = (unsigned)n;
        return status;
    case OPT_SLEEP_US:
        status = parse_number("--sleep-us", optarg, 1, 3600000000, &n);
        o->sleep_ns = n * 1000;
        return status;
    case OPT_BYTES:
        status = parse_number("--bytes", optarg, 1, 1 << 20, &n);
        o->bytes = (unsigned)n;
        return status;
    case OPT_YIELD_EVERY:
        status = parse_number("--yield-every", optarg, 0, 1 << 30, &n);
        o->yield_every = (int)n;
        return status;
    case OPT_PIN: o->pin = true; return 0;
    case OPT_JSON: o->json = true; return 0;
    default: return parse_kind(o, option);
    }
}

static int check_together(const struct bench_options *o)
{
    if (o->kind == BENCH_KIND_CLONE && o->obs)
        return wrong("--obs counted: bare clone() threads keep no records");
    if (o->kind != BENCH_KIND_CLONE && o->spin_lock)
        return wrong("--lock spin: only with --threads clone");
    return 0;
}

static int list_cases(void)
{
    for (const struct bench_case *const *c = bench_cases_rouse; *c; c++)
        printf("%-14s %s\n", (*c)->name, (*c)->summary);
    return -1;
}

static int find_case(const char *name)
{
    for (const struct bench_case *const *c = bench_cases_rouse; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return 0;
    return wrong("there is no case '%s'", name);
}

int bench_options_parse(struct bench_options *options, int argc, char **argv)
{
    int option;

    *options =
        (struct bench_options){ .seconds = 2, .sleep_ns = 10000000, .bytes = 1, .yield_every = -1 };
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":T:n:", long_options, NULL)) != -1) {
        if (option == OPT_HELP) {
            fputs(help, stdout);
            return -1;
        }
        if (option == ':')
            return wrong("%s wants a value", argv[optind - 1]);
        if (option == '?' && optopt > 255)
            return wrong("%s takes no value", argv[optind - 1]);
        if (option == '?' && optopt)
            return wrong("there is no option -%c", optopt);
        if (option == '?')
            return wrong("there is no option %s", argv[optind - 1]);
        int status = parse_one(options, option);
        if (status)
            return status;
    }
    if (optind == argc)
        return wrong("which case");
    if (optind + 1 < argc)
        return wrong("one case at a time, not also '%s'", argv[optind + 1]);
    options->case_name = argv[optind];
    if (strcmp(options->case_name, "list") == 0)
        return list_cases();
    int status = find_case(options->case_name);
    return status ? status : check_together(options);
}

const char *bench_kind_name(enum bench_kind kind)
{
    static const char *const names[] = { "user", "kernel", "clone" };
    return names[kind];
}
