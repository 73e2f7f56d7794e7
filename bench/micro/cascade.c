/* SPDX-License-Identifier: MIT */
/*
 * cascade.c - libMicro's cascades: a token goes round all members of all processes, one of which runs at a time.
 *
 * An operation is one hop of the token. cascade_cond has a condition per member. The others have two locks per
 * member, by the protocol of case_cascade_mutex.c: the threads of one process use that file; processes use
 * the C library's mutexes in shared memory, or locks of files.
 * Each member knows the number that the token has when it comes, and passes on the next one. A wrong number is a
 * token that was lost or doubled, and ends the run; so does a token that stands still for STALL_S.
 */
#include "micro/micro.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define STALL_S 10
#define CAUSE_NS 1000000000u

/* For on_alarm. */
static const struct micro *ring;
static char stall_line[160];

static const char *no_processes(const struct bench_options *o, unsigned threads)
{
    (void)threads;
    return o->kind->user && o->processes > 1 ? "rouse's locks are not shared between processes"
                                             : NULL;
}

/* The calls wait in the kernel, which would hold up the other threads of the worker. */
static const char *not_many_users(const struct bench_options *o, unsigned threads)
{
    return o->kind->user && threads > 1
               ? "the wait for a lock of a file would hold up the worker's other threads; use -T 1"
               : NULL;
}

static const char *one_per_process(const struct bench_options *o, unsigned threads)
{
    (void)o;
    return threads > 1 ? "the lock belongs to the process, so its threads do not exclude each "
                         "other; use -T 1 and --processes"
                       : NULL;
}

/* A member that gives up leaves the others waiting for ever, so the run ends at once. */
_Noreturn static void give_up(const struct micro_member *m, int error, const char *what)
{
    char line[256];
    snprintf(line, sizeof line, "%s: %s: %s failed: %s\n", bench_program, m->micro->run->test->name,
             what, strerror(-error));
    /* A process that has died lost its locks first. Its death is the cause, and is to be reported instead. */
    raw_sleep_ns(CAUSE_NS);
    micro_abort(m->micro, line);
}

static void check_token(struct micro_member *m)
{
    struct micro_shared *shared = m->micro->shared;
    const uint64_t token = atomic_load_explicit(&shared->token, memory_order_relaxed);

    if (token != m->last)
        give_up(m, -EPROTO, "passing the token, which was lost or doubled,");
    atomic_store_explicit(&shared->token, token + 1, memory_order_relaxed);
    m->last += m->micro->members;
}

/* Every STALL_S: in a round, the token must have moved since the last time. */
static void on_alarm(int number)
{
    static uint64_t seen = UINT64_MAX;
    const uint64_t token = atomic_load_explicit(&ring->shared->token, memory_order_relaxed);

    (void)number;
    if (token == seen && atomic_load_explicit(&ring->shared->in_round, memory_order_relaxed))
        micro_abort(ring, stall_line);
    seen = token;
}

static void watch_token(const struct micro *micro)
{
    const struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    const struct itimerval timer = { .it_interval.tv_sec = STALL_S, .it_value.tv_sec = STALL_S };

    ring = micro;
    snprintf(stall_line, sizeof stall_line,
             "%s: %s: passing the token failed: it has stood still for %d s\n", bench_program,
             micro->run->test->name, STALL_S);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* cascade_cond */

struct seat {
    _Alignas(64) pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct rouse_mutex user_mutex;
    struct rouse_cond user_cond;
    bool has_token; /* protected by the mutex */
};

static int make_seat(struct seat *seat)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    int error = pthread_mutexattr_init(&mutex);

    if (error)
        return -error;
    pthread_condattr_init(&cond);
    error = pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    if (error == 0)
        error = pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    if (error == 0)
        error = pthread_mutex_init(&seat->mutex, &mutex);
    if (error == 0)
        error = pthread_cond_init(&seat->cond, &cond);
    pthread_mutexattr_destroy(&mutex);
    pthread_condattr_destroy(&cond);
    rouse_mutex_init(&seat->user_mutex, NULL);
    rouse_cond_init(&seat->user_cond, NULL);
    return -error;
}

