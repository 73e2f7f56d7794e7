/* SPDX-License-Identifier: MIT */
/*
 * mutex.pml - src/sync/mutex.c: no wake-up is lost between the fast paths and the slow ones.
 *
 * Three threads lock and unlock. One of them locks only once, with a deadline that may pass at any time. How
 * long a sleeper has waited is left open. Checked: there is one holder at a time, which sees what the previous
 * holder wrote. No thread sleeps for ever. Each bit of state keeps the invariant in mutex.c. The last holder
 * frees the mutex after its unlock, and no thread accesses it after that.
 *
 * mutant ANNOUNCE_UNLOCKED: a sleeper announces itself although the lock has become free
 * mutant WOKEN_STAYS: a woken thread that goes back to sleep leaves WOKEN set
 * mutant TAKER_KEEPS_WOKEN: a woken thread that acquires the lock leaves WOKEN set
 * mutant HANDOFF_STAYS: the first in the list leaves HANDOFF set when it times out
 * mutant WAITERS_STAYS: the last in the list leaves WAITERS set when it times out
 * mutant HANDED_UNLOCKED: the lock is released although it is handed over
 * mutant NO_SECOND_DROP: an unlock that found no thread to wake does not release the lock
 * mutant PUBLISH_FIRST: an unlock releases the guard after it has published
 * mutant DROP_RELAXED: the lock is released by a relaxed compare-and-swap
 */
#define THREADS 3
#define TIMED 2 /* the thread with a deadline */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define CPUS THREADS
#define WORDS 3
#define DEPTH 3
#include "memory.pml"

#define STATE 0
#define GUARD 1
#define DATA 2

#define LOCKED 1
#define WAITERS 2
#define WOKEN 4
#define HANDOFF 8

#define RETRY 0
#define HANDED 1
#define TIMEDOUT 2
#define NONE THREADS

chan waiters = [THREADS] of { byte }; /* protected by GUARD */
bool is_listed[THREADS];
bool is_waiting[THREADS]; /* the claim word; park.pml has the real one */
bool is_published[THREADS];
byte result[THREADS];

byte holders, changes, left = THREADS;
bool is_freed;

#define TOUCH assert(!is_freed)
#define HAS(state, bit) (((state) & (bit)) != 0)
#define VALID(state) (!HAS(state, HANDOFF) || (HAS(state, LOCKED) && HAS(state, WAITERS)))
#define MUST_WAKE(state) (HAS(state, WAITERS) && ((state) & (WOKEN | HANDOFF)) != WOKEN)

/* One compare-and-swap from the value that was seen. release: older stores reach memory first. */
inline cas(seen, to, release, ok)
{
    atomic {
        !HAS_STORE(me, STATE) && (!(release) || IS_DRAINED(me));
        TOUCH;
        ok = memory[STATE] == seen;
        if
        :: ok -> memory[STATE] = to; assert(VALID(memory[STATE]))
        :: else
        fi
    }
}

