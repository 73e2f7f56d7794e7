/* SPDX-License-Identifier: MIT */
/*
 * park.pml - src/core/park.c: one claim word between a waker, the timer and a cancel.
 *
 * A thread waits for a semaphore (src/sync/sem.c) until it has a unit and a request to stop. One waker posts one
 * unit, one canceller makes one request, and the timer checks twice, at any time. Only the first wait has a
 * deadline, which has passed. Checked: the unit and the request both arrive once. The timer ends only the wait
 * with a deadline. A thread is published once per wait. Commit returns the value that the winner wrote. Nothing
 * is left over.
 *
 * mutant CLAIM_STORES: a claim is not conditional
 * mutant TICKET_REPEATS: the number of the wait is not in the claim word
 * mutant NO_HEAVY: the canceller's fence is an ordinary one
 * mutant NO_LIGHT: the waiter checks for requests before it stores its ticket
 * mutant NO_RECHECK: the waiter does not check for requests
 * mutant NO_SECOND_LOOK: a canceller that lost the race does not check for the next wait
 * mutant NO_GIVE_BACK: a waiter that took a request and was woken first keeps it
 * mutant CLAIM_FIRST: the canceller takes the request after the claim
 * mutant DEADLINE_LATE: prepare stores the deadline after the claim word
 * mutant PREPARE_RELAXED: prepare's store of the claim word is relaxed
 * mutant RESULT_LATE: the winner writes the result after it has published the thread
 * mutant NO_PUBLISH: a timer that wins does not publish the thread
 */
#define CPUS 4
#define WORDS 6
#define DEPTH 4
#include "memory.pml"

#define CLAIM 0
#define DEADLINE 1 /* of the wait: 1 has passed, 0 means none */
#define CANCEL 2   /* requests that are not taken yet */
#define RESULT 3
#define PUBLISHED 4 /* the number of published waits */
#define GUARD 5     /* the semaphore's guard */

#define UNIT 1
#define TIMEDOUT 2
#define CANCELED 3

/* Protected by GUARD. */
byte units;
bool is_listed;
byte listed_ticket;

byte publishings; /* publications begun, which the waiter has not seen yet */

inline claim_word(cpu, ticket, won)
{
    atomic {
        RMW_READY(cpu, CLAIM);
#ifdef CLAIM_STORES
        won = true;
#else
        won = memory[CLAIM] == ticket;
#endif
        if
        :: won -> memory[CLAIM] = (ticket / 4) * 4
        :: else -> skip
        fi
    }
}

inline publish(cpu, result)
{
    atomic { publishings++; assert(publishings == 1) }
#ifndef RESULT_LATE
    store_relaxed(cpu, RESULT, result);
#endif
    /* The thread's place in a queue. A queue lock and an inbox both release. */
    store_release(cpu, PUBLISHED, memory[PUBLISHED] + 1);
#ifdef RESULT_LATE
    store_relaxed(cpu, RESULT, result);
#endif
}

inline cancel_take(cpu, taken)
{
    atomic {
        RMW_READY(cpu, CANCEL);
        taken = memory[CANCEL] != 0;
        memory[CANCEL] = memory[CANCEL] - (taken -> 1 : 0)
    }
}

inline cancel_give(cpu)
{
    atomic { RMW_READY(cpu, CANCEL); memory[CANCEL]++ }
}

inline prepare(cpu, deadline)
{
#ifdef TICKET_REPEATS
    ticket = 6; /* cancellable */
#else
    ticket = (LOAD(cpu, CLAIM) / 4) * 4 + 6;
#endif
#ifdef DEADLINE_LATE
    store_release(cpu, CLAIM, ticket);
    store_relaxed(cpu, DEADLINE, deadline);
#else
    store_relaxed(cpu, DEADLINE, deadline);
#ifdef PREPARE_RELAXED
    store_relaxed(cpu, CLAIM, ticket);
#else
    store_release(cpu, CLAIM, ticket);
#endif
#endif
}

