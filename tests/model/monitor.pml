/* SPDX-License-Identifier: MIT */
/*
 * monitor.pml - src/core/monitor.c: the monitor sleeps without a time limit only while a worker is idle.
 *
 * Two workers of one cluster leave the idle list and join it again, each a few times, and finally stay outside of
 * it, as if stuck. Checked: when nothing else can happen, the monitor is awake, or in a sleep that ends.
 *
 * mutant NO_M2: the monitor does not check again before it sleeps
 * mutant NO_M_FENCE: the monitor's store may come after its check
 * mutant NO_W_FENCE: a worker checks the monitor before others see that the worker has left
 * mutant NO_WORD: the futex does not compare its word
 * mutant ANY_LEAVES: only a worker that finds the list full wakes the monitor
 */
#define WORKERS 2
#define CPUS 3
#define MONITOR 2
#define AWAKE 0
#define IDLE 1 /* the number of idle workers; protected by the guard */
#define GUARD 2
#define WORDS 3
#define DEPTH 3
#ifndef TURNS
#define TURNS 2
#endif
#include "memory.pml"

#ifdef ANY_LEAVES
#define IS_LAST(left) ((left) == WORKERS - 1)
#else
#define IS_LAST(left) ((left) == 0)
#endif

bool is_asleep, has_ended[WORKERS];

inline join_or_leave(me, change)
{
    guard_lock(me, GUARD);
    atomic { HAS_ROOM(me); count = LOAD(me, IDLE) + change; put(me, IDLE, count, false) } /* W1 */
    guard_unlock(me, GUARD)
}

proctype worker(byte me)
{
    byte count, turns = TURNS;
    do
    :: turns != 0 ->
        turns--;
        join_or_leave(me, -1);
        if
        :: IS_LAST(count) ->
#ifndef NO_W_FENCE
            fence_full(me);
#endif
            if
            :: LOAD(me, AWAKE) == 0 -> /* W2 */
                atomic { RMW_READY(me, AWAKE); memory[AWAKE] = 1; is_asleep = false }
            :: LOAD(me, AWAKE) != 0
            fi
        :: else
        fi;
        if
        :: turns == 0 -> break
        :: turns != 0 -> join_or_leave(me, 1)
        fi
    od;
    has_ended[me] = true
}

proctype monitor()
{
    do
    :: LOAD(MONITOR, IDLE) != 0 ->
        store_relaxed(MONITOR, AWAKE, 0); /* M1 */
#ifndef NO_M_FENCE
        fence_full(MONITOR);
#endif
        if
#ifdef NO_M2
        :: true ->
#else
        :: LOAD(MONITOR, IDLE) != 0 -> /* M2 */
#endif
            atomic {
                IS_DRAINED(MONITOR); /* the system call */
#ifdef NO_WORD
                is_asleep = true
#else
                is_asleep = memory[AWAKE] == 0
#endif
            };
            !is_asleep
#ifndef NO_M2
        :: LOAD(MONITOR, IDLE) == 0
#endif
        fi;
        store_relaxed(MONITOR, AWAKE, 1)
    :: LOAD(MONITOR, IDLE) == 0 && has_ended[0] && has_ended[1] -> break
    od
}

init {
    atomic {
        memory[IDLE] = WORKERS;
        memory[AWAKE] = 1;
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run worker(0);
        run worker(1);
        run monitor()
    }
}