/* Under the guard, WAITERS is set if the list is not empty, except for a store still in a buffer. */
inline leave_guard()
{
    TOUCH;
    assert(HAS(LOAD(me, STATE), WAITERS) == (len(waiters) != 0));
    guard_unlock(me, GUARD)
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

/* ok: the lock was acquired */
inline try_once()
{
    atomic { TOUCH; seen = LOAD(me, STATE) }
    if
    :: HAS(seen, LOCKED) -> ok = false
    :: else ->
#ifdef TAKER_KEEPS_WOKEN
        cas(seen, seen | LOCKED, false, ok)
#else
        cas(seen, (seen | LOCKED) & (15 - woken), false, ok)
#endif
    fi
}

/* Stores the result in outcome. */
inline sleep_queued()
{
    guard_lock(me, GUARD);
    bits = WAITERS;
    if
    :: woken != 0 -> bits = WAITERS | HANDOFF /* it has waited long enough */
    :: true
    fi;
    do /* announce_locked */
    :: atomic { TOUCH; seen = LOAD(me, STATE) }
#ifndef ANNOUNCE_UNLOCKED
        if
        :: !HAS(seen, LOCKED) -> ok = false; break
        :: else
        fi;
#endif
#ifdef WOKEN_STAYS
        cas(seen, seen | bits, false, ok);
#else
        cas(seen, (seen | bits) & (15 - woken), false, ok);
#endif
        if
        :: ok -> break
        :: else
        fi
    od;
    if
    :: !ok ->
        leave_guard();
        outcome = RETRY
    :: else ->
        atomic {
            is_waiting[me] = true;
            is_listed[me] = true;
            if
            :: woken == 0 -> waiters ! me
            :: else -> /* to the front */
                at = len(waiters);
                waiters ! me;
                do
                :: at > 0 -> waiters ? other; waiters ! other; at--
                :: else -> break
                od;
                other = 0
            fi
        }
        leave_guard();
        atomic { is_published[me]; is_published[me] = false; outcome = result[me] }
        woken = (outcome == RETRY -> WOKEN : 0);
        if
        :: outcome == TIMEDOUT -> leave()
        :: else
        fi
    fi;
    atomic { bits = 0; ok = false }
}

inline leave()
{
    guard_lock(me, GUARD);
    TOUCH;
    bits = 0;
    atomic {
        if
        :: is_listed[me] ->
            waiters ? [other];
#ifndef HANDOFF_STAYS
            if
            :: waiters ? [eval(me)] -> bits = HANDOFF
            :: else
            fi;
#endif
            waiters ?? eval(me);
            is_listed[me] = false;
#ifndef WAITERS_STAYS
            if
            :: len(waiters) == 0 -> bits = bits | WAITERS
            :: else
            fi
#endif
        :: else
        fi
    };
    atomic {
        !HAS_STORE(me, STATE);
        memory[STATE] = memory[STATE] & (15 - bits);
        assert(VALID(memory[STATE]));
        bits = 0
    }
    leave_guard()
}

/* ok: the lock was released */
inline drop()
{
    do
    :: atomic { TOUCH; seen = LOAD(me, STATE) }
        if
        :: MUST_WAKE(seen) -> ok = false; break
        :: else ->
#ifdef DROP_RELAXED
            cas(seen, seen & (15 - LOCKED), false, ok);
#else
            cas(seen, seen & (15 - LOCKED), true, ok);
#endif
            if
            :: ok -> break
            :: else
            fi
        fi
    od
}

/* other: the thread to publish, or NONE */
inline pass_on()
{
    atomic { TOUCH; seen = LOAD(me, STATE); other = NONE }
    if
    :: MUST_WAKE(seen) ->
        ok = false;
        do
        :: atomic { !ok && len(waiters) != 0 -> waiters ? other; is_listed[other] = false }
            IS_DRAINED(me); /* the claim is a read-modify-write with release */
            claim(other, (HAS(seen, HANDOFF) -> HANDED : RETRY), ok);
        :: ok || len(waiters) == 0 -> break
        od;
        if
        :: !ok -> other = NONE
        :: else
        fi;
        bits = seen & (15 - HANDOFF);
        if
        :: len(waiters) == 0 -> bits = bits & (15 - WAITERS)
        :: else
        fi;
        if
#ifndef HANDED_UNLOCKED
        :: ok && HAS(seen, HANDOFF) -> skip
        :: ok && !HAS(seen, HANDOFF) -> bits = (bits & (15 - LOCKED)) | WOKEN
#else
        :: ok -> bits = (bits & (15 - LOCKED)) | WOKEN
#endif
        :: else
        fi;
        TOUCH;
        store_release(me, STATE, bits);
        bits = 0
    :: else
    fi
}

inline unlock()
{
    drop();
    do
    :: !ok ->
        guard_lock(me, GUARD);
        pass_on();
#ifdef PUBLISH_FIRST
        if
        :: other != NONE -> is_published[other] = true
        :: else
        fi;
        leave_guard();
        if
        :: other != NONE -> break
        :: else -> drop()
        fi
#else
        leave_guard();
        if
        :: other != NONE -> is_published[other] = true; break
#ifdef NO_SECOND_DROP
        :: else -> break
#else
        :: else -> drop()
#endif
        fi
#endif
    :: else -> break
    od;
    other = 0
}

inline critical()
{
    atomic {
        holders++;
        assert(holders == 1);
        assert(LOAD(me, DATA) == changes);
        changes++
    }
    store_relaxed(me, DATA, changes);
    atomic { holders--; rounds++; is_last = left == 1 && (rounds == ROUNDS || me == TIMED) };
    if
    :: rounds == ROUNDS || me == TIMED -> left--
    :: else
    fi
}

proctype locker(byte me)
{
    byte seen, woken, bits, outcome, other, at, rounds;
    bool ok, is_last;
    do
    :: rounds < ROUNDS ->
        try_once();
        outcome = RETRY;
        do
        :: ok || outcome != RETRY -> break
        :: !ok && outcome == RETRY ->
            try_once();
            if
            :: !ok -> sleep_queued()
            :: else
            fi
        od;
        atomic { woken = 0; seen = 0; ok = false }
        if
        :: outcome == TIMEDOUT -> left--; break
        :: else ->
            critical();
            unlock();
            if
            :: is_last -> is_freed = true
            :: else
            fi;
            if
            :: me == TIMED -> break
            :: else
            fi
        fi;
        atomic { seen = 0; ok = false; outcome = 0 }
    :: else -> break
    od
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
        run locker(0);
        run locker(1);
        run locker(2);
        run timer()
    }
    left == 0
}
