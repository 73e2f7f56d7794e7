/* SPDX-License-Identifier: MIT */
/* options.c - parses the command line. Every mistake is reported in one line, with status 2. */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 4000000u

enum {
    OPT_THREADS = 256,
    OPT_WORKERS,
    OPT_SECONDS,
    OPT_SAMPLES,
    OPT_PIN,
    OPT_OBS,
    OPT_JSON,
    OPT_SLEEP_US,
    OPT_SLACK_NS,
    OPT_BYTES,
    OPT_SOCKET,
    OPT_LOCK,
    OPT_YIELD_EVERY,
    OPT_TABLE,
    OPT_OP,
    OPT_VIA,
    OPT_WAKE,
    OPT_SCHED_LOCK,
    OPT_SELECT_LOCK,
    OPT_TIMER,
    OPT_LOAD,
    OPT_SETS,
    OPT_SHARE,
    OPT_TIMEOUT_US,
    OPT_HZ,
    OPT_PROCESSES,
    OPT_AFFINITY,
    OPT_PLACE,
    OPT_FOOTPRINT,
    OPT_ORDER,
    OPT_SHARED_BY,
    OPT_SERVERS,
    OPT_BURST,
    OPT_GAP_US,
    OPT_FDS,
    OPT_READY,
    OPT_HOLD_US,
    OPT_MODE,
    OPT_TRANSPORT,
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
    { "slack-ns", required_argument, NULL, OPT_SLACK_NS },
    { "bytes", required_argument, NULL, OPT_BYTES },
    { "socket", required_argument, NULL, OPT_SOCKET },
    { "lock", required_argument, NULL, OPT_LOCK },
    { "yield-every", required_argument, NULL, OPT_YIELD_EVERY },
    { "table", required_argument, NULL, OPT_TABLE },
    { "op", required_argument, NULL, OPT_OP },
    { "via", required_argument, NULL, OPT_VIA },
    { "wake", required_argument, NULL, OPT_WAKE },
    { "sched-lock", required_argument, NULL, OPT_SCHED_LOCK },
    { "select-lock", required_argument, NULL, OPT_SELECT_LOCK },
    { "timer", required_argument, NULL, OPT_TIMER },
    { "load", required_argument, NULL, OPT_LOAD },
    { "sets", required_argument, NULL, OPT_SETS },
    { "share", required_argument, NULL, OPT_SHARE },
    { "timeout-us", required_argument, NULL, OPT_TIMEOUT_US },
    { "hz", required_argument, NULL, OPT_HZ },
    { "processes", optional_argument, NULL, OPT_PROCESSES },
    { "affinity", required_argument, NULL, OPT_AFFINITY },
    { "place", required_argument, NULL, OPT_PLACE },
    { "footprint", required_argument, NULL, OPT_FOOTPRINT },
    { "order", required_argument, NULL, OPT_ORDER },
    { "shared-by", required_argument, NULL, OPT_SHARED_BY },
    { "servers", required_argument, NULL, OPT_SERVERS },
    { "burst", required_argument, NULL, OPT_BURST },
    { "gap-us", required_argument, NULL, OPT_GAP_US },
    { "fds", required_argument, NULL, OPT_FDS },
    { "ready", required_argument, NULL, OPT_READY },
    { "hold-us", required_argument, NULL, OPT_HOLD_US },
    { "mode", required_argument, NULL, OPT_MODE },
    { "transport", required_argument, NULL, OPT_TRANSPORT },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

/* Options of some cases. With another case they would have no effect and mislead, so they are errors. */
static const struct {
    int option;
    const char *name;
    const char *cases;
} only_for[] = {
    { OPT_SLEEP_US, "--sleep-us", "sleepherd, nanosleep, clock_nanosleep" },
    { OPT_SLACK_NS, "--slack-ns", "sleepherd" },
    { OPT_BYTES, "--bytes", "echo, pipe, read, write" },
    { OPT_SOCKET, "--socket", "echo" },
    { OPT_LOCK, "--lock", "mutex" },
    { OPT_YIELD_EVERY, "--yield-every", "mutex" },
    { OPT_TABLE, "--table", "fdtable" },
    { OPT_OP, "--op", "shared_writes" },
    { OPT_VIA, "--via", "selectherd" },
    { OPT_WAKE, "--wake", "selectherd" },
    { OPT_SCHED_LOCK, "--sched-lock", "selectherd" },
    { OPT_SELECT_LOCK, "--select-lock", "selectherd" },
    { OPT_TIMER, "--timer", "selectherd" },
    { OPT_LOAD, "--load", "selectherd" },
    { OPT_SETS, "--sets", "selectherd" },
    { OPT_SHARE, "--share", "selectherd" },
    { OPT_TIMEOUT_US, "--timeout-us", "selectherd" },
    { OPT_HZ, "--hz", "selectherd" },
    { OPT_AFFINITY, "--affinity", "steal" },
    { OPT_PLACE, "--place", "steal" },
    { OPT_FOOTPRINT, "--footprint", "steal" },
    { OPT_ORDER, "--order", "acceptherd" },
    { OPT_SHARED_BY, "--shared-by", "acceptherd" },
    { OPT_SERVERS, "--servers", "acceptherd" },
    { OPT_BURST, "--burst", "acceptherd" },
    { OPT_GAP_US, "--gap-us", "acceptherd" },
    { OPT_FDS, "--fds", "poll, select" },
    { OPT_READY, "--ready", "poll, select" },
    { OPT_HOLD_US, "--hold-us", "mutex" },
    { OPT_MODE, "--mode", "pipe" },
    { OPT_TRANSPORT, "--transport", "pipe" },
};

/* The state while the line is read. */
struct reading {
    struct bench_options *options;
    uint64_t given; /* bit option - OPT_THREADS */
};

static uint64_t bit(int option)
{
    return 1ull << (option - OPT_THREADS);
}

__attribute__((format(printf, 1, 2))) static int wrong(const char *format, ...)
{
    va_list list;
    fprintf(stderr, "%s: ", bench_program);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "; see %s --help\n", bench_program);
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

/* Select one of two words. */
static int parse_either(const char *option, const char *text, const char *no, const char *yes,
                        bool *out)
{
    *out = strcmp(text, yes) == 0;
    return *out || strcmp(text, no) == 0
               ? 0
               : wrong("%s: '%s' is neither %s nor %s", option, text, no, yes);
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

static int parse_kind(struct bench_options *o, const char *name)
{
    for (o->kind = bench_kinds; o->kind->name; o->kind++)
        if (strcmp(o->kind->name, name) == 0)
            return 0;
    return wrong("--threads: there is no kind '%s'", name);
}

static int parse_count(const char *option, unsigned least, unsigned most, unsigned *out)
{
    uint64_t n = 0;
    const int status = parse_number(option, optarg, least, most, &n);
    *out = (unsigned)n;
    return status;
}

static int parse_numbers(struct bench_options *o, int option)
{
    uint64_t n = 0;
    int status = 0;

    switch (option) {
    case OPT_WORKERS: return parse_count("--workers", 1, BENCH_TALLIES, &o->workers);
    case 'T': return parse_count("-T", 1, THREADS_MAX, &o->threads);
    case OPT_SAMPLES: return parse_count("--samples", 1, BENCH_SAMPLES_MAX, &o->samples);
    case OPT_SLEEP_US:
        status = parse_number("--sleep-us", optarg, 1, 3600000000, &n);
        o->sleep_ns = n * 1000;
        return status;
    case OPT_SLACK_NS:
        status = parse_number("--slack-ns", optarg, 1, 1000000000, &n);
        o->slack_ns = n;
        return status;
    case OPT_BYTES: return parse_count("--bytes", 1, 1 << 20, &o->bytes);
    case OPT_SETS: return parse_count("--sets", 0, 1024, &o->sets);
    case OPT_SHARE: return parse_count("--share", 1, 256, &o->share);
    case OPT_TIMEOUT_US:
        status = parse_number("--timeout-us", optarg, 0, 3600000000, &n);
        o->timeout_ns = n * 1000;
        return status;
    case OPT_HZ: return parse_count("--hz", 1, 10000, &o->hz);
    case OPT_AFFINITY: return parse_count("--affinity", 1, 6, &o->affinity);
    case OPT_FOOTPRINT: return parse_count("--footprint", 0, 1 << 24, &o->footprint);
    case OPT_FDS: return parse_count("--fds", 2, 1000, &o->fds);
    case OPT_READY: return parse_count("--ready", 0, 1000, &o->ready);
    case OPT_SERVERS: return parse_count("--servers", 1, BENCH_SERVERS_MOST, &o->servers);
    case OPT_BURST: return parse_count("--burst", 1, BENCH_BURST_MOST, &o->burst);
    case OPT_GAP_US:
        status = parse_number("--gap-us", optarg, 0, 3600000000, &n);
        o->gap_ns = n * 1000;
        return status;
    case OPT_HOLD_US:
        status = parse_number("--hold-us", optarg, 0, 1000000, &n);
        o->hold_ns = n * 1000;
        return status;
    case OPT_YIELD_EVERY:
        status = parse_number("--yield-every", optarg, 0, 1 << 30, &n);
        o->yield_every = (int)n;
        return status;
    default: return parse_number("-n", optarg, 1, 1000000000000, &o->ops);
    }
}

const char *const bench_obs_modes[] = { "off", "counted", "locks", "trace", "exact", NULL };

/* Select one of several words. NULL ends the list. */
static int parse_word(const char *option, const char *text, const char *const *words, unsigned *out)
{
    for (*out = 0; words[*out]; ++*out)
        if (strcmp(words[*out], text) == 0)
            return 0;
    return wrong("%s: there is no '%s'", option, text);
}

static int parse_words(struct bench_options *o, int option)
{
    static const char *const vias[] = { "default", "layer", "poll", "rouse", NULL };
    static const char *const tables[] = { "chunks", "rwlock", "recheck", NULL };
    static const char *const ops[] = { BENCH_OPS, NULL };
    static const char *const orders[] = { BENCH_ORDERS, NULL };
    static const char *const shares[] = { BENCH_SHARES, NULL };
    static const char *const modes[] = { BENCH_MODES, NULL };
    static const char *const transports[] = { BENCH_TRANSPORTS, NULL };
    unsigned word = 0;
    int status;

    if (option == OPT_VIA) {
        status = parse_word("--via", optarg, vias, &word);
        o->via = (enum bench_via)word;
    } else if (option == OPT_ORDER) {
        status = parse_word("--order", optarg, orders, &word);
        o->accept_order = (enum bench_order)word;
    } else if (option == OPT_SHARED_BY) {
        status = parse_word("--shared-by", optarg, shares, &word);
        o->accept_share = (enum bench_share)word;
    } else if (option == OPT_MODE) {
        status = parse_word("--mode", optarg, modes, &word);
        o->mode = (enum bench_mode)word;
    } else if (option == OPT_TRANSPORT) {
        status = parse_word("--transport", optarg, transports, &word);
        o->transport = (enum bench_transport)word;
    } else if (option == OPT_OP) {
        status = parse_word("--op", optarg, ops, &word);
        o->op = (enum bench_op)word;
    } else {
        status = parse_word("--table", optarg, tables, &word);
        o->table = (enum bench_table)word;
    }
    return status;
}

/* selectherd has `--processes`. The cases of libMicro have `--processes N`; the number may be a word of its own. */
static int parse_processes(struct bench_options *o, int argc, char **argv)
{
    if (!optarg && optind < argc && *argv[optind] >= '0' && *argv[optind] <= '9')
        optarg = argv[optind++];
    o->forked = !optarg;
    return optarg ? parse_count("--processes", 1, BENCH_MEMBERS_MAX, &o->processes) : 0;
}

static int parse_one(struct bench_options *o, int option)
{
    switch (option) {
    case OPT_THREADS: return parse_kind(o, optarg);
    case OPT_SECONDS: return parse_seconds(optarg, &o->seconds);
    case OPT_OBS: return parse_word("--obs", optarg, bench_obs_modes, &o->obs);
    case OPT_SOCKET: return parse_either("--socket", optarg, "unix", "tcp", &o->tcp);
    case OPT_LOCK: return parse_either("--lock", optarg, "mutex", "spin", &o->spin_lock);
    case OPT_VIA:
    case OPT_OP:
    case OPT_ORDER:
    case OPT_SHARED_BY:
    case OPT_MODE:
    case OPT_TRANSPORT:
    case OPT_TABLE: return parse_words(o, option);
    case OPT_WAKE: return parse_either("--wake", optarg, "precise", "broadcast", &o->broadcast);
    case OPT_SCHED_LOCK:
        return parse_either("--sched-lock", optarg, "thread", "process", &o->process_lock);
    case OPT_SELECT_LOCK:
        return parse_either("--select-lock", optarg, "fine", "global", &o->global_lock);
    case OPT_TIMER: return parse_either("--timer", optarg, "exact", "tick", &o->tick);
    case OPT_PLACE: return parse_either("--place", optarg, "steal", "shortest", &o->shortest);
    case OPT_LOAD: return parse_either("--load", optarg, "free", "stepped", &o->stepped);
    case OPT_PIN: o->pin = true; return 0;
    case OPT_JSON: o->json = true; return 0;
    default: return parse_numbers(o, option);
    }
}

/* Returns as bench_options_parse does. */
static int read_options(struct reading *r, int argc, char **argv)
{
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":T:n:", long_options, NULL)) != -1) {
        if (option == OPT_HELP) {
            bench_help();
            return -1;
        }
        if (option == ':')
            return wrong("%s requires a value", argv[optind - 1]);
        if (option == '?' && optopt > 255)
            return wrong("%s takes no value", argv[optind - 1]);
        if (option == '?' && optopt)
            return wrong("there is no option -%c", optopt);
        if (option == '?')
            return wrong("there is no option %s", argv[optind - 1]);
        if (option >= OPT_THREADS)
            r->given |= bit(option);
        int status = option == OPT_PROCESSES ? parse_processes(r->options, argc, argv)
                                             : parse_one(r->options, option);
        if (status)
            return status;
    }
    if (optind == argc)
        return wrong("which case");
    if (optind + 1 < argc)
        return wrong("one case at a time, not also '%s'", argv[optind + 1]);
    return 0;
}

