/* SPDX-License-Identifier: MIT */
/*
 * micro.h - the cases of libMicro: processes with threads, each of which makes the same call.
 *
 * The measuring process has the first T threads, and each of the others, forked before any thread exists, has T
 * more. All do one round at a time, in memory that they share:
 *   1 the measuring thread advances `round` and wakes the processes; it runs its own threads
 *   2 each process runs its threads, adds its figures, and adds 1 to `finished`
 *   3 the measuring thread waits for `finished`, and checks that no process has died
 * A round is cut into batches. The work of before and after is not measured, as in libMicro: an operation that needs a
 * connection does not pay for it.
 */
#ifndef BENCH_MICRO_MICRO_H
#define BENCH_MICRO_MICRO_H

#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define MICRO_CHUNK 256u /* operations between two counts, for a case without batches */

struct micro_member;

/* The line that says why the run ended. One process writes it. */
enum micro_report { MICRO_NO_LINE, MICRO_LINE_BEGUN, MICRO_LINE_WRITTEN };

struct micro_shared {
    _Atomic uint32_t round;
    _Atomic uint32_t finished; /* processes, besides the measuring one */
    atomic_bool quit;
    _Atomic unsigned report;  /* enum micro_report */
    atomic_bool in_round;     /* for on_alarm of cascade.c */
    uint64_t each;            /* operations of each member in this round; 0: only enter */
    _Atomic uint64_t call_ns; /* time in measured batches, of all members */
    /* Used by the other processes in this round. */
    _Atomic uint64_t cpu_ns, voluntary, involuntary;
    _Atomic uint64_t token; /* of the cascades */
};

struct micro {
    struct bench_run *run;
    const struct micro_kind *kind;
    struct micro_shared *shared;
    struct micro_member *member; /* of all processes, in order; in shared memory */
    unsigned members;
    unsigned process; /* of the caller; 0 is the measuring process */
    pid_t parent;
    pid_t *pids; /* of process i, at i; 0: it does not run */
    struct bench_team team;
    void *own; /* the case's; made by share, so that all processes have it */
    size_t own_bytes;
    int fd[2]; /* likewise; -1: none */
};

/* One thread of one process. */
struct micro_member {
    _Alignas(64) struct micro *micro;
    unsigned index; /* among those of all processes */
    bool user;
    bool entered;
    int fd[4];            /* -1: none */
    unsigned made;        /* operations of this batch that after has to undo */
    uint64_t last;        /* the case's own: a value to compare the next one with */
    unsigned char *bytes; /* the case's own memory */
};

/*
 * A case. Functions return 0, -errno, or -EPROTO for a result that is wrong, and name what failed by micro_fail.
 * All but loop may be NULL.
 */
struct micro_kind {
    unsigned batch;                /* most operations between before and after; 0: no batches */
    int (*share)(struct micro *m); /* main thread, before the processes are forked */
    int (*enter)(struct micro_member *m); /* in the member's thread, once */
    int (*before)(struct micro_member *m, unsigned count);
    int (*loop)(struct micro_member *m, unsigned count);
    int (*after)(struct micro_member *m); /* also after an error */
    void (*leave)(struct micro_member *m);
    void (*unshare)(
        const struct micro *m); /* measuring process, at the end or in a handler of a signal */
};

/* Record the first failure and return it. */
int micro_fail(const struct micro_member *m, int error, const char *what);

/* End this process with one line. The processes that it forked end with it. Safe in a handler of a signal. */
_Noreturn void micro_abort(const struct micro *micro, const char *line);

/* Memory that the processes share. NULL if there is none. */
void *micro_map(size_t bytes);

/* The functions of struct bench_case. */
int micro_fork(struct bench_run *run);
int micro_prepare(struct bench_run *run);
int micro_begin(struct bench_run *run);
int micro_sample(struct bench_run *run, uint64_t ops);
void micro_end(struct bench_run *run);
void micro_release(struct bench_run *run);

/* 0 if the result is right, else the error or, without one, -EPROTO. */
static inline int micro_check(const struct micro_member *m, bool right, long error,
                              const char *what)
{
    if (right)
        return 0;
    return micro_fail(m, error < 0 ? (int)error : -EPROTO, what);
}

static inline long micro_read(const struct micro_member *m, int fd, void *buffer, size_t bytes)
{
    if (m->user)
        return rouse_read(fd, buffer, bytes);
    const ssize_t n = read(fd, buffer, bytes);
    return n < 0 ? -errno : n;
}

static inline long micro_write(const struct micro_member *m, int fd, const void *buffer,
                               size_t bytes)
{
    if (m->user)
        return rouse_write(fd, buffer, bytes);
    const ssize_t n = write(fd, buffer, bytes);
    return n < 0 ? -errno : n;
}

static inline int micro_close(const struct micro_member *m, int fd)
{
    if (fd < 0)
        return 0;
    if (m->user)
        return rouse_close(fd);
    return close(fd) < 0 ? -errno : 0;
}

/* Allocate m->bytes, filled with 0. */
int micro_allocate(struct micro_member *m, size_t bytes);

/* leave: close m->fd and free m->bytes. */
void micro_leave_files(struct micro_member *m);

/*
 * Define NAME_loop, which makes NAME_call again and again. The call is inlined, so that no pointer to a function
 * stands between a case and what it measures.
 */
#define MICRO_LOOP(name) \
    static int name##_loop(struct micro_member *m, unsigned count) \
    { \
        for (unsigned i = 0; i < count; i++) { \
            const int error = name##_call(m, i); \
            if (error) \
                return error; \
        } \
        return 0; \
    }

/* The fields of struct bench_case that all cases of libMicro fill alike. */
#define MICRO_CASE(case_name, text, count) \
    .name = (case_name), .summary = text, .threads = count, .flags = BENCH_CALLS, \
    .fork = micro_fork, .prepare = micro_prepare, .begin = micro_begin, .sample = micro_sample, \
    .end = micro_end, .release = micro_release

#endif
