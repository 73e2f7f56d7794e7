/* SPDX-License-Identifier: MIT */
/*
 * waiter.h - the part of a thread's control block that waiting uses, with the wait record in it.
 *
 * Public within librouse: sync/ and io/ may include it. park.h has the protocol that changes these fields.
 * The wait record is struct rsi_wait below; while recording is on, its second half is the thread's slot in
 * the shared file (obs/store.h). account.c writes both, and obs/inspect.c reads them.
 */
#ifndef RSI_CORE_WAITER_H
#define RSI_CORE_WAITER_H

#include "ctx/ctx.h"

#include <rouse/obs.h>
#include <rouse/thread.h>

#define RSI_WORKERS_MAX 1024 /* in all clusters together */

struct rsi_store_thread;

/* The wait record: the half that every wait writes. */
struct rsi_wait {
    /* The other half, in the shared file. NULL unless recording is on. */
    struct rsi_store_thread *slot;
    /* Before the thread first runs: its creation time as a time stamp, while recording is on. */
    const void *object;
    const void *wait_site;
    uint8_t kind; /* enum rouse_wait_kind */
    /* Of its times from the last switch until it runs again (sampling.h); 0: they are not timed. */
    uint8_t weight;
    /* The low bits of the number of its last wait whose end was recorded, and of the last one that was recorded whole. */
    uint8_t woken, counted;
    /* Not part of the record: the thread's own note of its debt, valid while RSI_PARK_OWES is set. */
    uint32_t owed;
};

/*
 * The first member of struct rouse_thread. A wait touches these two cache lines and the stack, nothing else:
 * with thousands of threads each further line is a cache miss.
 */
struct rsi_waiter {
    /* The claim word: 4 * wait number + {0: no wait, 1: waits, 2: waits and may be cancelled}. */
    uint64_t claim;
    uint64_t deadline_ns; /* of the wait; the waiter writes it before claim */
    /* Links in the list of the object waited for, under that object's guard. */
    struct rouse_thread *next; /* after a claim: a link in the claimer's own list */
    struct rouse_thread *prev;
    int32_t result;     /* what commit returns; the winner of the claim writes it */
    uint32_t on_cpu;    /* RSI_CPU_RUNS while it runs or a worker is still on its stack */
    struct rsi_ctx ctx; /* saved registers while it does not run */

    uint32_t cancel;       /* requests to cancel, not yet delivered; any thread adds */
    uint16_t worker_index; /* where it ran last; wakers read it racily */
    uint16_t home;       /* number of its cluster, 0 if not a user thread; any thread may move it */
    uint8_t origin;      /* enum rsi_origin */
    uint8_t life;        /* enum rsi_life */
    bool is_listed;      /* linked into an object's list */
    uint8_t mode;        /* for the object's use: reader or writer, ... */
    uint8_t stack_class; /* user threads only */
    bool is_finishing : 1; /* its key destructors run, or have run */
    bool is_slotless : 1;  /* the shared file had no slot left for it; this was counted */
    bool has_cold;         /* its cold part (rsi_cold) was written to */
    uint8_t trim_mark;     /* low bits of a wait number, for trim.c */
    struct rsi_wait record;
};
#if !defined(RSI_ASAN) && !defined(RSI_TSAN)
_Static_assert(offsetof(struct rsi_waiter, cancel) == RSI_CACHE_LINE, "the first line is full");
#endif

/*
 * A bit of cancel that only the thread itself sets and clears. It means: this thread was woken on behalf of all
 * waiters of some object and has not yet handled the event. If it parks or ends first, it hands the wake-up on.
 * The bit shares a word that every park reads anyway, so threads without a debt pay nothing.
 */
#define RSI_PARK_OWES (UINT32_C(1) << 31)

/* Values of on_cpu. A worker that picks a thread must not run it until on_cpu is 0. */
#define RSI_CPU_RUNS 1u
#define RSI_CPU_TRIMMED 2u   /* trim.c gives back unused memory of its stack */
#define RSI_CPU_NEW 3u       /* it has no stack yet */
#define RSI_CPU_ELSEWHERE 4u /* never stored: the thread belongs to another cluster */

enum rsi_origin { RSI_ORIGIN_USER, RSI_ORIGIN_KERNEL, RSI_ORIGIN_FOREIGN };

/* The waiter part of a thread. */
RSI_INLINE struct rsi_waiter *rsi_waiter(struct rouse_thread *t)
{
    return (struct rsi_waiter *)t;
}

/* Whether t seems to be on a CPU, so that a spinner may wait for it. Racy by nature. */
RSI_INLINE bool rsi_is_running(struct rouse_thread *t)
{
    return rsi_load_relaxed(&rsi_waiter(t)->on_cpu) == RSI_CPU_RUNS;
}

RSI_INLINE bool rsi_is_user(struct rouse_thread *t)
{
    return rsi_waiter(t)->origin == RSI_ORIGIN_USER;
}

#endif