static int list_cases(void)
{
    for (const struct bench_case *const *c = bench_kinds[0].cases; *c; c++)
        printf("%-14s %s\n", (*c)->name, (*c)->summary);
    return -1;
}

static const struct bench_case *find_case(const struct bench_kind *kind, const char *name)
{
    const struct bench_case *const *c = kind->cases;
    while (*c && strcmp((*c)->name, name) != 0)
        c++;
    return *c;
}

/* selectherd: set the default of --via, and reject options that the chosen --via does not support. */
static int check_herd(const struct reading *r)
{
    struct bench_options *o = r->options;
    const uint64_t switches = bit(OPT_WAKE) | bit(OPT_SCHED_LOCK) | bit(OPT_SELECT_LOCK) |
                              bit(OPT_TIMER) | bit(OPT_HZ) | bit(OPT_LOAD);
    const bool user = o->kind->user;

    if (o->via == BENCH_VIA_DEFAULT)
        o->via = user ? BENCH_VIA_ROUSE : BENCH_VIA_LAYER;
    if (user && o->via != BENCH_VIA_ROUSE)
        return wrong("--via: layer and poll are for --threads kernel");
    if (o->via != BENCH_VIA_LAYER && (r->given & switches))
        return wrong(
            "--wake, --sched-lock, --select-lock, --timer, --hz, --load: only with --via layer");
    if (r->given & bit(OPT_HZ) && !o->tick)
        return wrong("--hz: only with --timer tick");
    if (o->processes)
        return wrong("--processes: no number for selectherd, which forks -T processes");
    if (o->forked && o->via == BENCH_VIA_ROUSE)
        return wrong("--processes: not with --via rouse");
    if (o->threads > BENCH_HERD_MOST)
        return wrong("-T: selectherd has at most %u threads", BENCH_HERD_MOST);
    if (o->sets == 0 && (o->timeout_ns == 0 || o->stepped))
        return wrong("--sets 0: requires a time-out, and no --load stepped");
    return 0;
}

