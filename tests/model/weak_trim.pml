/* SPDX-License-Identifier: MIT */
/*
 * weak_trim.pml - on_cpu with early loads: what a worker that picks a thread sees (src/core/switch.h), and how the
 * trimmer holds a parked thread by it (src/core/trim.c).
 *
 * A thread waits ROUNDS times. CPU 0 ends each wait, and either runs the thread itself or leaves it to CPU 1. At the
 * end of each turn the thread saves its registers. CPU 2 trims ROUNDS times, at any moment. Checked: never two CPUs are
 * on its stack, each enters it with the registers that were saved last, and the trimmer gives back only the unused part
 * of a stack that no CPU is on.
 *
 * mutant NO_F1: the trimmer has no fence
 * mutant F1_FULL: the trimmer's fence is an ordinary one, not a membarrier
 * mutant P2_RELAXED: the worker that picked the thread loads on_cpu relaxed
 * mutant FINISH_RELAXED: on_cpu becomes 0 by a relaxed store
 * mutant PREPARE_RELAXED: the claim word is stored relaxed, so on_cpu may still appear as 0
 * mutant CLAIM_RELAXED: the trimmer loads the claim word relaxed at first
 * mutant ON_CPU_RELAXED: the trimmer loads on_cpu relaxed at first
 */
#define ROUNDS 2
#define CPUS 3
#define WORDS 4
#define STORES 10
#include "weak.pml"

#define CLAIM 0  /* 2 * number of the wait + 1 while it waits */
#define ON_CPU 1 /* 0, RUNS, TRIMMED */
#define QUEUE 2  /* how many times the thread was left to CPU 1 */
#define CONTEXT 3

#define RUNS 1
#define TRIMMED 2
#define TICKET(wait) (2 * (wait) + 1)

bool on_stack; /* a CPU runs the thread */
bool giving_back;
byte waits = 1; /* the thread's own count */
byte saved;     /* the value that CONTEXT should have */

inline run_thread(cpu)
{
#ifdef P2_RELAXED
    do
    :: load_relaxed(cpu, ON_CPU, seen); /* P2 */
        if
        :: seen == 0 -> break
        :: else
        fi
    od;
#else
    load_acquire(cpu, ON_CPU, seen); /* P2 */
    if
    :: seen != 0 -> await(cpu, ON_CPU, 0, seen)
    :: else
    fi;
#endif
    store_relaxed(cpu, ON_CPU, RUNS); /* P3 */
    atomic { assert(!giving_back && !on_stack); on_stack = true; waits++ }
    load_relaxed(cpu, CONTEXT, seen);
    assert(seen == saved);
    if
    :: waits <= ROUNDS ->
#ifdef PREPARE_RELAXED
        store_relaxed(cpu, CLAIM, TICKET(waits))
#else
        store_release(cpu, CLAIM, TICKET(waits))
#endif
    :: else
    fi;
    atomic {
        assert(!giving_back);
        on_stack = false;
        saved++;
        store_relaxed(cpu, CONTEXT, saved)
    }
#ifdef FINISH_RELAXED
    store_relaxed(cpu, ON_CPU, 0);
#else
    store_release(cpu, ON_CPU, 0);
#endif
    seen = 0
}

proctype claimer(byte cpu)
{
    byte round = 1, left, seen;
    do
    :: round <= ROUNDS ->
        await(cpu, CLAIM, TICKET(round), seen);
        rmw(cpu, CLAIM, 2 * round, true, true, seen); /* P1 */
        fence_light(cpu);                             /* F2 */
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
    byte taken, seen;
end:
    do
    :: NEWEST(QUEUE) == taken + 1 ->
        await(cpu, QUEUE, taken + 1, taken);
        fence_light(cpu);
        run_thread(cpu)
    od
}

inline swap_on_cpu(cpu, from, to)
{
    atomic {
        is_held = NEWEST(ON_CPU) == from;
        if
        :: is_held -> rmw(cpu, ON_CPU, to, true, true, seen); seen = 0
        :: else
        fi
    }
}

proctype trimmer(byte cpu)
{
    FENCE_LOCAL;
    byte round, claim, seen, pointer;
    bool is_held;
    do
    :: round < ROUNDS ->
#ifdef CLAIM_RELAXED
        load_relaxed(cpu, CLAIM, claim);
#else
        load_acquire(cpu, CLAIM, claim);
#endif
#ifdef ON_CPU_RELAXED
        load_relaxed(cpu, ON_CPU, seen);
#else
        load_acquire(cpu, ON_CPU, seen);
#endif
        load_relaxed(cpu, CONTEXT, pointer);
        if
        :: claim % 2 == 1 && seen == 0 -> swap_on_cpu(cpu, 0, TRIMMED) /* R1 */
        :: else
        fi;
        if
        :: is_held ->
#ifdef F1_FULL
            fence_full(cpu);
#elif !defined(NO_F1)
            fence_heavy(cpu); /* F1 */
#endif
            load_acquire(cpu, CLAIM, seen);
            if
            :: seen == claim -> /* R2 */
                atomic { assert(!on_stack && pointer == saved); giving_back = true }
                giving_back = false
            :: else
            fi;
            swap_on_cpu(cpu, TRIMMED, 0)
        :: else
        fi;
        atomic { round++; claim = 0; seen = 0; pointer = 0; is_held = false }
    :: else -> break
    od
}

init {
    atomic {
        weak_init();
        words[CLAIM].value[0] = TICKET(1);
        run worker(1); /* first, because it stays, and processes end youngest first */
        run claimer(0);
        run trimmer(2)
    };
    _nr_pr == 2 && waits == ROUNDS + 1 && !on_stack && NEWEST(ON_CPU) == 0
}