static int share_seats(struct micro *micro)
{
    int error = 0;

    micro->own_bytes = micro->members * sizeof(struct seat);
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own)
        return -ENOMEM;
    for (unsigned i = 0; i < micro->members && error == 0; i++)
        error = make_seat((struct seat *)micro->own + i);
    watch_token(micro);
    return error;
}

static struct seat *seat_of(const struct micro_member *m, unsigned index)
{
    return (struct seat *)m->micro->own + index % m->micro->members;
}

static int cond_enter(struct micro_member *m)
{
    m->last = m->index;
    return 0;
}

static void give_kernel(const struct micro_member *m, struct seat *seat)
{
    int error = pthread_mutex_lock(&seat->mutex);
    seat->has_token = true;
    error = error ? error : pthread_cond_signal(&seat->cond);
    error = error ? error : pthread_mutex_unlock(&seat->mutex);
    if (error)
        give_up(m, -error, "pthread_cond_signal");
}

static void take_kernel(const struct micro_member *m, struct seat *seat)
{
    int error = pthread_mutex_lock(&seat->mutex);
    while (error == 0 && !seat->has_token)
        error = pthread_cond_wait(&seat->cond, &seat->mutex);
    seat->has_token = false;
    error = error ? error : pthread_mutex_unlock(&seat->mutex);
    if (error)
        give_up(m, -error, "pthread_cond_wait");
}

static void give_user(struct seat *seat)
{
    rouse_mutex_lock(&seat->user_mutex);
    seat->has_token = true;
    rouse_cond_signal(&seat->user_cond);
    rouse_mutex_unlock(&seat->user_mutex);
}

static void take_user(const struct micro_member *m, struct seat *seat)
{
    int error = 0;
    rouse_mutex_lock(&seat->user_mutex);
    while (error == 0 && !seat->has_token)
        error = rouse_cond_wait(&seat->user_cond, &seat->user_mutex);
    seat->has_token = false;
    rouse_mutex_unlock(&seat->user_mutex);
    if (error)
        give_up(m, error, "rouse_cond_wait");
}

static inline void give(const struct micro_member *m)
{
    if (m->user)
        give_user(seat_of(m, m->index + 1));
    else
        give_kernel(m, seat_of(m, m->index + 1));
}

static inline void take(const struct micro_member *m)
{
    if (m->user)
        take_user(m, seat_of(m, m->index));
    else
        take_kernel(m, seat_of(m, m->index));
}

/* The first member has the token before and after each lap, so that every round ends where it began. */
static inline int cascade_cond_call(struct micro_member *m, unsigned i)
{
    (void)i;
    if (m->index > 0)
        take(m);
    check_token(m);
    give(m);
    if (m->index == 0)
        take(m);
    return 0;
}
MICRO_LOOP(cascade_cond)

static const struct micro_kind cascade_cond_kind = {
    .share = share_seats,
    .enter = cond_enter,
    .loop = cascade_cond_loop,
};
const struct bench_case BENCH_NAME(case_cascade_cond) = {
    MICRO_CASE("cascade_cond", "a token passed round by a condition and a mutex of each member",
               16),
    .micro = &cascade_cond_kind,
    .excuse = no_processes,
};

/* The cascades of two locks: m->fd has the locks own 0, own 1, next 0 and next 1. */

static int fcntl_file(int fd, short type)
{
    struct flock whole = { .l_type = type, .l_whence = SEEK_SET };
    return fcntl(fd, F_SETLKW, &whole) < 0 ? -errno : 0;
}

static int fcntl_lock(const struct micro_member *m, unsigned which)
{
    return fcntl_file(m->fd[which], F_WRLCK);
}

static int fcntl_unlock(const struct micro_member *m, unsigned which)
{
    return fcntl_file(m->fd[which], F_UNLCK);
}

static int lockf_lock(const struct micro_member *m, unsigned which)
{
    return lockf(m->fd[which], F_LOCK, 0) < 0 ? -errno : 0;
}

