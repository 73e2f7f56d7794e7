/* SPDX-License-Identifier: MIT */
/*
 * set.h - a set of descriptors that threads wait for repeatedly, like an epoll set.
 *
 * Problem: the same as poll, but without listing each descriptor in each call, and each event must wake only one of
 * the threads that wait for the set.
 *
 * A member is in its descriptor's lists (fdtable.h) from add to remove. Its state, under the set's guard:
 *
 *   IDLE    not known to be ready. The next event changes that
 *   QUEUED  it may be ready. The next thread that waits checks it
 *   TAKEN   one thread checks it, without the guard. Events that arrive meanwhile are recorded in has_event
 *   HELD    level-triggered, and reported to a thread, its holder, which has not called wait again yet
 *
 *   event    IDLE, HELD -> TAKEN by the thread that has slept longest, which is woken, or QUEUED if none sleeps
 *   wait     the caller's HELD members -> QUEUED. QUEUED -> TAKEN, and check. If ready, report it: IDLE
 *            (edge-triggered, one-shot) or HELD. If not ready: IDLE, or, with has_event, as by an event
 *   wait that does not sleep: first IDLE -> QUEUED for members that were not ready at the last check
 *   settle   the holder parks elsewhere or ends: its HELD members -> QUEUED. If a thread sleeps, they are checked,
 *            and a ready one wakes it
 *
 * Invariant: no thread sleeps while a member is QUEUED, except while another thread is on its way to distribute it
 * (set.c, distribute). A HELD member has a running holder, which waits again, or parks and settles its debt
 * (core/park.h). An IDLE member was not ready at a check that began after its last event. So no event is lost, and no
 * event wakes two threads, because the first changes the member's state.
 *
 * One ppoll checks all members that a call takes. Rejected: a kernel epoll set inside ours (its level-triggered events
 * would wake every thread in turn, and it reports removals to no thread).
 *
 * The thread that has TAKEN a member frees it when it has left the set. Otherwise it goes to the set's garbage, since a
 * close finds it under guards. Lock order: a descriptor's guard < the set's guard.
 */
#ifndef RSI_IO_SET_H
#define RSI_IO_SET_H

#include "io/fdtable.h"

#include <rouse/poll.h>

enum rsi_set_state { RSI_SET_IDLE, RSI_SET_QUEUED, RSI_SET_TAKEN, RSI_SET_HELD };

struct rsi_set_member {
    struct rsi_fd_waiter waiters[2]; /* by side */
    struct rouse_set *set;
    struct rsi_fd_ref ref;
    int fd;
    /* Written under both guards: */
    uint32_t events; /* requested, as poll bits, plus error and hang-up */
    uint32_t flags;
    uint64_t data;
    /* Under the set's guard: */
    struct rsi_set_member *next, *prev; /* in the queue or its holder's list. Garbage uses next */
    struct rsi_set_member *all_next, *all_prev;
    struct rsi_set_holder *holder;
    uint8_t state; /* enum rsi_set_state */
    bool has_event;
    bool was_ready; /* at the last check */
    bool is_spent;  /* one-shot, and already reported */
    bool is_gone;   /* left the set while it was TAKEN */
};

struct rsi_set_list {
    struct rsi_set_member *first, *last;
};

struct rsi_set_holder {
    struct rsi_set_holder *next;
    struct rouse_thread *thread; /* NULL: this holder is free */
    struct rsi_set_list held;
};

/* A thread that sleeps in a wait, on its stack. */
struct rsi_set_sleeper {
    struct rsi_set_sleeper *next, *prev;
    struct rouse_thread *thread;
    uint64_t ticket;
    struct rsi_set_member *given; /* set by the thread that ended its wait */
    bool is_listed;
};

struct rouse_set {
    uint32_t guard;
    uint32_t index; /* debts refer to the set by it */
    uint32_t forks; /* rsi_fdtable_forks at creation. A child has no sets */
    struct rsi_set_list queue;
    struct rsi_set_member *all, *garbage;
    struct rsi_set_holder *holders;
    struct rsi_set_sleeper *first, *last; /* longest first */
};

/* An event or a close for a listed waiter of kind MEMBER, and whether its set has sleepers. Under the entry's guard. */
void rsi_set_event_locked(struct rsi_fd_waiter *waiter, uint32_t events,
                          struct rsi_fd_batch *batch);
void rsi_set_close_locked(struct rsi_fd_waiter *waiter);
bool rsi_set_has_sleepers_locked(struct rsi_fd_waiter *waiter);

/* After fork, in the child, which has no sets. */
void rsi_set_child(void);

/* Settle the calling thread's debt to the set with this index (poll.c). */
void rsi_set_settle(uint32_t index);

#endif
