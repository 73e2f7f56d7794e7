/* SPDX-License-Identifier: MIT */
/*
 * core.h - threads, workers and the runtime as core's own files see them.
 *
 * Who may write what:
 *   a thread's block   the thread itself while it runs; the winner of its claim between claim and
 *                      publish; whoever takes it off a queue, until it runs. Exceptions are named.
 *   a worker           its own kernel thread, inside its section where the field says so; a thief that
 *                      holds the section from outside (section.h). Exceptions are named.
 *   a cluster          settings: whoever makes it; its list of workers: under the runtime's lock, read by
 *                      anyone; what idle.c names: under its idle_guard.
 * Lock order: the runtime's lock < idle_guard < section < inbox. Nothing is held across a switch.
 */
#ifndef RSI_CORE_CORE_H
#define RSI_CORE_CORE_H

#include "core/account.h"
#include "core/block.h"
#include "core/cluster.h"
#include "core/park.h"
#include "ctx/ctx.h"
#include "ctx/stack.h"
#include "os/os.h"

#include <pthread.h>
#include <rouse/cluster.h>
#include <signal.h>

#define RSI_STACK_KEEP 16    /* free stacks a worker keeps for itself */
#define RSI_TURN_UNITS 1024  /* see rsi_turn_spend */
#define RSI_NEXT_RUN_MAX 3   /* turns from the next slot in a row, while the queue holds threads */
#define RSI_LIVE_MAX 8000000 /* threads at once; bounds every timer heap */

struct rsi_value;

/* Why a thread does not exist, exists, ... ; read by anyone, written as said above. */
enum rsi_life { RSI_LIFE_FREE, RSI_LIFE_LIVE, RSI_LIFE_ENDED };

/* join_word: one of these; or a joiner's address, with ENDING or ENDED in its low bits: thread.c. */
#define RSI_JOIN_NONE ((uintptr_t)0)
#define RSI_JOIN_DETACHED ((uintptr_t)1)
#define RSI_JOIN_ENDING ((uintptr_t)2)
#define RSI_JOIN_ENDED ((uintptr_t)3)

struct rouse_thread {
    struct rsi_waiter waiter; /* a wait touches its first two lines; must be first */

    struct rouse_thread *queue_link; /* run queue or inbox; a list of free blocks */
    uintptr_t join_word;
    uint64_t id;
    union {
        struct {                    /* user threads */
            uint64_t timer_word;    /* names its timer entry, if it has one: timer.c */
            struct rsi_stack stack; /* NULLs until it first runs, and after its end */
        };
        struct { /* kernel and foreign threads */
            struct rsi_exec exec;
            uint32_t futex; /* kernel.c */
            int32_t tid;
        };
    };

    union {
        void *(*fn)(void *);      /* until it runs */
        struct rsi_value *locals; /* then: by key; key.c */
    };
    void *arg; /* after the end: the result */
};
_Static_assert(sizeof(struct rouse_thread) <= RSI_BLOCK_BYTES, "block too small");

/* What few threads have; it lies apart, so that the others have no memory for it. Zero unless has_cold. */
struct rsi_cold {
    _Alignas(RSI_COLD_BYTES) char name[ROUSE_NAME_BYTES];
};
_Static_assert(sizeof(struct rsi_cold) == RSI_COLD_BYTES, "a cold part is a line");

/* To be read. */
RSI_INLINE struct rsi_cold *rsi_cold_at(const struct rouse_thread *t)
{
    uintptr_t group = (uintptr_t)t & ~(uintptr_t)(RSI_GROUP_BYTES - 1);
    uintptr_t slot = ((uintptr_t)t - group) / RSI_BLOCK_BYTES;
    return (struct rsi_cold *)(group + RSI_GROUP_BLOCKS * RSI_BLOCK_BYTES + slot * RSI_COLD_BYTES);
}

/* To be written, when t is named. */
RSI_INLINE struct rsi_cold *rsi_cold_of(struct rouse_thread *t)
{
    if (!rsi_load_relaxed(&t->waiter.has_cold))
        rsi_store_relaxed(&t->waiter.has_cold, true);
    return rsi_cold_at(t);
}

/* t begins: as it is when nothing was written to it. */
void rsi_cold_clear_slow(struct rouse_thread *t);

RSI_INLINE void rsi_cold_clear(struct rouse_thread *t)
{
    if (rsi_unlikely(t->waiter.has_cold))
        rsi_cold_clear_slow(t);
}