static int lockf_unlock(const struct micro_member *m, unsigned which)
{
    return lockf(m->fd[which], F_ULOCK, 0) < 0 ? -errno : 0;
}

static int flock_lock(const struct micro_member *m, unsigned which)
{
    return flock(m->fd[which], LOCK_EX) < 0 ? -errno : 0;
}

static int flock_unlock(const struct micro_member *m, unsigned which)
{
    return flock(m->fd[which], LOCK_UN) < 0 ? -errno : 0;
}

static pthread_mutex_t *mutex_of(const struct micro_member *m, unsigned which)
{
    const unsigned owner = (m->index + which / 2) % m->micro->members;
    return &((struct seat *)m->micro->own + 2 * owner + which % 2)->mutex;
}

static int mutex_lock(const struct micro_member *m, unsigned which)
{
    return -pthread_mutex_lock(mutex_of(m, which));
}

static int mutex_unlock(const struct micro_member *m, unsigned which)
{
    return -pthread_mutex_unlock(mutex_of(m, which));
}

static int share_mutexes(struct micro *micro)
{
    int error = 0;

    micro->own_bytes = 2 * micro->members * sizeof(struct seat);
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own)
        return -ENOMEM;
    for (unsigned i = 0; i < 2 * micro->members && error == 0; i++)
        error = make_seat((struct seat *)micro->own + i);
    watch_token(micro);
    return error;
}

/* Two files without a name per member. */
static int share_files(struct micro *micro)
{
    const unsigned count = 2 * micro->members;

    micro->own_bytes = count * sizeof(int);
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++) {
        const int fd = memfd_create("rouse-bench", MFD_CLOEXEC);
        if (fd < 0)
            return bench_fail(micro->run, -errno, "making files (two per member)");
        ((int *)micro->own)[i] = fd;
    }
    watch_token(micro);
    return 0;
}

static void unshare_files(const struct micro *micro)
{
    const int *fds = micro->own;
    for (unsigned i = 0; fds && i < 2 * micro->members; i++)
        if (fds[i] > 0)
            close(fds[i]);
}

/* flock locks an open file, not a descriptor, so each member opens the files of its locks anew. */
static int open_files(struct micro_member *m)
{
    const unsigned members = m->micro->members;

    for (unsigned which = 0; which < 4; which++) {
        const unsigned owner = (m->index + which / 2) % members;
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d",
                 ((const int *)m->micro->own)[2 * owner + which % 2]);
        m->fd[which] = open(path, O_RDWR | O_CLOEXEC);
        if (m->fd[which] < 0)
            return micro_fail(m, -errno, "opening a file to lock");
    }
    return 0;
}

static void close_files(struct micro_member *m)
{
    for (unsigned which = 0; which < 4; which++)
        if (m->fd[which] >= 0)
            close(m->fd[which]);
}

typedef int lock_function(const struct micro_member *m, unsigned which);

/* The locks that a member holds before its first pass. m->made is its phase, 0 or 1. */
static int take_first(struct micro_member *m, lock_function *lock)
{
    const bool is_last = m->index + 1 == m->micro->members;

    m->last = m->index;
    int error = m->index == 0 ? lock(m, 0) : 0;
    if (error == 0 && m->micro->members > 1)
        error = lock(m, 2 + is_last);
    return error ? micro_fail(m, error, "taking the first locks") : 0;
}

static void do_lock(const struct micro_member *m, lock_function *lock, unsigned which)
{
    const int error = lock(m, which);
    if (error)
        give_up(m, error, "locking");
}

static void do_unlock(const struct micro_member *m, lock_function *unlock, unsigned which)
{
    const int error = unlock(m, which);
    if (error)
        give_up(m, error, "unlocking");
}

