/* SPDX-License-Identifier: MIT */
/*
 * bench.h - the interface between the harness and the cases.
 *
 * A case is one file, compiled once for each implementation (see impl.h). Its life:
 *   fork     main thread, before any thread exists: fork the other processes
 *   prepare  main thread, libc allowed: allocate and touch all that is needed
 *   begin    measuring thread: start the other threads
 *   sample   measuring thread, repeatedly: do about `ops` operations between bench_start and bench_stop,
 *            store the true number in run->sample_ops
 *   end      measuring thread: stop and join the others
 *   report   main thread: the case's own figures, by bench_figure
 *   release  main thread: free what prepare made
 * begin, sample and end run in a thread of the kind under test and use raw.h and impl.h only: no libc.
 * All but sample may be NULL. Functions return 0 or -errno.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_run;
struct bench_options;

/* A kind of threads to measure. Each program defines its own. */
struct bench_kind {
    const char *name;
    const char *summary;
    bool user;            /* scheduled by a library, and not pre-empted */
    bool recorded;        /* --obs has an effect */
    unsigned workers_max; /* 0: any number */
    const struct bench_case *const *cases;
    int (*set_up)(struct bench_run *run); /* main thread: apply --workers and --pin. 0 or -errno. */
    int (*measure)(struct bench_run *run);    /* in a thread of this kind, take all samples */
    void (*tear_down)(struct bench_run *run); /* main thread, at the end; may be NULL */
};
extern const char bench_program[];
/* The first is the default. An entry without a name ends the list. */
extern const struct bench_kind bench_kinds[];

#define BENCH_SAMPLES_MAX 1000u
#define BENCH_TALLIES 1024u
#define BENCH_FIGURES_MAX 32u
#define BENCH_CPUS_MAX 1024u

/* A sample lasts at least this long, so that reading the clocks is a negligible part of it. */
#define BENCH_SAMPLE_NS 10000000u

enum bench_flag {
    BENCH_TIMED = 1, /* a sample lasts run->sample_ns and is not calibrated, unless -n gives ops */
    BENCH_FIXED_OPS = 2,   /* ops is T, and -n is another name of -T */
    BENCH_COLD_FIRST = 4,  /* the first sample is reported separately, as first_ns_per_op */
    BENCH_PAIRS = 8,       /* T is even */
    BENCH_ONE_SAMPLE = 16, /* a second sample would measure something else */
    BENCH_CALLS = 32,      /* a case of libMicro: the text shows the time of one thread's call */
};

/* shared_writes: the operations, and their names in this order. */
enum bench_op {
    BENCH_OP_YIELD,
    BENCH_OP_CREATE,
    BENCH_OP_JOIN,
    BENCH_OP_PARK,
    BENCH_OP_UNPARK,
    BENCH_OP_WAKE_ACROSS,
    BENCH_OP_WAKE_IDLE,
    BENCH_OP_LOCK,
    BENCH_OP_UNLOCK,
    BENCH_OP_POST,
    BENCH_OP_WAIT,
    BENCH_OP_READ,
    BENCH_OP_WRITE,
};
#define BENCH_OPS \
    "yield", "create", "join", "park", "unpark", "wake_across", "wake_idle", "lock", "unlock", \
        "post", "wait", "read", "write"

/* fdtable: the kinds of table. */
enum bench_table { BENCH_TABLE_CHUNKS, BENCH_TABLE_RWLOCK, BENCH_TABLE_RECHECK };

#define BENCH_HERD_MOST 256u /* threads */

/* selectherd: the calls that its threads make. */
enum bench_via { BENCH_VIA_DEFAULT, BENCH_VIA_LAYER, BENCH_VIA_POLL, BENCH_VIA_ROUSE };

/* acceptherd: the order in which a process's threads get connections. Those from accept on need kernel threads. */
enum bench_order {
    BENCH_ORDER_DEFAULT,
    BENCH_ORDER_PLAIN,
    BENCH_ORDER_FIFO,
    BENCH_ORDER_LIFO,
    BENCH_ORDER_SCATTER,
    BENCH_ORDER_ACCEPT,
    BENCH_ORDER_POLL,
    BENCH_ORDER_PRIORITISED,
    BENCH_ORDER_PROMOTED,
};
#define BENCH_ORDERS \
    "default", "plain", "fifo", "lifo", "scatter", "accept", "poll", "prioritised", "promoted"

