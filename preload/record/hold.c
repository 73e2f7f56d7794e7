/* SPDX-License-Identifier: MIT */
/*
 * hold.c - counts acquisitions of locks, and times how long they are held.
 *
 * Each thread has a list of the locks that it holds and that are timed, the latest last. The thread that locked is the
 * one that unlocks, so no cache line has two writers. A thread holds few locks, so its list stays in the cache, which
 * matters most where many threads take turns. A full list drops its oldest hold and counts it as lost.
 *
 * By default, acquisitions of a free lock are sampled: of the first few locks of a process from the beginning, of
 * others once some thread has found them held. A program may have millions of locks that nobody waits for. A lock that
 * nobody waits for yet may be the next limit once another one is fixed. The locks are kept in a Bloom filter: it
 * forgets none, so that no lock is sampled now and then. A lock that it mistakes for another is sampled needlessly.
 *
 * Where all acquisitions are recorded, finding the row of each is what costs most. A thread acquires its locks in the
 * same order again and again. So the row of a lock is predicted from the row before it, as the one that followed last
 * time, and is prefetched. Where the program's data decide which lock comes next, as for half of MariaDB's
 * acquisitions, the row is most often among those of the last known locks and places. Only if it is not there either
 * is it looked up.
 *
 * Rejected: finding the last known rows by the lock alone, since two places that take a lock in turns evict each other.
 * Looking among them and prefetching before the lock is tried: 15 cold locks took a fifth longer, and MariaDB's took as
 * long as before.
 *
 * An unlock that we do not see, by another thread or inside libc, leaves its entry behind. The next acquisition by the
 * thread starts a new hold, unless the thread may hold the lock several times, in which case the old hold would go on.
 * Until then each unlock searches the list. So it is short where acquisitions are sampled.
 */
#include "record/hold.h"

#include "obs/site.h"
#include "os/os.h"
#include "record/init_site.h"
#include "record/sample.h"

#include <rouse/obs.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MOST 128u
#define SAMPLED_MOST 16u
#define AFTER 64u /* so that rows next to each other in the file have different places */
#define KNOWN 64u
#define SAMPLED_WORDS 1024u /* of the Bloom filter */
#define ADMITTED_MOST 256u  /* locks that are sampled before anyone waits for them */

struct hold {
    const void *lock;
    struct rsi_store_lock *row; /* NULL: there was no room for one */
    uint64_t since_tsc;
    uint32_t depth; /* how many times the thread holds it */
    uint32_t weight;
    uint64_t inside[RSI_INSIDE_COUNT]; /* the thread's own sums when the hold began */
};

struct rpi_holds {
    /* The row of the lock that was acquired last. NULL: none, or there was no room for it. */
    struct rsi_store_lock *last;
    struct rsi_store_lock *after[AFTER]; /* by that row: the row that followed it last time */
    struct rsi_store_lock *known[KNOWN]; /* by lock and site */
    struct hold held[HELD_MOST];
};

bool rpi_hold_takes_all;
static uint64_t sampled_locks[SAMPLED_WORDS];

void rpi_hold_setup(void)
{
    const char *text = secure_getenv("ROUSE_OBS");
    rpi_hold_takes_all = text && strcmp(text, "locks") == 0;
}

/* Relaxed: a thread that reads an old word begins to sample one acquisition later. */
static bool is_bit_set(uint32_t bit)
{
    return rsi_load_relaxed(&sampled_locks[bit / 64 % SAMPLED_WORDS]) >> bit % 64 & 1;
}

static void bit_set(uint32_t bit)
{
    if (!is_bit_set(bit))
        rsi_fetch_or_relaxed(&sampled_locks[bit / 64 % SAMPLED_WORDS], UINT64_C(1) << bit % 64);
}

static uint32_t first_bit(const void *lock)
{
    return rsi_hash((uintptr_t)lock, 0, 0);
}

static uint32_t second_bit(const void *lock)
{
    return rsi_hash((uintptr_t)lock, 0, 0) >> 16 ^ rsi_hash(0, (uintptr_t)lock, 1);
}

void rpi_hold_admit(const void *lock)
{
    bit_set(first_bit(lock));
    bit_set(second_bit(lock));
}

/*
 * Whether free acquisitions of lock are sampled: from the beginning if it is one of the first few locks of the process,
 * else since some thread found it held.
 */
