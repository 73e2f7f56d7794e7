/* SPDX-License-Identifier: MIT */
/*
 * case_fdtable.c - descriptor tables: look-ups by T threads at once, and growth while they look up.
 *
 *   rwlock   one array under a reader-writer lock, which growth copies as the writer. A look-up counts a
 *            reference to the file under the lock, and drops it later.
 *   recheck  Solaris' scheme: read the slot's file, lock the file, and check that the slot still holds it. Growth
 *            locks every file of the table, copies, and unlocks them. Old arrays stay allocated.
 *   chunks   rouse's own table, src/io/fdtable.c: two loads. Growth adds chunks and moves nothing.
 *
 * An operation is a look-up of one of 1,024 descriptors and its release. After all samples the table grows
 * from 1,024 to 1,048,576 descriptors, by doubling (rouse's table: by chunks). Meanwhile the T threads continue
 * and time each look-up.
 */
#include "team.h"

#include "io/fdtable.h"
#include "os/os.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define FIRST 1024u
#define MOST 1048576u
#define CALM_LOOKUPS 2000000u /* timed without growth, for comparison */
#define YIELD_EVERY 1024u     /* user threads are not pre-empted, and the growing thread must run */

struct file {
    _Alignas(64) _Atomic uint32_t locked;
    _Atomic uint32_t references; /* recheck: protected by locked */
};

struct state {
    struct bench_team team;
    enum bench_table kind;
    pthread_rwlock_t lock;
    struct file *files;
    struct file **_Atomic array;
    struct file **retired[32];
    unsigned retired_count;
    uint32_t size;
    _Atomic bool growing;
    _Atomic unsigned looking; /* threads that have begun to time look-ups */
    bool timed;
    uint64_t grow_ns, longest_ns;
    _Atomic uint64_t worst_ns, timed_lookups;
    double worst_calm_us;
};

static void file_lock(struct file *f)
{
    /* Acquire: pairs with the release in file_unlock. */
    for (unsigned spins = 0; atomic_exchange_explicit(&f->locked, 1, memory_order_acquire); spins++)
        if (spins % 64 == 63)
            sched_yield();
}

static void file_unlock(struct file *f)
{
    atomic_store_explicit(&f->locked, 0, memory_order_release); /* pairs with file_lock */
}

/* Acquire: pairs with the release that publishes a grown array. */
static struct file **array_of(struct state *s)
{
    return atomic_load_explicit(&s->array, memory_order_acquire);
}

static void look_up_rwlock(struct state *s, uint32_t fd)
{
    pthread_rwlock_rdlock(&s->lock);
    struct file *f = array_of(s)[fd];
    atomic_fetch_add_explicit(&f->references, 1, memory_order_relaxed);
    pthread_rwlock_unlock(&s->lock);
    /* Release: the use of the file comes before it; pairs with nothing here, where no file is freed. */
    atomic_fetch_sub_explicit(&f->references, 1, memory_order_release);
}

static void count_reference(struct file *f, uint32_t by)
{
    const uint32_t old = atomic_load_explicit(&f->references, memory_order_relaxed);
    atomic_store_explicit(&f->references, old + by, memory_order_relaxed);
}

static void look_up_recheck(struct state *s, uint32_t fd)
{
    struct file *f;
    for (;;) {
        f = array_of(s)[fd];
        file_lock(f);
        if (array_of(s)[fd] == f)
            break;
        file_unlock(f);
    }
    count_reference(f, 1);
    file_unlock(f);
    file_lock(f);
    count_reference(f, UINT32_MAX);
    file_unlock(f);
}

/* Numbers from FIRST on have their own chunk, so that none is confused with a real descriptor. */
static void look_up_chunks(uint32_t fd)
{
    struct rsi_fd_ref ref;
    const int type = rsi_fdtable_find((int)(FIRST + fd), &ref);
    /* Acquire: pairs with end_generation in fdtable.c. A user of an entry checks it again before it waits. */
    if (type < 0 || rsi_load_acquire(&ref.entry->generation) != ref.generation)
        abort();
}

static inline void look_up(struct state *s, uint32_t fd)
{
    switch (s->kind) {
    case BENCH_TABLE_RWLOCK: look_up_rwlock(s, fd); break;
    case BENCH_TABLE_RECHECK: look_up_recheck(s, fd); break;
    default: look_up_chunks(fd); break;
    }
}

