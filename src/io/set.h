/* SPDX-License-Identifier: MIT */
/*
 * set.h - a set of descriptors that threads wait for, over and over.
 *
 * Problem: as poll, but without listing each descriptor at each call; and each event is to wake one of the
 * threads that wait for the set.
 *
 * A member stands in its descriptor's lists (fdtable.h) from add to remove. Its state, under the set's guard:
 *
 *   IDLE    nothing is known to be ready; the next event is counted
 *   QUEUED  it may be ready: whoever waits next looks at it
 *   TAKEN   one thread looks at it, without the guard. Events that come meanwhile are noted (has_event)
 *   HELD    level-triggered, and told to a thread, its holder, that has not come back yet
 *
 *   event    IDLE, HELD -> TAKEN by the thread that has slept longest, which is woken; QUEUED if none sleeps
 *   wait     what the caller holds -> QUEUED; QUEUED -> TAKEN; look; ready: told, and IDLE (edge-triggered,
 *            one-shot) or HELD; else IDLE; or, if has_event, as by an event
 *   wait that does not sleep: IDLE -> QUEUED first, for what was not ready when last looked at
 *   settle   the holder parks elsewhere or ends: what it holds is looked at if there is a thread that sleeps,
 *            and if it is ready that one is woken; else QUEUED
 *
 * Invariant: nobody sleeps while something is QUEUED, but while a thread is in between that sees to it
 * (rsi_set_distribute). What is HELD has a holder that runs: it comes back, or parks and settles by its debt
 * (core/park.h). What is IDLE was not ready at a look that began after its last event. So no event is lost;
 * and none wakes two, for the first finds the member's state changed.
 *
 * The kernel is asked by one ppoll for all that a call takes. Rejected: a kernel's epoll set in ours: its
 * level-triggered events would wake every thread in turn, and what leaves it is told to nobody.
 *
 * A member's memory is released by who has TAKEN it; else it goes to the set's garbage, since a close finds
 * it under guards. Lock order: a descriptor's guard < the set's.
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
    uint32_t events; /* in poll's terms; with error and hang-up */
    uint32_t flags;
    uint64_t data;
    /* Under the set's guard: */
    struct rsi_set_member *next, *prev; /* in the queue or its holder's list; garbage, by next */
    struct rsi_set_member *all_next, *all_prev;
    struct rsi_set_holder *holder;
    uint8_t state; /* enum rsi_set_state */
    bool has_event;
    bool was_ready; /* when it was looked at last */
    bool is_spent;  /* one-shot, and told */
    bool is_gone;   /* has left the set while it was TAKEN */
};

struct rsi_set_list {
    struct rsi_set_member *first, *last;
};

struct rsi_set_holder {
    struct rsi_set_holder *next;
    struct rouse_thread *thread; /* NULL: it is free */
    struct rsi_set_list held;
};

/* A thread that waits, on its stack. */
struct rsi_set_sleeper {
    struct rsi_set_sleeper *next, *prev;
    struct rouse_thread *thread;
    uint64_t ticket;
    struct rsi_set_member *given; /* by who ended its wait */
    bool is_listed;
};

struct rouse_set {
    uint32_t guard;
    uint32_t index; /* debts name it by that */
    uint32_t forks; /* rsi_fdtable_forks when it was made: a child has no sets */
    struct rsi_set_list queue;
    struct rsi_set_member *all, *garbage;
    struct rsi_set_holder *holders;
    struct rsi_set_sleeper *first, *last; /* longest first */
};

/* For the descriptors' lists, of waiters of kind MEMBER; under the entry's guard. */
void rsi_set_event_locked(struct rsi_fd_waiter *waiter, uint32_t events,
                          struct rsi_fd_batch *batch);
void rsi_set_close_locked(struct rsi_fd_waiter *waiter);
bool rsi_set_has_sleepers_locked(struct rsi_fd_waiter *waiter);

/* After fork, in the child: there are no sets. */
void rsi_set_child(void);

/* The calling thread turns away from the set that it owes. For debts: poll.c. */
void rsi_set_settle(uint32_t index);

#endif