/* rsi_park_cancel_self, and then the wait itself */
inline commit(cpu)
{
    result = 0;
#ifdef NO_RECHECK
    requests = 0;
#else
#ifndef NO_LIGHT
    fence_light(cpu);
    requests = LOAD(cpu, CANCEL);
#endif
#endif
    if
    :: requests != 0 ->
        cancel_take(cpu, flag);
        if
        :: flag ->
            claim_word(cpu, ticket, flag);
            if
            :: flag -> result = CANCELED
            :: else ->
#ifndef NO_GIVE_BACK
                cancel_give(cpu)
#else
                skip
#endif
            fi
        :: else
        fi
    :: else
    fi;
    if
    :: result == 0 ->
        LOAD(cpu, PUBLISHED) == waits + 1;
        atomic { waits++; publishings-- }
        result = LOAD(cpu, RESULT)
    :: else
    fi;
    flag = false;
    requests = 0
}

proctype waiter(byte cpu)
{
    byte ticket, result, requests, waits, calls;
    bool flag, has_unit, has_request, has_timed_out;
    do
    :: has_unit && has_request -> break
    :: else ->
        guard_lock(cpu, GUARD);
        if
        :: units != 0 ->
            units--;
            guard_unlock(cpu, GUARD);
            result = UNIT
        :: else ->
#ifdef NO_LIGHT
            requests = LOAD(cpu, CANCEL);
#endif
            prepare(cpu, (calls == 0 -> 1 : 0));
            is_listed = true;
            listed_ticket = ticket;
            guard_unlock(cpu, GUARD);
            commit(cpu);
            if
            :: result != UNIT -> /* leave */
                guard_lock(cpu, GUARD);
                is_listed = false;
                guard_unlock(cpu, GUARD)
            :: else
            fi
        fi;
        atomic {
            if
            :: result == UNIT -> assert(!has_unit); has_unit = true
            :: result == CANCELED -> assert(!has_request); has_request = true
            :: result == TIMEDOUT -> assert(!has_timed_out && calls == 0); has_timed_out = true
            :: else -> assert(false)
            fi;
            calls = 1;
            ticket = 0;
            result = 0
        }
    od
}

proctype waker(byte cpu) /* rouse_sem_post */
{
    bool won;
    guard_lock(cpu, GUARD);
    if
    :: is_listed ->
        is_listed = false;
        claim_word(cpu, listed_ticket, won)
    :: else
    fi;
    if
    :: won ->
        guard_unlock(cpu, GUARD);
        publish(cpu, UNIT)
    :: else ->
        units++;
        guard_unlock(cpu, GUARD)
    fi
}

proctype canceller(byte cpu) /* rouse_thread_cancel */
{
    FENCE_LOCAL;
    byte claim;
    bool won;
    cancel_give(cpu);
    do
    ::
#ifdef NO_HEAVY
        fence_full(cpu);
#else
        fence_heavy(cpu);
#endif
        claim = LOAD(cpu, CLAIM);
        won = claim % 4 == 2;
#ifndef CLAIM_FIRST
        if
        :: won -> cancel_take(cpu, won)
        :: else
        fi;
#endif
        if
        :: won -> claim_word(cpu, claim, won)
        :: else -> break
        fi;
        if
        :: won ->
#ifdef CLAIM_FIRST
            publish(cpu, CANCELED);
            cancel_take(cpu, won);
#else
            publish(cpu, CANCELED);
#endif
            break
        :: else ->
#ifndef CLAIM_FIRST
            cancel_give(cpu);
#endif
#ifdef NO_SECOND_LOOK
            break
#else
            claim = 0
#endif
        fi
    od
}

proctype timer(byte cpu) /* fire */
{
    byte claim, deadline, looks;
    bool won;
    do
    :: looks < 2 ->
        claim = LOAD(cpu, CLAIM);
        deadline = LOAD(cpu, DEADLINE);
        if
        :: claim % 4 != 0 && deadline == 1 ->
            claim_word(cpu, claim, won);
            if
#ifndef NO_PUBLISH
            :: won -> publish(cpu, TIMEDOUT)
#endif
            :: else
            fi
        :: else
        fi;
        atomic { looks++; claim = 0; deadline = 0; won = false }
    :: else -> break
    od
}

init {
    atomic {
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run_drain(3);
        run waiter(0);
        run waker(1);
        run canceller(2);
        run timer(3)
    };
    (_nr_pr == 1 + CPUS) && IS_DRAINED(0) && IS_DRAINED(1) && IS_DRAINED(2) && IS_DRAINED(3);
    assert(units == 0 && memory[CANCEL] == 0 && publishings == 0 && memory[CLAIM] % 4 == 0)
}
