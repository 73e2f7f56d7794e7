/* SPDX-License-Identifier: MIT */
/*
 * queue_lock.pml - src/os/biased.{h,c}, as src/core/queue_lock.c uses it: the owner's plain stores against a
 * thief's membarrier.
 *
 * One owner enters ROUNDS times, and two thieves try once each. Inside, each changes a word of the queue by
 * plain stores. Checked: never two are inside, each sees what the previous one did, and none is stuck.
 *
 * mutant NO_F1: without its compiler barrier, the owner checks thief_in before it stores owner_in
 * mutant F2_FULL: the thief's fence is an ordinary one, not a membarrier
 * mutant NO_E2: the owner does not check thief_in
 * mutant NO_T2: the thief does not check owner_in
 * mutant NO_GUARD: two thieves try at a time
 * mutant NO_RECHECK: an owner that waited for a thief enters without checking again
 * mutant OWNER_LEAVES_RELAXED: the owner leaves by a relaxed store
 * mutant THIEF_LEAVES_RELAXED: the thief leaves by a relaxed store
 * mutant GIVE_UP_KEEPS: a thief that gives up leaves thief_in set
 */
#define CPUS 3
#define WORDS 4
#define DEPTH 3
#include "memory.pml"

#define ROUNDS 2

#define OWNER_IN 0
#define THIEF_IN 1
#define STEAL_GUARD 2
#define QUEUE 3

byte inside;  /* how many are inside */
byte changes; /* the value that QUEUE should have in the end */

inline change(cpu)
{
    inside++;
    assert(inside == 1);
    atomic { seen = LOAD(cpu, QUEUE); changes++ }
    store_relaxed(cpu, QUEUE, seen + 1);
    seen = 0;
    inside--
}

inline queue_lock_enter(cpu)
{
#ifdef NO_F1
    seen = LOAD(cpu, THIEF_IN);
    store_relaxed(cpu, OWNER_IN, 1);
#else
    store_relaxed(cpu, OWNER_IN, 1); /* E1 */
    fence_light(cpu);                /* F1 */
    seen = LOAD(cpu, THIEF_IN);      /* E2 */
#endif
#ifdef NO_E2
    seen = 0;
#endif
    do
    :: seen != 0 -> /* rsi_biased_enter_slow */
        store_release(cpu, OWNER_IN, 0);
        LOAD(cpu, THIEF_IN) == 0;
        store_relaxed(cpu, OWNER_IN, 1);
        fence_light(cpu);
#ifdef NO_RECHECK
        seen = 0
#else
        seen = LOAD(cpu, THIEF_IN)
#endif
    :: else -> break
    od
}

inline queue_lock_leave(cpu)
{
#ifdef OWNER_LEAVES_RELAXED
    store_relaxed(cpu, OWNER_IN, 0)
#else
    store_release(cpu, OWNER_IN, 0)
#endif
}

inline queue_lock_leave_thief(cpu)
{
#ifdef THIEF_LEAVES_RELAXED
    store_relaxed(cpu, THIEF_IN, 0);
#else
    store_release(cpu, THIEF_IN, 0);
#endif
    guard_unlock(cpu, STEAL_GUARD)
}

proctype owner(byte cpu)
{
    byte seen, round;
    do
    :: round < ROUNDS ->
        queue_lock_enter(cpu);
        change(cpu);
        queue_lock_leave(cpu);
        round++
    :: else -> break
    od
}

proctype thief(byte cpu)
{
    FENCE_LOCAL;
    byte seen;
#ifndef NO_GUARD
    guard_lock(cpu, STEAL_GUARD); /* guard_try: a thief that does not acquire the guard does nothing */
#endif
    store_relaxed(cpu, THIEF_IN, 1); /* T1 */
#ifdef F2_FULL
    fence_full(cpu);
#else
    fence_heavy(cpu); /* F2 */
#endif
#ifndef NO_T2
    do
    :: LOAD(cpu, OWNER_IN) == 0 -> break /* T2 */
    :: LOAD(cpu, OWNER_IN) != 0 ->       /* the owner has stayed inside for long */
#ifdef GIVE_UP_KEEPS
        guard_unlock(cpu, STEAL_GUARD);
#else
        queue_lock_leave_thief(cpu);
#endif
        goto gave_up
    od;
#endif
    change(cpu);
    queue_lock_leave_thief(cpu);
gave_up:
    skip
}

init {
    atomic {
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run owner(0);
        run thief(1);
        run thief(2)
    };
    /* All have ended, and their stores are in memory. */
    (_nr_pr == 1 + CPUS) && IS_DRAINED(0) && IS_DRAINED(1) && IS_DRAINED(2);
    assert(memory[QUEUE] == changes)
}