static bool is_sampled(const void *lock)
{
    static uint32_t admitted;
    if (is_bit_set(first_bit(lock)) && is_bit_set(second_bit(lock)))
        return true;
    if (rsi_load_relaxed(&admitted) >= ADMITTED_MOST ||
        rsi_fetch_add_relaxed(&admitted, 1) >= ADMITTED_MOST)
        return false;
    rpi_hold_admit(lock);
    return true;
}

void rpi_hold_warm(const struct rpi_thread *self)
{
    const struct rpi_holds *holds = self->holds;
    if (!holds)
        return;
    __builtin_prefetch(holds, 1);
    __builtin_prefetch((const char *)holds + RSI_CACHE_LINE, 1);
    __builtin_prefetch(holds->held, 1);
    __builtin_prefetch((const char *)holds->held + RSI_CACHE_LINE, 1);
    __builtin_prefetch(self->writer);
}

void rpi_hold_clear(struct rpi_holds *holds)
{
    if (holds)
        memset(holds, 0, sizeof *holds);
}

/* Read the sums of what the thread has done so far instead of running. */
static void read_inside(const struct rpi_thread *self, uint64_t inside[RSI_INSIDE_COUNT])
{
    const uint64_t *ticks = self->slot->ticks;
    inside[RSI_INSIDE_LAT] = ticks[RSI_IN_LAT];
    inside[RSI_INSIDE_LCK] = ticks[RSI_IN_MUTEX] + ticks[RSI_IN_RWLOCK] + ticks[RSI_IN_COND] +
                             ticks[RSI_IN_SEM] + ticks[RSI_IN_JOIN];
    inside[RSI_INSIDE_IO] = ticks[RSI_IN_IO] + ticks[RSI_IN_POLL] + ticks[RSI_IN_ACCEPT];
    inside[RSI_INSIDE_SLEEP] = ticks[RSI_IN_SLEEP];
}

/* The hold of lock, the latest if an older one was left behind. NULL: the lock is not known to be held. */
static struct hold *find(const struct rpi_thread *self, const void *lock)
{
    for (uint32_t i = self->timed; i > 0; i--)
        if (self->holds->held[i - 1].lock == lock)
            return &self->holds->held[i - 1];
    return NULL;
}

static void take_out(struct rpi_thread *self, struct hold *hold)
{
    struct hold *last = &self->holds->held[--self->timed];
    if (rsi_unlikely(hold != last))
        memmove(hold, hold + 1, (size_t)(last - hold) * sizeof *hold);
}

/*
 * Whether the hold of lock goes on, because the thread has acquired it once more. A hold that was left behind is
 * dropped.
 */
static bool goes_on(struct rpi_thread *self, const void *lock, bool is_nesting)
{
    struct hold *hold = find(self, lock);
    if (rsi_likely(!hold))
        return false;
    if (is_nesting)
        hold->depth++;
    else
        take_out(self, hold);
    return is_nesting;
}

/* The place of the next hold. NULL: no memory. */
static struct hold *next_of(struct rpi_thread *self)
{
    struct rpi_holds *holds = self->holds;
    if (rsi_unlikely(!holds) && !(holds = self->holds = rsi_map(sizeof *holds)))
        return NULL;
    if (rsi_unlikely(self->timed == (rpi_hold_takes_all ? HELD_MOST : SAMPLED_MOST))) {
        take_out(self, holds->held);
        rsi_count(self->writer->shared->lost_holds, 1);
    }
    return &holds->held[self->timed];
}

RSI_INLINE void put(struct rpi_thread *self, const void *lock, struct rsi_store_lock *row,
                    uint32_t weight)
{
    struct hold *hold = next_of(self);
    if (!hold || !row)
        rsi_count(self->writer->shared->lost_holds, 1);
    if (!hold)
        return;
    self->timed++;
    *hold = (struct hold){ .lock = lock, .row = row, .depth = 1, .weight = weight };
    read_inside(self, hold->inside);
    hold->since_tsc = rsi_tsc(); /* last, to exclude the cost of recording */
}

void rpi_hold_contested(struct rpi_thread *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row)
{
    const void *lock = (const void *)(uintptr_t)key->lock;
    if (!goes_on(self, lock, key->kind == ROUSE_WAIT_READ_LOCK))
        put(self, lock, row, 1);
}

static struct rsi_store_lock **after(struct rpi_holds *holds)
{
    return &holds->after[(uintptr_t)holds->last / sizeof *holds->last % AFTER];
}