/* acceptherd: how processes share the port. */
enum bench_share {
    BENCH_SHARE_HERD,
    BENCH_SHARE_EXCLUSIVE,
    BENCH_SHARE_TURNS,
    BENCH_SHARE_REUSEPORT
};
#define BENCH_SHARES "herd", "exclusive", "turns", "reuseport"
/* pipe: who reads what a thread writes, and through what; libMicro's words. */
enum bench_mode { BENCH_MODE_ST, BENCH_MODE_MT, BENCH_MODE_MP };
#define BENCH_MODES "st", "mt", "mp"
enum bench_transport { BENCH_TRANSPORT_PIPE, BENCH_TRANSPORT_SOCK, BENCH_TRANSPORT_TCP };
#define BENCH_TRANSPORTS "pipe", "sock", "tcp"

/* Recording modes of waits, in the order of enum rouse_obs_mode. */
extern const char *const bench_obs_modes[]; /* NULL ends it */
enum { BENCH_OBS_OFF, BENCH_OBS_COUNTED, BENCH_OBS_UNSET = 99 };
#define BENCH_BURST_MOST 1024u
#define BENCH_SERVERS_MOST 64u

struct bench_options {
    const struct bench_kind *kind;
    unsigned workers; /* 0: one per usable processor */
    unsigned threads; /* -T; 0: the case's own */
    uint64_t ops;     /* -n; 0: calibrated */
    double seconds;
    unsigned samples; /* 0: the case's own */
    bool pin;
    unsigned obs; /* of bench_obs_modes; UNSET until all options were read */
    bool json;
    bool row; /* the text is one row without a header: of a case that `rouse-bench libmicro` runs */
    bool tcp;
    bool spin_lock;
    uint64_t sleep_ns; /* 0: the case's own */
    uint64_t slack_ns; /* 0: as it is */
    unsigned bytes;    /* 0: the case's own */
    uint64_t hold_ns;  /* mutex */
    int yield_every;   /* -1: 64 for user threads, never for kernel threads */
    enum bench_table table;
    enum bench_op op;
    /* steal */
    unsigned affinity; /* 0: the default */
    bool shortest;
    unsigned footprint;
    /* selectherd; see herd/herd.h */
    enum bench_via via;
    bool broadcast, process_lock, global_lock, tick;
    bool forked, stepped;
    unsigned sets, share;
    unsigned hz;         /* ticks per second */
    uint64_t timeout_ns; /* 0: none */
    /* the cases of libMicro; see micro/micro.h */
    unsigned processes; /* 0: one */
    unsigned fds, ready;
    enum bench_mode mode;
    enum bench_transport transport;
    /* acceptherd; see accept/accept.h */
    enum bench_order accept_order;
    enum bench_share accept_share;
    unsigned servers, burst;
    uint64_t gap_ns; /* between two bursts; 0: none */
};

struct bench_reading {
    uint64_t wall_ns, cpu_ns;
    uint64_t voluntary, involuntary;
};

struct bench_figure {
    const char *name;
    double value;
    const char *text; /* instead of the value; or NULL */
};

/* Operations by worker, or by processor for kernel threads. One cache line each, since there are many writers. */
struct bench_tally {
    _Alignas(64) _Atomic uint64_t ops;
};

struct bench_run {
    const struct bench_case *test;
    struct bench_options options;
    bool user;        /* copy of options.kind's */
    unsigned threads; /* T, as run */
    unsigned processes;
    unsigned workers; /* as run; for kernel threads, the number of processors in use */
    unsigned pinned;  /* workers or processors that threads were bound to; 0: none */
    unsigned cpus[BENCH_CPUS_MAX];
    unsigned cpu_count;
    unsigned page_bytes;
    void *state; /* the case's own */

    int error;              /* -errno of the first failure, or 0 */
    const char *error_what; /* what failed */

    uint64_t sample_ns;  /* BENCH_TIMED: how long sample shall last */
    uint64_t sample_ops; /* written by sample */
    struct bench_reading started, taken;