/* acceptherd: reject orders and ways to share that the kind of threads does not support. */
static int check_accept(const struct reading *r)
{
    struct bench_options *o = r->options;
    const bool user = o->kind->user;

    if (o->accept_order == BENCH_ORDER_DEFAULT)
        o->accept_order = user ? BENCH_ORDER_FIFO : BENCH_ORDER_ACCEPT;
    if (user != (o->accept_order < BENCH_ORDER_ACCEPT))
        return wrong("--order: this one is for --threads %s", user ? "kernel" : "user");
    if (!user && o->accept_share == BENCH_SHARE_TURNS)
        return wrong("--shared-by turns: for --threads user");
    if (o->accept_order >= BENCH_ORDER_POLL && o->accept_share == BENCH_SHARE_EXCLUSIVE)
        return wrong("--shared-by exclusive: not with this --order");
    if (o->accept_order >= BENCH_ORDER_PRIORITISED && o->servers > 1)
        return wrong("--servers: one, with this --order");
    if (o->threads > BENCH_HERD_MOST)
        return wrong("-T: acceptherd has at most %u threads", BENCH_HERD_MOST);
    return 0;
}

static const char *named(const char *name, const char *list)
{
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ',' || !at[length]))
            return at;
    return NULL;
}

/* The options that only some cases have. test is NULL for all cases of libMicro. */
static int check_owners(const struct reading *r, const struct bench_case *test)
{
    for (size_t i = 0; i < sizeof only_for / sizeof *only_for; i++)
        if ((r->given & bit(only_for[i].option)) &&
            (!test || !named(test->name, only_for[i].cases)))
            return wrong("%s is for %s, not for %s", only_for[i].name, only_for[i].cases,
                         test ? test->name : "libmicro");
    return 0;
}

