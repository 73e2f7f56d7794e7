/* SPDX-License-Identifier: MIT */
/*
 * trim.pml - src/core/trim.c: on_cpu holds a parked thread's stack while its memory is returned.
 *
 * A thread waits ROUNDS times. CPU 0 ends each wait, and either runs the thread itself or leaves it to CPU 1.
 * CPU 2 trims ROUNDS times, at any moment. Checked: no CPU runs the thread, or is on its stack, while the stack's
 * memory is returned, and none is stuck.
 *
 * The claim is modelled as a release store. There is only one claimer, and the value that an acq_rel swap writes
 * may become visible after a later load, as on AArch64.
 *
 * mutant NO_F1: the trimmer has no fence
 * mutant F1_FULL: the trimmer's fence is an ordinary one, not a membarrier
 * mutant NO_R2: the trimmer does not check again whether the thread still waits
 * mutant TICKET_REPEATS: the number of the wait is not in the claim word
 * mutant RELEASE_STORES: the trimmer releases the thread by a store, even if another CPU holds it
 * mutant HOLD_STORES: the trimmer holds the thread by a store, even if another CPU holds it
 * mutant NO_P2: the worker that picked the thread waits only for CPUs that run it
 * mutant LEAVES_LATE: on_cpu is cleared before the stack is left
 */
#define CPUS 3
#define WORDS 3
#define DEPTH 3
#include "memory.pml"

#define ROUNDS 2

#define CLAIM 0  /* 2 * number of the wait + 1 while it waits */
#define ON_CPU 1 /* 0, RUNS, TRIMMED */
#define QUEUE 2  /* how many times the thread was left to CPU 1 */

#define RUNS 1
#define TRIMMED 2

#ifdef TICKET_REPEATS
#define TICKET(wait) 1
#else
#define TICKET(wait) (2 * (wait) + 1)
#endif

bool on_stack;  /* a CPU runs the thread */
bool giving_back;
byte waits = 1; /* the thread's own count */

/* The thread's turn: it runs, prepares its next wait, and is left. */
inline run_thread(cpu)
{
#ifdef NO_P2
    LOAD(cpu, ON_CPU) != RUNS; /* P2 */
#else
    LOAD(cpu, ON_CPU) == 0; /* P2 */
#endif
    store_relaxed(cpu, ON_CPU, RUNS); /* P3 */
    atomic { assert(!giving_back && !on_stack); on_stack = true; waits++ }
    if
    :: waits <= ROUNDS -> store_release(cpu, CLAIM, TICKET(waits))
    :: else
    fi;
#ifdef LEAVES_LATE
    store_release(cpu, ON_CPU, 0);
#endif
    atomic { assert(!giving_back); on_stack = false }
#ifndef LEAVES_LATE
    store_release(cpu, ON_CPU, 0)
#endif
}

proctype claimer(byte cpu)
{
    byte round = 1, left;
    do
    :: round <= ROUNDS ->
        LOAD(cpu, CLAIM) == TICKET(round) && waits == round;
        store_release(cpu, CLAIM, 2 * round); /* P1 */
        fence_light(cpu);                     /* F2 */
        if
        :: run_thread(cpu)
        :: left++; store_release(cpu, QUEUE, left)
        fi;
        round++
    :: else -> break
    od
}

proctype worker(byte cpu)
{
    byte taken;
end:
    do
    :: LOAD(cpu, QUEUE) == taken + 1 ->
        taken++;
        fence_light(cpu);
        run_thread(cpu)
    od
}

proctype trimmer(byte cpu)
{
    FENCE_LOCAL;
    byte round, claim;
    bool held;
    do
    :: round < ROUNDS ->
        claim = LOAD(cpu, CLAIM);
        held = claim % 2 == 1 && LOAD(cpu, ON_CPU) == 0;
        if
        :: held ->
            atomic { /* R1 */
                RMW_READY(cpu, ON_CPU);
#ifndef HOLD_STORES
                held = memory[ON_CPU] == 0;
#endif
                if
                :: held -> memory[ON_CPU] = TRIMMED
                :: else
                fi
            }
        :: else
        fi;
        if
        :: held ->
#ifdef F1_FULL
            fence_full(cpu);
#else
#ifndef NO_F1
            fence_heavy(cpu); /* F1 */
#endif
#endif
            if
#ifdef NO_R2
            :: true ->
#else
            :: LOAD(cpu, CLAIM) == claim -> /* R2 */
#endif
                atomic { assert(!on_stack); giving_back = true }
                giving_back = false
#ifndef NO_R2
            :: else
#endif
            fi;
            atomic {
                RMW_READY(cpu, ON_CPU);
#ifdef RELEASE_STORES
                memory[ON_CPU] = 0
#else
                if
                :: memory[ON_CPU] == TRIMMED -> memory[ON_CPU] = 0
                :: else
                fi
#endif
            }
        :: else
        fi;
        atomic { round++; claim = 0; held = false }
    :: else -> break
    od
}

init {
    atomic {
        memory[CLAIM] = TICKET(1);
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run worker(1); /* first, because it stays, and processes end youngest first */
        run claimer(0);
        run trimmer(2)
    };
    (_nr_pr == 2 + CPUS) && waits == ROUNDS + 1 && !on_stack;
    IS_DRAINED(0) && IS_DRAINED(1) && IS_DRAINED(2) && memory[ON_CPU] == 0
}