/* One pass: see case_cascade_mutex.c. As there, a ring of one has only its own two locks. */
static inline __attribute__((always_inline)) int pass(struct micro_member *m, lock_function *lock,
                                                      lock_function *unlock)
{
    const bool is_last = m->index + 1 == m->micro->members;
    const unsigned p = m->made, q = p ^ is_last;

    if (m->micro->members == 1) {
        check_token(m);
        do_lock(m, lock, p ^ 1);
        do_unlock(m, unlock, p);
    } else {
        if (m->index > 0)
            do_lock(m, lock, p);
        check_token(m);
        do_lock(m, lock, 2 + (q ^ 1));
        do_unlock(m, unlock, p);
        do_unlock(m, unlock, 2 + q);
        if (m->index == 0)
            do_lock(m, lock, p ^ 1);
    }
    m->made = p ^ 1;
    return 0;
}

#define CASCADE(id, case_name, text, how, sharing, entering, leaving, unsharing, why_not) \
    static int id##_enter(struct micro_member *m) \
    { \
        const int error = entering(m); \
        return error ? error : take_first(m, how##_lock); \
    } \
    static inline int id##_call(struct micro_member *m, unsigned i) \
    { \
        (void)i; \
        return pass(m, how##_lock, how##_unlock); \
    } \
    MICRO_LOOP(id) \
    static const struct micro_kind id##_kind = { .share = sharing, \
                                                 .enter = id##_enter, \
                                                 .loop = id##_loop, \
                                                 .leave = leaving, \
                                                 .unshare = unsharing }; \
    const struct bench_case BENCH_NAME(case_##id) = { MICRO_CASE(case_name, text, 1), \
                                                      .micro = &id##_kind, .excuse = why_not }

CASCADE(cascade_flock, "cascade_flock",
        "a token passed round by two files of each member, by flock(2)", flock, share_files,
        open_files, close_files, unshare_files, not_many_users);
CASCADE(cascade_fcntl, "cascade_fcntl", "the same by locks of fcntl(2), between processes", fcntl,
        share_files, open_files, close_files, unshare_files, one_per_process);
CASCADE(cascade_lockf, "cascade_lockf", "the same by lockf(3), between processes", lockf,
        share_files, open_files, close_files, unshare_files, one_per_process);

/* cascade_mutex and mutex with --processes */

static int no_files(struct micro_member *m)
{
    (void)m;
    return 0;
}
CASCADE(cascade_mutex_shared, "cascade_mutex",
        "a token passed round by two mutexes of each member, in shared memory", mutex,
        share_mutexes, no_files, NULL, NULL, no_processes);

/* `token` counts the operations of all members, and `last` those of one. */
static inline int mutex_shared_call(struct micro_member *m, unsigned i)
{
    struct micro_shared *shared = m->micro->shared;
    pthread_mutex_t *mutex = &((struct seat *)m->micro->own)->mutex;
    const uint64_t hold_ns = m->micro->run->options.hold_ns;
    int error = pthread_mutex_lock(mutex);

    (void)i;
    if (hold_ns) {
        const uint64_t until_ns = bench_now_ns() + hold_ns;
        while (bench_now_ns() < until_ns)
            ;
    }
    const uint64_t count = atomic_load_explicit(&shared->token, memory_order_relaxed);
    atomic_store_explicit(&shared->token, count + 1, memory_order_relaxed);
    m->last++;
    error = error ? error : pthread_mutex_unlock(mutex);
    if (error)
        give_up(m, -error, "locking");
    return 0;
}
MICRO_LOOP(mutex_shared)

static void mutex_shared_leave(struct micro_member *m)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < m->micro->members; i++)
        sum += m->micro->member[i].last;
    if (sum != atomic_load_explicit(&m->micro->shared->token, memory_order_relaxed))
        micro_fail(m, -EPROTO, "counting under the mutex");
}

static const struct micro_kind mutex_shared_kind = {
    .share = share_mutexes,
    .loop = mutex_shared_loop,
    .leave = mutex_shared_leave,
};
const struct bench_case BENCH_NAME(case_mutex_shared) = {
    MICRO_CASE("mutex", "all members on one mutex in shared memory", 1),
    .micro = &mutex_shared_kind,
    .excuse = no_processes,
};
