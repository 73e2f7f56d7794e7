/* SPDX-License-Identifier: MIT */
/*
 * worker.h - a worker: a kernel thread that runs rouse threads. worker.c says what it runs next, place.c where a
 * woken thread goes, workers.c how workers come and go.
 */
#ifndef RSI_CORE_WORKER_H
#define RSI_CORE_WORKER_H

#include "core/cluster.h"
#include "core/exec.h"
#include "core/poller.h"
#include "core/sampling.h"
#include "core/timer.h"
#include "core/turn.h"

#include <pthread.h>
#include <rouse/cluster.h>

#define RSI_STACK_KEEP 16  /* free stacks that a worker keeps for itself */
#define RSI_NEXT_RUN_MAX 3 /* turns from the next slot in a row while the queue holds threads */

/* An inbox that accepts nothing more, because its worker is leaving. */
#define RSI_INBOX_CLOSED ((struct rouse_thread *)1)

/* The value that a switch passes on is the worker. This bit in it: the thread just left has ended. */
#define RSI_SWITCH_END ((uintptr_t)1)

struct rsi_worker {
    struct rsi_exec exec;          /* must be first */
    struct rouse_cluster *cluster; /* after the worker's end: its last one */
    /* The next thread, if it cannot be run from the stack of the one before. */
    struct rouse_thread *handoff;

    /* Under the queue lock (queue_lock.h), which owner_in is a part of. */
    uint32_t owner_in;
    uint32_t queue_length; /* thieves also read it without the lock */
    struct rouse_thread *queue_first, *queue_last;
    struct rouse_thread *next;
    uint32_t next_run;

    uint32_t look_left;  /* turns until it next looks at timers and the poller */
    uint32_t look_every; /* adapted so that this is about every LOOK_NS */
    uint64_t look_ns;    /* time of its last look */
    uint64_t look_turn;  /* the turn of its last look */
    /* share.h; other workers read them */
    uint32_t turn_ns;        /* mean time of its turns */
    uint32_t short_most;     /* the longest queue that is not worth sharing */
    uint64_t poll_ns;        /* time of its last poll while busy */
    uint64_t poll_turn;      /* the turn before which it does not poll again while busy */
    uint64_t round_ns;       /* time when it last submitted what it had collected for the poller */
    uint64_t round_turn;     /* the turn by which all threads runnable at that time have run */
    uint32_t sent;           /* threads that it made runnable in other clusters */
    bool avoids_poller;      /* its last poll found work for other clusters only: idle.c */
    uint64_t steal_ns;       /* time of its last steal for lack of work */
    uint64_t turns;          /* the watcher reads it without the lock */
    uint64_t steals, stolen; /* steals that it made; threads that it took */
    uint64_t *eh_globals;    /* libstdc++'s, of this kernel thread; NULL without C++ */
    int *errno_at;           /* of this kernel thread */
    uint64_t *eh_native;     /* the same; eh_globals differs while a thread with own storage runs */
    uintptr_t thread_pointer; /* of this kernel thread's own block */
    uint64_t random;
    struct rsi_sampling sampling;

    struct rouse_thread *block_cache, *block_spare; /* free blocks of user threads: block.c */
    uint32_t block_count;                           /* in block_cache */
    uint32_t stack_promises;           /* stacks of the default class reserved for future threads */
    uint32_t stack_count;              /* in stack_cache */
    uint32_t stack_keep;               /* stacks reserved so that stack_cache may hold this many */
    char *stack_cache[RSI_STACK_KEEP]; /* tops; the last one is the warmest */
    uint64_t id_next, id_end;

    /* Timers (timer.c), under the queue lock. */
    struct rsi_timer *heap;
    struct rsi_timer_lane lanes[RSI_TIMER_LANES];
    uint32_t heap_length;
    uint32_t timer_count, timer_stale; /* in heap and lanes together */
    uint64_t timer_next_ns;            /* of the first entry; others read it without the lock */

    struct rsi_waiter idle; /* its ctx is the kernel thread's own stack, where the idle loop runs */

    /* idle.c */
    bool is_searching, is_watcher;
    uint32_t search_rounds; /* of the next search */
    uint64_t watch_period_ns, watch_at_ns;