static bool is_of(const struct rsi_store_lock *row, const struct rsi_lock_key *key)
{
    return row && row->lock == key->lock && row->site == key->site && row->kind == key->kind &&
           row->name == key->name;
}

/* The row of key, which usually follows the last row as it did before. */
static struct rsi_store_lock *row_of(struct rpi_thread *self, const struct rsi_lock_key *key)
{
    struct rpi_holds *holds = self->holds;
    if (!holds)
        return rsi_writer_lock(self->writer, key, NULL);
    struct rsi_store_lock **guess = after(holds), *row = *guess;
    if (!is_of(row, key)) {
        struct rsi_store_lock **known = &holds->known[rsi_hash(key->lock, key->site, 0) % KNOWN];
        row = *known;
        if (!is_of(row, key))
            *known = row = rsi_writer_lock(self->writer, key, NULL);
        *guess = row;
    }
    holds->last = row;
    __builtin_prefetch(*after(holds), 1);
    return row;
}

bool rpi_hold_nest(struct rpi_thread *self, const void *lock)
{
    struct hold *hold = self->is_busy ? NULL : find(self, lock);
    if (hold)
        hold->depth++;
    return hold != NULL;
}

static void count_acquired(const struct rpi_thread *self, struct rsi_store_lock *row,
                           uint32_t weight)
{
    if (!row) {
        rsi_count(self->writer->shared->lost_locks, 1);
        return;
    }
    rsi_count(row->acquired, weight);
    if (!rpi_hold_takes_all)
        rsi_count(row->sampled, 1);
}

RSI_NOINLINE void rpi_hold_begin(struct rpi_thread *self, struct rpi_held *held, const void *lock,
                                 enum rouse_wait_kind kind, const void *site)
{
    uint32_t weight = rpi_sample_next(self, held);
    if (weight == 0 || (!rpi_hold_takes_all && !is_sampled(lock)) || !rpi_thread_begin(self))
        return;
    (void)goes_on(self, lock, false);
    const struct rsi_lock_key key = { (uintptr_t)lock, rsi_site_of(self->writer, site), 0,
                                      (uint32_t)kind, rpi_init_site_name(self->writer, lock) };
    struct rsi_store_lock *row = row_of(self, &key);
    if (rsi_load_relaxed(&held->lock) == lock) /* a spin lock or a reader is not noted there */
        rsi_store_relaxed(&held->site, (const void *)(uintptr_t)key.site);
    count_acquired(self, row, weight);
    put(self, lock, row, weight);
    rsi_compiler_barrier(); /* until here a signal handler that locks finds the thread busy */
    self->is_busy = false;
}

static struct rpi_hold_ended end(struct rpi_thread *self, const void *lock)
{
    uint64_t now = rsi_tsc();
    struct hold *hold = find(self, lock);
    if (!hold || --hold->depth != 0)
        return (struct rpi_hold_ended){ 0 };
    struct rpi_hold_ended ended = { .row = hold->row,
                                    .ticks = now - hold->since_tsc,
                                    .weight = hold->weight };
    read_inside(self, ended.inside);
    for (unsigned i = 0; i < RSI_INSIDE_COUNT; i++)
        ended.inside[i] -= hold->inside[i];
    take_out(self, hold);
    return ended;
}

struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock)
{
    return self->is_busy || !rpi_recording_is_on() ? (struct rpi_hold_ended){ 0 } : end(self, lock);
}

void rpi_hold_pause(struct rpi_thread *self, const void *lock)
{
    struct rpi_hold_ended ended = end(self, lock);
    rpi_hold_count(&ended);
}

void rpi_hold_count(const struct rpi_hold_ended *ended)
{
    struct rsi_store_lock *row = ended->row;
    uint64_t weight = ended->weight;
    if (!row)
        return;
    rsi_count(row->holds, weight);
    rsi_count(row->hold_ticks, weight * ended->ticks);
    rsi_count_most(row->hold_most, ended->ticks);
    for (unsigned i = 0; i < RSI_INSIDE_COUNT; i++)
        if (ended->inside[i])
            rsi_count(row->inside_ticks[i], weight * ended->inside[i]);
    if (weight == 1)
        return;
    double ticks = (double)ended->ticks, variance;
    uint64_t bits = rsi_load_relaxed(&row->hold_variance);
    memcpy(&variance, &bits, sizeof variance);
    variance += (double)(weight * (weight - 1)) * ticks * ticks;
    memcpy(&bits, &variance, sizeof bits);
    rsi_store_relaxed(&row->hold_variance, bits);
}