struct rsi_timer {
    uint64_t deadline_ns;
    uint64_t thread_gen; /* address and 16 bits of generation */
};

/* A ring of timers in order of deadline; head and tail run freely, and are equal when it is empty. */
struct rsi_timer_lane {
    struct rsi_timer *ring;
    uint64_t first_ns, last_ns; /* empty: UINT64_MAX, 0 */
    uint32_t head, tail, mask;
};

#define RSI_TIMER_LANES 4
#define RSI_LANE_MAX (1u << 20) /* a power of two; what does not fit goes to the heap */
#define RSI_HEAP_MAX \
    (2u * RSI_LIVE_MAX) /* all entries of a worker, for half of them may be stale */
#define RSI_HEAP_BYTES (RSI_HEAP_MAX * sizeof(struct rsi_timer))
#define RSI_LANES_BYTES (RSI_TIMER_LANES * (size_t)RSI_LANE_MAX * sizeof(struct rsi_timer))

/* An inbox that takes no more: its worker is leaving. */
#define RSI_INBOX_CLOSED ((struct rouse_thread *)1)

/* The switch's value is the worker; with this bit, the thread that was left has ended. */
#define RSI_SWITCH_END ((uintptr_t)1)

struct rsi_worker {
    struct rsi_exec exec;          /* must be first */
    struct rouse_cluster *cluster; /* of a worker that has ended: its last */
    struct rouse_thread
        *handoff; /* picked though it cannot be run from the stack of the one before */

    /* The section: see section.h. */
    uint32_t owner_in;
    uint32_t queue_length; /* read by thieves without the section */
    struct rouse_thread *queue_first, *queue_last;
    struct rouse_thread *next;
    uint32_t next_run;

    uint32_t look_left;      /* turns until timers and the poller are looked at */
    uint32_t look_every;     /* adapted so that this is about every LOOK_NS */
    uint64_t look_ns;        /* when it was last done */
    uint64_t poll_ns;        /* when it polled last while busy */
    uint64_t poll_turn;      /* the turn before which it does not poll again while busy */
    uint64_t round_ns;       /* when it last handed over what it had collected for the poller */
    uint64_t round_turn;     /* the turn by which all that were runnable then have run */
    uint32_t sent;           /* threads that it made runnable in other clusters */
    bool avoids_poller;      /* what it polled last was for other clusters: idle.c */
    uint64_t steal_ns;       /* when it stole last because it had nothing */
    uint64_t turns;          /* read by the watcher without the section */
    uint64_t steals, stolen; /* how often it took threads over; how many */
    uint64_t *eh_globals;    /* libstdc++'s, of this kernel thread; NULL without C++ */
    uint64_t random;

    struct rouse_thread *block_cache; /* free blocks of user threads */
    uint32_t block_count;
    uint32_t stack_promises; /* stacks of the default class reserved for threads to come */
    uint32_t stack_count;    /* in stack_cache */
    uint32_t stack_keep;     /* stacks reserved so that as many may lie in stack_cache */
    char *stack_cache[RSI_STACK_KEEP]; /* tops; the last is the warmest */
    uint64_t id_next, id_end;

    /* Timers, in the section; timer.c. */
    struct rsi_timer *heap;
    struct rsi_timer_lane lanes[RSI_TIMER_LANES];
    uint32_t heap_length;
    uint32_t timer_count, timer_stale; /* in heap and lanes */
    uint64_t timer_next_ns;            /* of the first entry; read by others without the section */

    struct rsi_waiter idle; /* its ctx: the kernel thread's own stack, the idle loop's */

    /* idle.c */
    bool is_searching, is_watcher;
    uint64_t watch_period_ns, watch_at_ns;

    /* nap.c */
    uint64_t lead_ns;                    /* how late the kernel wakes it, as often as not */
    uint64_t nap_credit_ns, nap_seen_ns; /* how long it may wait awake; when that was counted */

    /* Written by others: a line of their own. */
    _Alignas(RSI_CACHE_LINE) uint32_t thief_in;
    uint32_t steal_guard;
    struct rouse_thread
        *inbox; /* pushed by anyone, newest first; taken whole; or RSI_INBOX_CLOSED */
    int32_t
        inbox_length; /* about: counted after the push, so that it may be negative for a moment */
    struct rsi_mail *mail; /* pushed by anyone, newest first; taken whole */