    /* sleep_lead.c */
    uint64_t lead_ns;                      /* median time by which the kernel wakes it late */
    uint64_t spin_credit_ns, spin_seen_ns; /* how long it may still spin; when that was updated */

    /* Other kernel threads write these: a cache line of their own. */
    _Alignas(RSI_CACHE_LINE) uint32_t thief_in;
    uint32_t steal_guard;
    /* Any thread pushes, newest first; taken as a whole. Or RSI_INBOX_CLOSED. */
    struct rouse_thread *inbox;
    /* Approximate: counted after the push, so it may be negative for a moment. */
    int32_t inbox_length;
    struct rsi_mail *mail; /* any thread pushes, newest first; taken as a whole */

    _Alignas(RSI_CACHE_LINE) uint32_t wake_word; /* futex: 1 when woken */
    bool is_idle;                                /* under idle_guard; wakers also peek */
    bool is_polling;                             /* under idle_guard */
    struct rsi_worker *idle_link;                /* under idle_guard */
    uint32_t index;
    int32_t tid;
    uint64_t watch_turns; /* for the watcher; passes with rsi_rt.watching to the next one */

    /* workers.c: under the runtime's lock, except where the kernel thread itself reads them */
    pthread_t pthread;
    void *signal_stack;
    struct rouse_cluster *next_cluster; /* in whose list it is, or which it is joining; or NULL */
    uint32_t slot;                      /* index in that list */
    uint32_t has_arrived;               /* futex: 1 once it is in its cluster's list */
    bool is_free;                       /* no kernel thread uses it; the monitor also peeks */
    bool is_leaving;                    /* it ends after the current turn */
    bool is_spare;                      /* it substitutes for a stuck worker: monitor.c */
    bool has_left;                      /* its timers were moved elsewhere; under the queue lock */
};

RSI_INLINE bool rsi_worker_has_work(const struct rsi_worker *w)
{
    const struct rouse_thread *inbox = rsi_load_relaxed(&w->inbox);
    return rsi_load_relaxed(&w->queue_length) != 0 || (inbox && inbox != RSI_INBOX_CLOSED);
}

/* worker.c */
void rsi_worker_main(struct rsi_worker *w); /* returns when w is leaving */
void rsi_worker_look(struct rsi_worker *w);
void rsi_worker_polled(struct rsi_worker *w, uint64_t now_ns);
void rsi_switch_in_catch(struct rsi_worker *w, struct rouse_thread *self, struct rsi_ctx *ctx,
                         uintptr_t bits);
bool rsi_inbox_drain(struct rsi_worker *w); /* false: w is leaving */
void rsi_mail_take(struct rsi_worker *w);
void rsi_run_soon(struct rsi_worker *w, struct rouse_thread *t);
void rsi_run_later(struct rsi_worker *w, struct rouse_thread *t);
void rsi_run_later_list(struct rsi_worker *w, struct rouse_thread *first);
unsigned rsi_steal(struct rsi_worker *w, struct rsi_worker *victim, bool stuck);
void rsi_steal_for(struct rsi_worker *idle, struct rsi_worker *victim, bool stuck);

/* place.c */
void rsi_run_elsewhere(struct rouse_thread *t);
void rsi_run_elsewhere_list(struct rouse_thread *first);
void rsi_run_new(struct rsi_worker *w, struct rouse_thread *t);
bool rsi_inbox_push(struct rsi_worker *w, struct rouse_thread *t);

/*
 * workers.c. rsi_workers_add returns 0 and *out, -EAGAIN, -ENOMEM, or -EINVAL if the process
 * may use no CPU of the cluster's. rsi_workers_remove removes the worker with that number, or the last one if
 * it is negative. It returns the worker's number, -EBUSY for the only worker, or -EINVAL if the cluster has no such worker that
 * stays; it returns at once, and the worker ends after its current turn.
 */
int rsi_workers_add(struct rouse_cluster *cluster, bool is_spare, struct rsi_worker **out);
int rsi_workers_add_locked(struct rouse_cluster *cluster, struct rsi_worker **out);
int rsi_workers_remove(struct rouse_cluster *cluster, int number);
void rsi_workers_end_locked(struct rouse_cluster *cluster, struct rouse_thread **queued);
void rsi_workers_arrive(struct rsi_worker *w);
void rsi_workers_child(struct rsi_worker *survivor);

#endif