    double harness_ns_per_op; /* the cost of an empty operation */
    unsigned sample_count;
    double sample_ns_per_op[BENCH_SAMPLES_MAX];
    double first_ns_per_op; /* BENCH_COLD_FIRST: of the first sample */
    uint64_t ops;           /* operations of the last sample */
    uint64_t total_ops;
    struct bench_reading total;
    struct bench_tally tally[BENCH_TALLIES];

    unsigned figure_count;
    struct bench_figure figures[BENCH_FIGURES_MAX];
};

struct micro_kind;

struct bench_case {
    const char *name;
    const char *summary;
    unsigned threads; /* default T */
    unsigned samples; /* default; 0: 11 */
    unsigned flags;   /* enum bench_flag */
    /* Why the case has no meaning with these options and T threads, or NULL. May be NULL itself. */
    const char *(*excuse)(const struct bench_options *options, unsigned threads);
    const struct bench_case *shared; /* the case to run instead with --processes; NULL: this one */
    const struct micro_kind *micro;  /* cases of libMicro: see micro/micro.h */
    int (*fork)(struct bench_run *run);
    int (*prepare)(struct bench_run *run);
    int (*begin)(struct bench_run *run);
    int (*sample)(struct bench_run *run, uint64_t ops);
    void (*end)(struct bench_run *run);
    void (*report)(struct bench_run *run);
    void (*release)(struct bench_run *run);
};

/*
 * Each family of implementations has a set of cases (NULL ends it) and one entry function. The main thread
 * calls the entry. It creates the measuring thread and waits until all samples are taken.
 */
extern const struct bench_case *const bench_cases_rouse[];
extern const struct bench_case *const bench_cases_clone[];
extern const struct bench_case *const bench_cases_peer[];
int bench_measure_rouse(struct bench_run *run);
int bench_measure_clone(struct bench_run *run);
int bench_measure_peer(struct bench_run *run);

/* set_up for kernel threads: bind to the first --workers processors. Threads created later inherit the mask. */
int bench_keep_to_cpus(struct bench_run *run);

/* Bind each worker of rouse to a processor of its own. Returns how many were bound. */
unsigned bench_pin_workers(const struct bench_run *run);

#define BENCH_MEMBERS_MAX 4096u /* of the cases of libMicro: processes times threads */

/*
 * Read the command line and store the case in *test, or NULL for all cases of libMicro. Returns 0, 2 after an error
 * message on stderr, or -1 when nothing is left to do (help, list).
 */
int bench_options_parse(struct bench_options *options, const struct bench_case **test, int argc,
                        char **argv);

/*
 * Fill in the case's own values of what the command line left open, and replace *test by its variant for processes.
 * Returns why the case has no meaning with these options, or NULL.
 */
const char *bench_options_fit(struct bench_options *options, const struct bench_case **test);

void bench_help(void);

/* Find the processors that this process may use. */
void bench_find_cpus(struct bench_run *run);

/* Measure one case and report it. Returns the exit status, after an error message on stderr if it is not 0. */
int bench_run_case(const struct bench_options *options, const struct bench_case *test);

/* Run all cases of libMicro, each in a process of its own. Returns the exit status. */
int bench_suite(const struct bench_options *options);

/* Compare two files of results. Returns the exit status. */
int bench_compare(int count, char **paths);

double bench_median(const struct bench_run *run);
void bench_report_json(const struct bench_run *run);
void bench_report_text(const struct bench_run *run);
/* Parts of the text, for bench_suite. */
void bench_report_machine(const struct bench_run *run);
void bench_report_columns(void);
/* A row, or a JSON object, of a case that was not run (errors 0) or that failed (1). */
void bench_report_absent(const struct bench_options *options, const struct bench_case *test,
                         unsigned errors, const char *reason);

/* Add a figure of the case. name must outlive the run. */
static inline void bench_figure(struct bench_run *run, const char *name, double value)
{
    if (run->figure_count < BENCH_FIGURES_MAX)
        run->figures[run->figure_count++] = (struct bench_figure){ name, value, NULL };
}

/* Add a word of the case, such as a setting. */
static inline void bench_text(struct bench_run *run, const char *name, const char *text)
{
    if (run->figure_count < BENCH_FIGURES_MAX)
        run->figures[run->figure_count++] = (struct bench_figure){ name, 0, text };
}

#endif
