/* SPDX-License-Identifier: MIT */
/*
 * weak_queue_lock.pml - the lock of queue_lock.pml (src/os/biased.{h,c}) with early loads: what its owner and a thief
 * see of each other's changes.
 *
 * One owner enters ROUNDS times. A thief, the only one that may try, does so ROUNDS times. Inside, each reads a word
 * of the queue and changes it, by plain accesses. Checked: never two are inside, and each reads the newest value.
 *
 * mutant NO_F1: without its compiler barrier, the owner checks thief_in before it stores owner_in
 * mutant F2_FULL: the thief's fence is an ordinary one, not a membarrier
 * mutant F2_NONE: the thief's stores and loads are all it has
 * mutant E2_RELAXED: the owner checks thief_in by a relaxed load
 * mutant T2_RELAXED: the thief checks owner_in by a relaxed load
 * mutant OWNER_LEAVES_RELAXED: the owner leaves by a relaxed store
 * mutant THIEF_LEAVES_RELAXED: the thief leaves by a relaxed store
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define CPUS 2
#define WORDS 3
#define STORES 10
#include "weak.pml"

#define OWNER_IN 0
#define THIEF_IN 1
#define QUEUE 2

byte inside;  /* how many are inside */
byte changes; /* the value that QUEUE should have */

inline change(cpu)
{
    atomic { inside++; assert(inside == 1) }
    load_relaxed(cpu, QUEUE, seen);
    atomic {
        assert(seen == changes);
        changes++;
        store_relaxed(cpu, QUEUE, changes);
        seen = 0
    }
    atomic { inside-- }
}

#ifdef E2_RELAXED
#define look_for_thief() load_relaxed(0, THIEF_IN, seen)
#else
#define look_for_thief() load_acquire(0, THIEF_IN, seen)
#endif

inline announce()
{
#ifdef NO_F1
    look_for_thief();
    store_relaxed(0, OWNER_IN, 1)
#else
    store_relaxed(0, OWNER_IN, 1); /* E1 */
    fence_light(0);
    look_for_thief() /* E2 */
#endif
}

proctype owner()
{
    byte seen, rounds;
    do
    :: rounds < ROUNDS ->
        announce();
        do
        :: seen != 0 ->
            store_release(0, OWNER_IN, 0);
            await(0, THIEF_IN, 0, seen);
            announce()
        :: else -> break
        od;
        change(0);
#ifdef OWNER_LEAVES_RELAXED
        store_relaxed(0, OWNER_IN, 0);
#else
        store_release(0, OWNER_IN, 0);
#endif
        rounds++
    :: else -> break
    od
}

proctype thief()
{
    FENCE_LOCAL;
    byte seen, rounds;
    do
    :: rounds < ROUNDS ->
        store_relaxed(1, THIEF_IN, 1); /* T1 */
#ifdef F2_FULL
        fence_full(1);
#elif !defined(F2_NONE)
        fence_heavy(1);
#endif
#ifdef T2_RELAXED
        load_relaxed(1, OWNER_IN, seen); /* T2 */
#else
        load_acquire(1, OWNER_IN, seen); /* T2 */
#endif
        if
        :: seen == 0 -> change(1)
        :: else -> seen = 0 /* give up */
        fi;
#ifdef THIEF_LEAVES_RELAXED
        store_relaxed(1, THIEF_IN, 0);
#else
        store_release(1, THIEF_IN, 0);
#endif
        rounds++
    :: else -> break
    od
}

init {
    atomic {
        weak_init();
        run owner();
        run thief()
    };
    _nr_pr == 1;
    assert(inside == 0 && NEWEST(QUEUE) == changes)
}