    _Alignas(RSI_CACHE_LINE) uint32_t wake_word; /* futex: 1 when woken */
    bool is_idle;                                /* under idle_guard; wakers peek */
    bool is_polling;                             /* under idle_guard */
    struct rsi_worker *idle_link;                /* under idle_guard */
    uint32_t index;
    int32_t tid;
    uint64_t watch_turns; /* the watcher's memory; handed on with rsi_rt.watching */

    /* workers.c; under the runtime's lock, but for the kernel thread's own looks */
    pthread_t pthread;
    void *signal_stack;
    struct rouse_cluster *next_cluster; /* it stands in its list, is on its way there; or NULL */
    uint32_t slot;                      /* in its cluster's list */
    uint32_t is_hired;                  /* futex: 1 when it stands in its cluster's list */
    bool is_free;                       /* no kernel thread has it */
    bool is_leaving;                    /* it ends after the present turn */
    bool is_spare;                      /* stands in for a stuck one: monitor.c */
    bool has_left;                      /* its timers have gone elsewhere; in its section */
};

struct rsi_runtime {
    uint32_t is_started; /* release by start, acquire by everyone's first look */
    uint32_t worker_count;
    struct rsi_worker *workers[RSI_WORKERS_MAX];        /* by index; none is ever freed */
    struct rouse_cluster *clusters[ROUSE_CLUSTERS_MAX]; /* by home - 1; none is ever freed */
    uint32_t cluster_count;                             /* of clusters[] used so far */
    enum rouse_kind default_kind;
    const struct rsi_poller *poller; /* release by register, acquire by idle workers */

    /* idle.c has the protocol of these */
    _Alignas(RSI_CACHE_LINE) uint32_t watching;
    _Alignas(RSI_CACHE_LINE) uint32_t idle_count; /* of all clusters */
    uint32_t live_count;                          /* workers of all clusters */
    uint32_t polling;
    uint32_t poll_count; /* by whoever has polling */

    _Alignas(RSI_CACHE_LINE) uint64_t ids;
    uint32_t kernel_known;  /* kernel and foreign threads */
    uint32_t kernel_parked; /* of these, in a wait without a deadline and not woken */
    uint32_t helpers_busy;
    bool is_main_worker; /* in a child that a user thread forked: its first kernel thread is one */
};

extern struct rsi_runtime rsi_rt;
extern struct rouse_cluster rsi_cluster_default;
extern struct rouse_cluster rsi_cluster_spare; /* no thread belongs to it: workers.c */
extern struct rsi_exec rsi_exec_none;

/* runtime.c */
void rsi_runtime_start_slow(void);
int rsi_runtime_try_start_slow(void);
void rsi_runtime_child(struct rsi_worker *survivor);
uint64_t rsi_id_next(struct rsi_worker *w);
void rsi_runtime_lock(void); /* a pthread mutex; held over a fork */
void rsi_runtime_unlock(void);

RSI_INLINE void rsi_runtime_start(void)
{
    /* Pairs with the release in rsi_runtime_try_start_slow. */
    if (rsi_unlikely(!rsi_load_acquire(&rsi_rt.is_started)))
        rsi_runtime_start_slow();
}

/* Returns 0, or -EAGAIN or -ENOMEM: there is no worker, and a later call may start the runtime. */
RSI_INLINE int rsi_runtime_try_start(void)
{
    /* Pairs with the release in rsi_runtime_try_start_slow. */
    return rsi_likely(rsi_load_acquire(&rsi_rt.is_started)) ? 0 : rsi_runtime_try_start_slow();
}

/*
 * How many of rsi_rt.workers there are, those that have ended included. Acquire pairs with the release in
 * rsi_workers_add_locked.
 */
RSI_INLINE uint32_t rsi_worker_count(void)
{
    return rsi_load_acquire(&rsi_rt.worker_count);
}

/* Workers whose kernel threads run. */
RSI_INLINE uint32_t rsi_worker_live_count(void)
{
    return rsi_load_seq_cst(&rsi_rt.live_count);
}

/* park.c */
bool rsi_park_cancel_self(struct rouse_thread *self, uint64_t ticket);
void rsi_park_settle(struct rouse_thread *self);

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
void rsi_steal_for(struct rsi_worker *idle, struct rsi_worker *stuck);

/* place.c */
void rsi_run_elsewhere(struct rouse_thread *t);
void rsi_run_elsewhere_list(struct rouse_thread *first);
void rsi_run_new(struct rsi_worker *w, struct rouse_thread *t);
bool rsi_inbox_push(struct rsi_worker *w, struct rouse_thread *t);

