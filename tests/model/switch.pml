/* SPDX-License-Identifier: MIT */
/*
 * switch.pml - src/core/switch.h and worker.c: a thread that is woken before its stack is left.
 *
 * There are two workers and two threads. Each thread parks or yields ROUNDS times, and a kernel thread wakes each
 * waiting thread at any time. Any worker may take any runnable thread (its own queue or a theft: queue_lock.pml).
 * Checked: never two workers are on one stack. A stack is entered with the context that was saved last. The
 * workers never wait for each other. Every thread ends.
 *
 * mutant NO_WAIT: rsi_switch_to does not check on_cpu
 * mutant NO_WAIT_IN_RUN: run does not check on_cpu either
 * mutant WAIT_ON_STACK: rsi_switch_to waits for on_cpu on the stack it is about to leave
 * mutant EARLY_FINISH: on_cpu becomes 0 before the stack is left
 * mutant FINISH_RELAXED: on_cpu becomes 0 by a relaxed store
 * mutant PREPARE_RELAXED: the claim word is stored relaxed, so on_cpu may still appear as 0
 * mutant NO_HANDOFF: a worker that finds on_cpu set drops the thread
 * mutant NO_ON_CPU: entering a thread does not set on_cpu
 */
#define CPUS 3
#define WORDS 8
#define DEPTH 4
#include "memory.pml"

#define THREADS 2
#define ROUNDS 2
#define NONE 2

/* One of each per thread. */
#define CLAIM 0
#define ON_CPU 2
#define RUN 4 /* the thread is in a queue */
#define CONTEXT 6

byte standing[THREADS]; /* workers on its stack */
byte saved[THREADS];    /* the value that CONTEXT should have */
byte turns[THREADS];
byte ended;

inline take(cpu, t) /* takes a thread, or NONE, without waiting */
{
    atomic {
        IS_DRAINED(cpu);
        if
        :: memory[RUN + 0] == 1 -> t = 0; memory[RUN + 0] = 0
        :: memory[RUN + 1] == 1 -> t = 1; memory[RUN + 1] = 0
        :: else -> t = NONE
        fi
    }
}

inline enter(cpu, t)
{
#ifdef NO_ON_CPU
    skip
#else
    store_relaxed(cpu, ON_CPU + t, 1)
#endif
}

inline step_onto(cpu, t)
{
    atomic {
        standing[t]++;
        assert(standing[t] == 1);
        assert(LOAD(cpu, CONTEXT + t) == saved[t])
    }
}

inline finish(cpu)
{
    if
    :: left != NONE ->
#ifdef FINISH_RELAXED
        store_relaxed(cpu, ON_CPU + left, 0);
#else
        store_release(cpu, ON_CPU + left, 0);
#endif
        left = NONE
    :: else
    fi
}

/* rsi_switch_to from self to to. on is the worker's stack afterwards. */
inline switch_to(cpu, self, to)
{
#ifdef WAIT_ON_STACK
    if
    :: to != NONE -> LOAD(cpu, ON_CPU + to) == 0
    :: else
    fi;
#endif
    if
#ifdef NO_WAIT
    :: to != NONE -> enter(cpu, to); on = to
#else
    :: to != NONE && LOAD(cpu, ON_CPU + to) == 0 -> enter(cpu, to); on = to
#endif
    :: else ->
#ifndef NO_HANDOFF
        handoff = to;
#endif
        on = NONE
    fi;
    left = self;
#ifdef EARLY_FINISH
    finish(cpu);
#endif
    store_relaxed(cpu, CONTEXT + self, saved[self] + 1);
    atomic { /* the stack pointer changes */
        saved[self]++;
        standing[self]--;
        if
        :: on != NONE -> step_onto(cpu, on)
        :: else
        fi
    };
    finish(cpu)
}

proctype worker(byte cpu)
{
    byte on = NONE, handoff = NONE, left = NONE, self, to;
    do
    :: on == NONE -> /* rsi_worker_main, on its own stack */
        atomic { self = handoff; handoff = NONE }
        if
        :: self == NONE -> take(cpu, self)
        :: else
        fi;
        if
        :: self != NONE -> /* run */
#ifndef NO_WAIT_IN_RUN
            LOAD(cpu, ON_CPU + self) == 0;
#endif
            enter(cpu, self);
            on = self;
            step_onto(cpu, self)
        :: else ->
            if
            :: memory[RUN + 0] == 1 || memory[RUN + 1] == 1 /* idle: idle.pml */
            :: ended == THREADS -> break
            fi
        fi
    :: else ->
        self = on;
        if
        :: turns[self] == ROUNDS -> /* the thread ends, and is not woken again */
            atomic { ended++; turns[self]++ }
            take(cpu, to);
            switch_to(cpu, self, to)
        :: turns[self] < ROUNDS -> /* parks */
            turns[self]++;
#ifdef PREPARE_RELAXED
            store_relaxed(cpu, CLAIM + self, 1);
#else
            store_release(cpu, CLAIM + self, 1);
#endif
            take(cpu, to);
            if
            :: to == self -> skip
            :: else -> switch_to(cpu, self, to)
            fi
        :: turns[self] < ROUNDS -> /* rsi_switch_yield */
            turns[self]++;
            store_release(cpu, RUN + self, 1);
            take(cpu, to);
            if
            :: to == self -> skip
            :: else -> switch_to(cpu, self, to)
            fi
        fi;
        to = 0
    od
}

proctype waker(byte cpu)
{
    do
    :: atomic { RMW_READY(cpu, CLAIM) && memory[CLAIM + 0] == 1 -> memory[CLAIM + 0] = 0 }
        store_release(cpu, RUN + 0, 1)
    :: atomic { RMW_READY(cpu, CLAIM) && memory[CLAIM + 1] == 1 -> memory[CLAIM + 1] = 0 }
        store_release(cpu, RUN + 1, 1)
    :: ended == THREADS -> break
    od
}

init {
    atomic {
        memory[RUN + 0] = 1;
        memory[RUN + 1] = 1;
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run worker(0);
        run worker(1);
        run waker(2)
    };
    _nr_pr == 1 + CPUS
}