static inline uint32_t next_fd(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 22;
}

static void look_up_many(struct bench_member *member, uint64_t ops)
{
    struct state *s = member->team->run->state;
    uint32_t random = member->index;

    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(member->team->run, i, ops);
        look_up(s, next_fd(&random));
    }
}

static void raise_to(_Atomic uint64_t *most, uint64_t value)
{
    uint64_t old = atomic_load_explicit(most, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak_explicit(
                              most, &old, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Time each look-up while the table grows, or for a fixed number of look-ups. */
static void look_up_timed(struct bench_member *member, uint64_t calm)
{
    struct state *s = member->team->run->state;
    uint32_t random = member->index;
    uint64_t worst_ns = 0, count = 0;
    uint64_t before_ns = bench_now_ns();

    atomic_fetch_add_explicit(&s->looking, 1, memory_order_relaxed);
    while (calm ? count < calm : atomic_load_explicit(&s->growing, memory_order_relaxed)) {
        look_up(s, next_fd(&random));
        const uint64_t now_ns = bench_now_ns();
        if (now_ns - before_ns > worst_ns)
            worst_ns = now_ns - before_ns;
        before_ns = now_ns;
        if (++count % YIELD_EVERY == 0) {
            bench_thread_yield();
            before_ns = bench_now_ns();
        }
    }
    raise_to(&s->worst_ns, worst_ns);
    atomic_fetch_add_explicit(&s->timed_lookups, count, memory_order_relaxed);
}

static struct file **array_make(struct state *s, uint32_t size)
{
    struct file **array = malloc(size * sizeof(struct file *));
    for (uint32_t i = 0; array && i < size; i++)
        array[i] = &s->files[i];
    return array;
}

static void note_step(struct state *s, uint64_t since_ns)
{
    const uint64_t took_ns = bench_now_ns() - since_ns;
    s->grow_ns += took_ns;
    s->longest_ns = took_ns > s->longest_ns ? took_ns : s->longest_ns;
}

/* Grow to twice the size. The new part of the array is filled in before it is published. */
static int grow_array(struct state *s)
{
    struct file **old = array_of(s), **grown = array_make(s, 2 * s->size);

    if (!grown)
        return -ENOMEM;
    memset(grown, 0, s->size * sizeof(struct file *));
    const uint64_t since_ns = bench_now_ns();
    if (s->kind == BENCH_TABLE_RWLOCK)
        pthread_rwlock_wrlock(&s->lock);
    for (uint32_t i = 0; i < s->size && s->kind == BENCH_TABLE_RECHECK; i++)
        file_lock(old[i]);
    memcpy(grown, old, s->size * sizeof(struct file *));
    atomic_store_explicit(&s->array, grown, memory_order_release); /* pairs with array_of */
    for (uint32_t i = 0; i < s->size && s->kind == BENCH_TABLE_RECHECK; i++)
        file_unlock(old[i]);
    if (s->kind == BENCH_TABLE_RWLOCK)
        pthread_rwlock_unlock(&s->lock);
    note_step(s, since_ns);
    s->retired[s->retired_count++] = old;
    s->size *= 2;
    return 0;
}

/*
 * Grow rouse's table by one chunk, created and published as in chunk_make of fdtable.c. That function first
 * checks that the number is a descriptor, which fails here because the descriptor limit may be below a million.
 */
static int grow_chunks(struct state *s)
{
    const uint64_t since_ns = bench_now_ns();
    struct rsi_fd *chunk = rsi_map(RSI_FD_CHUNK * sizeof *chunk), *expected = NULL;

    if (!chunk)
        return -ENOMEM;
    /* Release: pairs with rsi_fdtable_peek's acquire. */
    if (!rsi_cas_release(&rsi_fdtable_chunks[(FIRST + s->size) / RSI_FD_CHUNK], &expected, chunk))
        return -EEXIST;
    note_step(s, since_ns);
    s->size += RSI_FD_CHUNK;
    return 0;
}

static void grow(struct bench_member *member, uint64_t unused)
{
    struct state *s = member->team->run->state;
    int error = 0;
    (void)unused;

    while (atomic_load_explicit(&s->looking, memory_order_relaxed) < member->team->run->threads)
        bench_thread_yield();
    while (s->size < MOST && !error) {
        error = s->kind == BENCH_TABLE_CHUNKS ? grow_chunks(s) : grow_array(s);
        bench_thread_yield();
    }
    if (error)
        bench_fail(member->team->run, error, "growing the table");
    atomic_store_explicit(&s->growing, false, memory_order_relaxed);
}

static void body(struct bench_member *member, uint64_t ops)
{
    struct state *s = member->team->run->state;
    const bool grows = atomic_load_explicit(&s->growing, memory_order_relaxed);

    /* Member 0 is the measuring thread: it grows the table, or waits for the others. */
    if (member->index == 0) {
        if (grows)
            grow(member, 0);
    } else if (s->timed) {
        look_up_timed(member, ops);
    } else {
        look_up_many(member, ops);
    }
}

/* rsi_fdtable_fresh makes no chunk for a number that is not a descriptor, and needs none in an existing chunk. */
static int prepare_chunks(struct state *s)
{
    s->size = 0;
    int error = grow_chunks(s);
    for (unsigned i = 0; i < FIRST && !error; i++)
        error = rsi_fdtable_fresh((int)(FIRST + i), RSI_FD_STREAM, 0);
    s->grow_ns = s->longest_ns = 0;
    return error;
}

static int prepare_files(struct state *s)
{
    pthread_rwlockattr_t attr;
    const size_t bytes = MOST * sizeof *s->files;

    /* Otherwise endless look-ups would starve the writer. */
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&s->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    s->files = aligned_alloc(64, bytes);
    if (!s->files)
        return -ENOMEM;
    memset(s->files, 0, bytes);
    struct file **array = array_make(s, FIRST);
    if (!array)
        return -ENOMEM;
    atomic_store_explicit(&s->array, array, memory_order_relaxed);
    return 0;
}

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->kind = run->options.table;
    s->size = FIRST;
    int error = s->kind == BENCH_TABLE_CHUNKS ? prepare_chunks(s) : prepare_files(s);
    if (error)
        return bench_fail(run, error, "making the table");
    error = bench_team_prepare(&s->team, run, run->threads + 1);
    s->team.body = body;
    return error;
}

static int begin(struct bench_run *run)
{
    return bench_team_begin(&((struct state *)run->state)->team);
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    const uint64_t each = (ops + run->threads - 1) / run->threads;

    bench_team_round(&s->team, each);
    run->sample_ops = each * run->threads;
    return run->error;
}

static void time_look_ups(struct state *s, uint64_t calm)
{
    atomic_store_explicit(&s->worst_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&s->timed_lookups, 0, memory_order_relaxed);
    atomic_store_explicit(&s->looking, 0, memory_order_relaxed);
    atomic_store_explicit(&s->growing, calm == 0, memory_order_relaxed);
    s->timed = true;
    bench_team_round(&s->team, calm);
}

static void end(struct bench_run *run)
{
    struct state *s = run->state;

    time_look_ups(s, CALM_LOOKUPS);
    s->worst_calm_us = (double)atomic_load_explicit(&s->worst_ns, memory_order_relaxed) / 1e3;
    time_look_ups(s, 0);
    bench_team_end(&s->team);
}

static const char *const table_names[] = { "chunks", "rwlock", "recheck" };

static void report(struct bench_run *run)
{
    struct state *s = run->state;
    bench_text(run, "table", table_names[s->kind]);
    bench_figure(run, "grown_to", s->size);
    bench_figure(run, "growth_us", (double)s->grow_ns / 1e3);
    bench_figure(run, "longest_step_us", (double)s->longest_ns / 1e3);
    bench_figure(run, "worst_lookup_us",
                 (double)atomic_load_explicit(&s->worst_ns, memory_order_relaxed) / 1e3);
    bench_figure(run, "worst_calm_lookup_us", s->worst_calm_us);
    bench_figure(run, "lookups_in_growth",
                 (double)atomic_load_explicit(&s->timed_lookups, memory_order_relaxed));
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;

    bench_team_release(&s->team);
    for (unsigned i = 0; i < s->retired_count; i++)
        free(s->retired[i]);
    free(array_of(s));
    free(s->files);
    free(s);
}

const struct bench_case BENCH_NAME(case_fdtable) = {
    .name = "fdtable",
    .summary = "T threads look up descriptors in a table; then while it grows to a million",
    .threads = 1,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