/* cluster.c */
void rsi_clusters_from_environment(void);
int rsi_cluster_enter(struct rouse_thread *t, struct rouse_cluster *cluster);
void rsi_clusters_child(void);

RSI_INLINE struct rouse_cluster *rsi_cluster_of(uint16_t home)
{
    return rsi_rt.clusters[home - 1];
}

/*
 * workers.c: workers come and go. add returns 0 and *out (may be NULL), -EAGAIN, -ENOMEM or -EINVAL (no CPU of
 * the cluster's is this process's); remove 0, -EBUSY (the last) or -EINVAL (it has ended, or is ending).
 * remove returns at once; the worker ends when the turn under way is over.
 */
int rsi_workers_add(struct rouse_cluster *cluster, struct rsi_worker **out);
int rsi_workers_add_locked(struct rouse_cluster *cluster, struct rsi_worker **out);
int rsi_workers_remove(struct rsi_worker *w);
void rsi_workers_end_locked(struct rouse_cluster *cluster, struct rouse_thread **queued);
void rsi_workers_arrive(struct rsi_worker *w);
void rsi_workers_child(struct rsi_worker *survivor);

/* cpus.c: where workers may run */
void rsi_cpus_setup(void);
int rsi_cpus_parse(const char *text, struct rsi_cpus *cpus); /* "0-3,8"; 0 or -EINVAL */
const struct rsi_cpus *rsi_cpus_of(const struct rouse_cluster *cluster);
bool rsi_cpus_differ(void); /* under the runtime's lock: whether anything was ever bound */
void rsi_cpus_bind_locked(struct rouse_cluster *cluster, const struct rsi_cpus *cpus);
int rsi_cpus_pin_locked(struct rsi_worker *w, const struct rsi_cpus *cpus);
int rsi_cpus_pin(struct rouse_cluster *cluster, int worker, const struct rsi_cpus *cpus);

/* idle.c */
void rsi_idle_wake_one(struct rouse_cluster *cluster, struct rsi_worker *preferred);
void rsi_idle_wake_for(struct rsi_worker *w);
void rsi_idle_wake_any(void);
struct rsi_worker *rsi_idle_peek(struct rouse_cluster *cluster);
void rsi_idle_wait(struct rsi_worker *w);
void rsi_idle_found(struct rsi_worker *w);
void rsi_idle_look_again(void);
void rsi_idle_wake_worker(struct rsi_worker *w);
void rsi_idle_child(void);

/* nap.c, monitor.c */
bool rsi_nap_awake(struct rsi_worker *w);
uint64_t rsi_nap_ask(const struct rsi_worker *w, uint64_t deadline_ns);
void rsi_nap_ended(struct rsi_worker *w, uint64_t asked_ns);

RSI_INLINE bool rsi_worker_has_work(const struct rsi_worker *w)
{
    const struct rouse_thread *inbox = rsi_load_relaxed(&w->inbox);
    return rsi_load_relaxed(&w->queue_length) != 0 || (inbox && inbox != RSI_INBOX_CLOSED);
}

/* Whether no worker runs, of any cluster. */
RSI_INLINE bool rsi_idle_all_sleep(void)
{
    return rsi_load_relaxed(&rsi_rt.idle_count) == rsi_load_relaxed(&rsi_rt.live_count);
}

/*
 * There is a thread to run on w that was not there: wake another worker of the cluster if that is of use
 * (idle.c has the protocol). is_lonely: it is the only one that waits for its turn here.
 */
RSI_INLINE void rsi_idle_wake_if_useful(struct rsi_worker *w, bool is_lonely)
{
    struct rouse_cluster *cluster = w->cluster;
    rsi_fence_light(); /* F1 */
    if (rsi_likely(rsi_load_relaxed(&cluster->takers) == 0) ||
        rsi_load_relaxed(&cluster->searching) != 0 ||
        (is_lonely && rsi_load_relaxed(&rsi_rt.watching) != 0))
        return;
    rsi_idle_wake_one(cluster, NULL);
}
void rsi_monitor_start(uint32_t bound);
void rsi_monitor_wake(void);
unsigned rsi_monitor_threads(void); /* 0 to 2 */
void rsi_monitor_child(void);