/* The options of the cases of libMicro. test is NULL for all of them. */
static int check_calls(const struct bench_options *o, const struct bench_case *test)
{
    const char *name = test ? test->name : "libmicro";
    const uint64_t threads = o->threads ? o->threads : test ? test->threads : 16;
    const bool is_clone = strcmp(o->kind->name, "clone") == 0;

    if (test && !(test->flags & BENCH_CALLS))
        return o->forked || o->processes
                   ? wrong("--processes is for selectherd and the cases of libMicro, not for %s",
                           name)
                   : 0;
    if (o->forked)
        return wrong("--processes: %s requires a number of them", name);
    if (is_clone && (!test || o->processes))
        return wrong("%s: not with --threads clone", test ? "--processes" : "libmicro");
    if (o->processes * threads > BENCH_MEMBERS_MAX)
        return wrong("--processes: at most %u processes times threads", BENCH_MEMBERS_MAX);
    if (o->fds % 2 || o->ready > (o->fds ? o->fds : 256))
        return wrong("--fds: an even number, and no more of them --ready");
    if (test && strcmp(name, "pipe") == 0 && o->mode == BENCH_MODE_ST && o->bytes > 65536)
        return wrong("--bytes: with --mode st at most 65536, which a pipe holds");
    return 0;
}

