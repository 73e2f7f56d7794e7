/* SPDX-License-Identifier: MIT */
/*
 * weak_idle.pml - the pairs S1, F1, S2 and W1, F2, W2 of src/core/idle.c with early loads, and what a submitted
 * thread carries.
 *
 * A worker falls asleep. Meanwhile either another worker of its cluster submits a thread to a queue, or a kernel
 * thread submits it to an inbox. The sleeper checks both, sleeps until it is woken if it has seen nothing, and takes
 * the thread. Checked: it is woken, and it reads what the submitter wrote before it submitted.
 * Not modelled: several sleepers, searchers, and the watcher (idle.pml). A theft from the queue is one step
 * (weak_queue_lock.pml).
 *
 * run: other workers of the cluster are awake
 * run LAST: the sleeper is the last one, so that only a kernel thread submits, and its fence is an ordinary one
 * mutant NO_F1: without its compiler barrier, the worker looks for sleepers before it pushes
 * mutant F2_FULL: the fence before sleep is an ordinary one, not a membarrier
 * mutant OUTSIDE_SWAP LAST: the kernel thread relies on its swap being a full fence, as it is on x86-64
 * mutant W2_FIRST: the sleeper checks before it joins the idle list
 * mutant PUSH_RELAXED: the push to the inbox is relaxed
 * mutant TAKE_RELAXED: the sleeper takes the inbox by a relaxed swap
 * mutant LEAVE_RELAXED: the submitter leaves the queue lock by a relaxed store
 */
#define CPUS 2
#define WORDS 4
#define STORES 3
#include "weak.pml"

#define STEALERS 0 /* the sleeper is in the idle list */
#define QUEUE 1
#define INBOX 2
#define WORK 3 /* what the submitter writes before it submits */

#define SLEEPER 0
#define SUBMITTER 1

bool is_outside; /* the submitter is a kernel thread */
bool is_woken;   /* wake_word. It changes under idle_guard, and the kernel compares it before a futex sleeps */

inline submit_inside()
{
#ifdef NO_F1
    load_relaxed(SUBMITTER, STEALERS, seen);
#endif
    /* S1 is made in the queue lock, which is left by a release. */
#ifdef LEAVE_RELAXED
    store_relaxed(SUBMITTER, QUEUE, 1);
#else
    store_release(SUBMITTER, QUEUE, 1);
#endif
#ifndef NO_F1
    fence_light(SUBMITTER);                 /* F1 */
    load_relaxed(SUBMITTER, STEALERS, seen) /* S2 */
#endif
}

inline submit_outside()
{
#ifdef PUSH_RELAXED
    rmw(SUBMITTER, INBOX, 1, false, false, seen); /* S1 */
#else
    rmw(SUBMITTER, INBOX, 1, true, true, seen); /* S1 */
#endif
#ifndef OUTSIDE_SWAP
    fence_full(SUBMITTER); /* F1 */
#endif
    load_relaxed(SUBMITTER, STEALERS, seen) /* S2 */
}

proctype submitter()
{
    byte seen;
    store_relaxed(SUBMITTER, WORK, 1);
    if
    :: is_outside -> submit_outside()
    :: else -> submit_inside()
    fi;
    if
    :: seen != 0 -> is_woken = true
    :: else
    fi
}

inline look()
{
    load_relaxed(SLEEPER, QUEUE, queued);
    load_relaxed(SLEEPER, INBOX, pushed)
}

proctype sleeper()
{
    FENCE_LOCAL;
    byte queued, pushed, seen;
#ifdef W2_FIRST
    look();
#endif
    store_relaxed(SLEEPER, STEALERS, 1); /* W1 */
#if defined(F2_FULL) || defined(LAST)
    fence_full(SLEEPER);
#else
    fence_heavy(SLEEPER); /* F2 */
#endif
#ifndef W2_FIRST
    look(); /* W2 */
#endif
    if
    :: queued != 0 || pushed != 0
    :: else -> is_woken /* without a wake-up, the model ends here */
    fi;
    if
    :: is_outside ->
#ifdef TAKE_RELAXED
        rmw(SLEEPER, INBOX, 0, false, false, pushed)
#else
        rmw(SLEEPER, INBOX, 0, true, false, pushed)
#endif
    :: else -> await(SLEEPER, QUEUE, 1, queued)
    fi;
    load_relaxed(SLEEPER, WORK, seen);
    assert(seen == 1)
}

init {
    atomic {
        weak_init();
        if
        :: is_outside = true
#ifndef LAST
        :: skip
#endif
        fi;
        run sleeper();
        run submitter()
    }
}