/* hire.c; the monitor's. Have a table of descriptors of one's own from now on. False: nobody could hire from then on. */
bool rsi_hire_prepare(void);
/* After rsi_hire_prepare: add a worker with this signal mask; blocks until it is there. Returns as rsi_workers_add. */
int rsi_hire(struct rouse_cluster *cluster, const sigset_t *mask, struct rsi_worker **out);
unsigned rsi_hire_threads(void); /* 0 or 1 */
void rsi_hire_child(void);

/* watch.c */
void rsi_watch_begin(struct rsi_worker *w);
void rsi_watch_end(struct rsi_worker *w);
bool rsi_watch_if_due(struct rsi_worker *w); /* true: w has work now */

/* timer.c; all inside the section of w */
void rsi_timer_arm(struct rsi_worker *w, struct rouse_thread *t, uint64_t deadline_ns);
struct rouse_thread *rsi_timer_expire(struct rsi_worker *w, uint64_t now_ns);
void rsi_timer_forget(struct rouse_thread *t);
/* Take up to most entries out of w's timers. Returns how many; 0: there are none. */
uint32_t rsi_timer_take(struct rsi_worker *w, struct rsi_timer *entries, uint32_t most);
/* Entries that were taken from another: those that count are w's from now on. */
void rsi_timer_adopt(struct rsi_worker *w, const struct rsi_worker *from,
                     const struct rsi_timer *entries, uint32_t count);
bool rsi_timer_setup(struct rsi_worker *w);
void rsi_timer_reset(struct rsi_worker *w);

/* thread.c */
void rsi_thread_finish(struct rouse_thread *self, void *result);
struct rsi_worker *rsi_thread_left(struct rsi_worker *w, struct rouse_thread *t);
void rsi_thread_bind(struct rsi_worker *w, struct rouse_thread *t);
void rsi_thread_stacks_give(struct rsi_worker *w);
void rsi_thread_leave(struct rouse_thread *self);

/* kernel.c */
int rsi_kernel_create(struct rouse_thread *t, size_t stack_bytes);
void rsi_kernel_publish(struct rouse_thread *t);
/* self has ended, but for its pthread; the block is gone. */
void rsi_kernel_end(struct rouse_thread *self);
int rsi_kernel_commit(struct rouse_thread *self, uint64_t ticket);
void rsi_kernel_setup(void);
/* Returns 0, -EAGAIN or -ENOMEM; self->current is set then. */
int rsi_foreign_try_adopt(void);
void rsi_foreign_forget(void);
/* The calling kernel thread is not the program's to end: tell who does. NULL: it is about to end. */
void rsi_kernel_guard(const char *what);

/* key.c */
void rsi_keys_fork_prepare(void);
void rsi_keys_fork_parent(void);
void rsi_keys_run_destructors(struct rouse_thread *self);

/* trim.c, pressure.c */
void rsi_trim_child(void);
void rsi_pressure_setup(void);
void rsi_pressure_child(void);
int rsi_pressure_watch(int fd);
unsigned rsi_pressure_threads(void); /* 0 or 1 */

/* blocking.c, fork.c, fault.c */
unsigned rsi_helper_count(void);
/* Start a kernel thread, detached, that takes no signals but those of its own faults. */
bool rsi_helper_start(void *(*main)(void *));
/* Of a function that runs on a helper: the thread that waits for it. NULL elsewhere. */
struct rouse_thread *rsi_blocking_caller(void);
void rsi_blocking_child(void);
void rsi_blocking_fork_prepare(void);
void rsi_blocking_fork_parent(void);
void rsi_fork_setup(void);
void rsi_fault_setup(void);
bool rsi_fault_prepare_worker(struct rsi_worker *w);
void rsi_fault_setup_worker(struct rsi_worker *w);
void rsi_fault_end_worker(void);
void *rsi_fault_stack_take(void);
void rsi_fault_stack_give(void *stack);
void rsi_fault_begin_kernel(void *signal_stack);
void rsi_fault_end_kernel(void);
void rsi_fault_child(void);

/* obs, called by core */
void rsi_obs_setup(void);
void rsi_dump_setup(void);
/* On each worker, kernel and foreign thread, with the signals that it blocks. */
void rsi_obs_thread_begin(const sigset_t *blocked);

/*
 * Asked before a sleep without a limit: whether, and until when, to sleep with one, so that a run in which
 * every thread waits for another is told. quiet is zero when the caller begins to be idle.
 */
struct rsi_quiet {
    uint64_t look_ns;
    unsigned looks;
};
uint64_t rsi_obs_all_wait(struct rsi_quiet *quiet);

#endif