const char *bench_options_fit(struct bench_options *o, const struct bench_case **test)
{
    const unsigned threads = o->threads ? o->threads : (*test)->threads;
    const bool sleeps_long = strcmp((*test)->name, "sleepherd") == 0;
    const bool is_echo = strcmp((*test)->name, "echo") == 0;

    if (o->processes > 1 && (*test)->shared)
        *test = (*test)->shared;
    if (o->sleep_ns == 0)
        o->sleep_ns = sleeps_long ? 10000000 : 1000;
    if (o->bytes == 0)
        o->bytes = is_echo ? 1 : 1024;
    if (o->fds == 0)
        o->fds = 256;
    return (*test)->excuse ? (*test)->excuse(o, threads) : NULL;
}

/* Check combinations of options once the whole line has been read. */
static int check_together(const struct reading *r, const struct bench_case *test)
{
    const struct bench_options *o = r->options;
    const struct bench_kind *kind = o->kind;

    int status = check_owners(r, test);
    if (status == 0 && strcmp(test->name, "selectherd") != 0)
        status = check_calls(o, test);
    if (status)
        return status;
    if (o->obs && !kind->recorded)
        return wrong("--obs %s: %s threads keep no records", bench_obs_modes[o->obs], kind->name);
    if (o->spin_lock && strcmp(kind->name, "clone") != 0)
        return wrong("--lock spin: only with --threads clone");
    if (kind->workers_max && o->workers > kind->workers_max)
        return wrong("--workers: %s has at most %u", kind->name, kind->workers_max);
    if ((test->flags & BENCH_PAIRS) && o->threads % 2)
        return wrong("-T: %s requires an even number of threads", test->name);
    if ((test->flags & BENCH_ONE_SAMPLE) && o->samples > 1)
        return wrong("--samples: %s takes only one: later samples would find warm stacks",
                     test->name);
    if ((test->flags & BENCH_FIXED_OPS) && o->ops > THREADS_MAX)
        return wrong("-n: %s makes at most %u threads", test->name, THREADS_MAX);
    if (strcmp(test->name, "steal") == 0 && !kind->user)
        return wrong("steal: only with --threads user");
    if (strcmp(test->name, "acceptherd") == 0)
        return check_accept(r);
    return strcmp(test->name, "selectherd") == 0 ? check_herd(r) : 0;
}

