/* SPDX-License-Identifier: MIT */
/* thread.h - the record of one kernel thread of the program. */
#ifndef RPI_RECORD_THREAD_H
#define RPI_RECORD_THREAD_H

#include "obs/ledger.h"
#include "process/recording.h"
#include "process/self.h"

#include <pthread.h>

struct rpi_holds;
struct rpi_listener;
struct rpi_wait;
struct rsi_waits_ring;

/* The wake-up that ended a wait. */
struct rpi_mark {
    uint64_t tsc; /* 0: no wake-up by a recorded thread is known */
    uint64_t waker_id;
    uint64_t site;  /* as in the file */
    bool is_signal; /* sent by another process */
    /*
     * Of a wait for a condition, whose mutex other threads have held since then: for how long as far as is known, by
     * which thread last, and where that one had acquired and has released it; see rpi_waiters_release.
     */
    uint64_t held_ticks, released_tsc, releaser_id, released_site, holder_site;
    bool is_held;     /* the waker held the mutex */
    uint8_t acquired; /* rpi_held.acquired of the waker's */
};

#define RPI_THREAD_HELD 16u

/* The lock that a thread acquired last of those with the same hash. */
struct rpi_held {
    /* The site is a code address or, if the acquisition was recorded with its stack, a site as in the file. */
    const void *lock, *site;
    /* When the next acquisition of a free lock in this place is timed; record/sample.h. */
    uint64_t sampled_ns;
    int32_t gap;
    uint16_t weight;  /* N for that acquisition; 0: 1 */
    uint8_t rarity;   /* its binary logarithm, without the thread's thrift */
    uint8_t acquired; /* how often, modulo 256 */
};

/* How often a thread's acquisitions are timed; record/sample.c. */
struct rpi_samples {
    uint32_t count;              /* since these times: */
    uint64_t ns, tsc, usr_ticks; /* 0: never */
    uint32_t thrift; /* log2 of the factor by which all samples of the thread are rarer */
};

/* When a thread exits, its record goes to a new thread. Its memory is never returned. */
struct rpi_thread {
    /*
     * The locks that the thread acquired last, and where, by hash: other threads look up a holder's place here.
     * Written by the thread alone, without any order.
     */
    struct rpi_held held[RPI_THREAD_HELD];

    pthread_t handle;
    int32_t tid;
    /* In a recorded call that waits, or in our own code. Calls that the thread makes meanwhile are not recorded. */
    bool is_busy;
    uint64_t begin_tsc;
    struct rsi_cpu_time spent;     /* at begin_tsc */
    struct rsi_writer *writer;     /* NULL before the first record */
    struct rsi_store_thread *slot; /* likewise */
    /* Where the last wait was counted. NULL: nowhere. */
    const struct rsi_store_wake *last_wake;

    /* The present wait. NULL: none, or the wait belongs to the parent of a fork. */
    const struct rpi_wait *wait;
    bool is_asleep;     /* in the program's call, not in our code at its begin or end */
    bool shows_contest; /* its slot has the contest of the wait under way */

    /* While the thread waits; protected by the guard of the object's list. */
    const void *object;
    struct rpi_thread *next, *previous;
    struct rpi_mark mark;
    const pthread_mutex_t *mutex; /* that the wait for a condition ends with */

    /* The name of the object of the present or last wait: rpi_init_site_name. */
    uint32_t name;

    /* The condition that the thread signalled last, or was woken at. NULL: none. */
    const void *woken_at;
    /* When its last wait for a condition ended, with mutex, and rpi_held.acquired of that mutex then. */
    uint64_t returned_tsc;
    uint8_t returned_acquired;

    /* The last wait for a condition, if a wake-up ended it. */
    struct rsi_wake_key again;
    const void *again_site;
    uint64_t again_ns; /* when it ended */
    pthread_mutex_t *again_mutex;

    /*
     * The last brief sleep: where, how long the thread asked for, how long it took, and how many waits the thread had
     * ended then. NULL: none, or the thread has completed an I/O call since.
     */
    const void *slept_site;
    uint64_t slept_ns, slept_ticks, slept_waits;

    /* The last wait was a poll that found something, and the thread has not tried a descriptor since. */
    bool is_ready;
    int dry_fd; /* the descriptor on which the thread has just found nothing to read; -1: none */

    /* accept/ owns these five. */
    struct rsi_store_listener *order_row; /* of the listener whose queue the thread entered last */
    int turn_fd;                          /* the socket that reports the thread's turn; 0: none */
    uint16_t place;                       /* in the queues of --accept, from 1 on; 0: none */
    bool is_put_off; /* a non-blocking accept was put off since the last wait */
    /* The listener on which the last poll reported a connection. NULL: none. */
    const struct rpi_listener *reported;

    struct rpi_holds *holds; /* NULL before the first */
    uint32_t timed;          /* how many locks the thread holds whose holds are timed */
    uint64_t random;         /* state of record/sample.h's generator */
    struct rpi_samples samples;

    struct rsi_waits_ring *waits; /* NULL: none */
    bool is_ringless;             /* there was no room for one */

    struct rpi_thread *next_free, *next_all;
};

/*
 * Prepare the recording of threads. at_exit is called for each thread that exits, while its record is still complete.
 * False: no memory, or no key.
 */
bool rpi_thread_setup(void (*at_exit)(struct rpi_thread *));
void rpi_thread_child(void);
void rpi_thread_child_locks(void); /* the locks alone; see lifecycle.c */

/* The calling thread's record, created if necessary. NULL: nothing is recorded of it. Leaves errno alone. */
struct rpi_thread *rpi_thread_enter(void);

/* Whether to record self's present call. If so, self is busy from now on, and has a slot. Leaves errno alone. */
bool rpi_thread_begin(struct rpi_thread *self);

/* The program has named the thread of handle, which need not be the caller. */
void rpi_thread_rename(struct rpi_thread *self, pthread_t handle, const char *text);

/* The process exits: write the end of each thread's ring of waits. */
void rpi_thread_finish_rings(void);

/* Where thread tid last acquired lock. NULL: unknown. */
const void *rpi_thread_holder_site(int32_t tid, const void *lock);

/* Whether thread tid is known to be in a wait. May be out of date. */
bool rpi_thread_waits(int32_t tid);

/* How often the calling thread has gone to sleep so far: its voluntary context switches. */
uint64_t rpi_thread_switches(void);

/* The state that the present or last wait of a slot counts as: enum rsi_micro. */
RSI_INLINE uint8_t rpi_thread_waits_in(const struct rsi_store_thread *slot)
{
    return slot->is_for_clients ? RSI_IN_ACCEPT : rsi_wait_classes[slot->kind].micro;
}

RSI_INLINE unsigned rpi_thread_held_at(const void *lock)
{
    return (unsigned)((uintptr_t)lock >> 5) % RPI_THREAD_HELD;
}

RSI_INLINE struct rpi_held *rpi_thread_held_put(struct rpi_thread *self, const void *lock,
                                                const void *site)
{
    struct rpi_held *held = &self->held[rpi_thread_held_at(lock)];
    rsi_store_relaxed(&held->lock, lock);
    rsi_store_relaxed(&held->site, site);
    held->acquired++;
    return held;
}

#endif
