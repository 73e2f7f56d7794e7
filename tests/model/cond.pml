/* SPDX-License-Identifier: MIT */
/*
 * cond.pml - src/sync/cond.c: no signal is lost, and destroy waits for threads that still use the object.
 *
 * Two threads wait for an item and take one each. One of them waits with a deadline, which may pass at any
 * time, and then gives up. Either two other threads each add an item under the mutex and signal, or one adds
 * two items, broadcasts, and destroys the condition variable at once. They signal before or after they
 * release the mutex. Checked: no taker sleeps while there is an item for it, and no thread uses the
 * condition variable after it was destroyed.
 *
 * mutant COUNT_LATE: a waiter counts itself after it has released the mutex
 * mutant LIST_LATE: a waiter enters the list after it has released the mutex
 * mutant ONE_CLAIM: a signal does not try the next waiter when the first one has timed out
 * mutant STAYS_LISTED: a waiter that gives up stays in the list
 * mutant STAYS_COUNTED: a waiter that gives up stays counted
 * mutant COUNTED_TWICE: a signal does not decrement the count of waiters
 * mutant NO_DESTROY_WAIT: destroy checks only the list
 */
#define TAKERS 2
#define TIMED 1
#define CPUS 4
#define WORDS 3
#define DEPTH 3
#include "memory.pml"

#define WAITING 0
#define GUARD 1
#define MUTEX 2

#define WOKEN 0
#define TIMEDOUT 1

chan waiters = [TAKERS] of { byte }; /* protected by GUARD */
bool is_listed[TAKERS], is_waiting[TAKERS], is_published[TAKERS];
byte result[TAKERS];

byte items; /* protected by MUTEX */
bool is_destroyed;

#define TOUCH assert(!is_destroyed)

inline mutex_lock()
{
    atomic { RMW_ACQUIRE_READY(me, MUTEX) && memory[MUTEX] == 0; memory[MUTEX] = 1 }
}

inline mutex_unlock()
{
    atomic { RMW_READY(me, MUTEX); memory[MUTEX] = 0 }
}

inline claim(t, r, won)
{
    atomic {
        won = is_waiting[t];
        if
        :: won -> is_waiting[t] = false; result[t] = r
        :: else
        fi
    }
}

inline count_waiting(by)
{
    atomic { TOUCH; seen = LOAD(me, WAITING) + (by) };
    store_relaxed(me, WAITING, seen);
    seen = 0
}

inline enter_list()
{
    atomic { is_waiting[me] = true; is_listed[me] = true; waiters ! me }
}

/* Stores the result of the wait in outcome. */
inline wait_once()
{
    guard_lock(me, GUARD);
#ifndef COUNT_LATE
    count_waiting(1);
#endif
#ifndef LIST_LATE
    enter_list();
#endif
    guard_unlock(me, GUARD);
    mutex_unlock();
#if defined(COUNT_LATE) || defined(LIST_LATE)
    guard_lock(me, GUARD);
#ifdef COUNT_LATE
    count_waiting(1);
#else
    enter_list();
#endif
    guard_unlock(me, GUARD);
#endif
    atomic { is_published[me]; is_published[me] = false; outcome = result[me] }
    if
    :: outcome == TIMEDOUT -> /* leave */
        guard_lock(me, GUARD);
        atomic {
            TOUCH;
            if
#ifndef STAYS_LISTED
            :: is_listed[me] -> waiters ?? eval(me); is_listed[me] = false
#endif
            :: else
            fi
        }
#ifndef STAYS_COUNTED
        count_waiting(-1);
#endif
        guard_unlock(me, GUARD)
    :: else
    fi;
    mutex_lock()
}

proctype taker(byte me)
{
    byte seen, outcome;
    mutex_lock();
    do
    :: items != 0 -> items--; break
    :: items == 0 && outcome == TIMEDOUT -> break
    :: items == 0 && outcome != TIMEDOUT -> wait_once()
    od;
    mutex_unlock()
}

/* One signal or broadcast. It claims at most `most` waiters of the list. */
inline signal(most)
{
    if
    :: LOAD(me, WAITING) == 0
    :: LOAD(me, WAITING) != 0 ->
        guard_lock(me, GUARD);
        do
        :: atomic { count < most && len(waiters) != 0 -> waiters ? other; is_listed[other] = false }
            claim(other, WOKEN, won);
            atomic {
                woken_0 = woken_0 || (won && other == 0);
                woken_1 = woken_1 || (won && other == 1);
                count = count + won
            }
#ifdef ONE_CLAIM
            break
#endif
        :: count == most || len(waiters) == 0 -> break
        od;
#ifndef COUNTED_TWICE
        count_waiting(-count);
#endif
        guard_unlock(me, GUARD);
        atomic {
            IS_DRAINED(me); /* the claims are releases */
            is_published[0] = is_published[0] || woken_0;
            is_published[1] = is_published[1] || woken_1
        }
        atomic { woken_0 = false; woken_1 = false; won = false; count = 0; other = 0 }
    fi
}

inline destroy()
{
    do
    :: guard_lock(me, GUARD);
        assert(len(waiters) == 0);
        seen = LOAD(me, WAITING);
        guard_unlock(me, GUARD);
#ifdef NO_DESTROY_WAIT
        seen = 0;
#endif
        if
        :: seen == 0 -> break
        :: else -> LOAD(me, WAITING) != seen /* yields until the waiters have left */
        fi
    od;
    is_destroyed = true
}

proctype giver(byte me; byte gift)
{
    byte seen, count, other;
    bool won, woken_0, woken_1, is_after;
    mutex_lock();
    items = items + gift;
    if
    :: is_after = true; mutex_unlock()
    :: true
    fi;
    signal(gift);
    if
    :: !is_after -> mutex_unlock()
    :: else
    fi;
    if
    :: gift == 2 -> destroy()
    :: else
    fi
}

proctype timer()
{
    bool won;
end:
    do
    :: is_waiting[TIMED] ->
        claim(TIMED, TIMEDOUT, won);
        if
        :: won -> is_published[TIMED] = true
        :: else
        fi;
        won = false
    od
}

init {
    atomic {
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run_drain(3);
        run taker(0);
        run taker(1);
        run timer();
        if
        :: run giver(2, 1); run giver(3, 1)
        :: run giver(2, 2)
        fi
    }
}