int bench_options_parse(struct bench_options *options, const struct bench_case **test, int argc,
                        char **argv)
{
    struct reading r = { .options = options };

    *options = (struct bench_options){
        .kind = bench_kinds,
        .obs = BENCH_OBS_UNSET,
        .seconds = 2,
        .yield_every = -1,
        .sets = 16,
        .share = 1,
        .timeout_ns = 5000000,
        .hz = 100,
        .servers = 1,
        .burst = 1,
    };
    int status = read_options(&r, argc, argv);
    if (status)
        return status;
    if (strcmp(argv[optind], "list") == 0)
        return list_cases();
    *test = NULL;
    if (options->obs == BENCH_OBS_UNSET) /* as in a program that sets nothing */
        options->obs = options->kind->recorded ? BENCH_OBS_COUNTED : BENCH_OBS_OFF;
    if (strcmp(argv[optind], "libmicro") == 0)
        return (status = check_owners(&r, NULL)) ? status : check_calls(options, NULL);
    *test = find_case(options->kind, argv[optind]);
    if (!*test)
        return wrong("there is no case '%s'", argv[optind]);
    status = check_together(&r, *test);
    if (status)
        return status;
    const char *excuse = bench_options_fit(options, test);
    return excuse ? wrong("%s: %s", (*test)->name, excuse) : 0;
}
