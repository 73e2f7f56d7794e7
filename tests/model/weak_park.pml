/* SPDX-License-Identifier: MIT */
/*
 * weak_park.pml - the claim word of src/core/park.c with early loads: a wait, a cancel and the timer.
 *
 * A thread waits until it is cancelled. Only its first wait has a deadline, which has passed. A canceller makes one
 * request, and the timer checks twice, at any time. Checked: the request arrives once. The timer ends only the wait with a
 * deadline. The thread reads the result that the winner wrote.
 * Not modelled: a waker (park.pml), and the queues between winner and worker, of which one word remains
 * (weak_queue_lock.pml).
 *
 * mutant NO_HEAVY: the canceller's fence is an ordinary one
 * mutant NO_FENCE: the canceller relies on its count being a full fence, as it is on x86-64
 * mutant NO_LIGHT: the waiter checks for requests before it stores its ticket
 * mutant PREPARE_RELAXED: prepare's store of the claim word is relaxed
 * mutant DEADLINE_LATE: prepare stores the deadline after the claim word
 * mutant FIRE_RELAXED: the timer loads the claim word relaxed
 * mutant PUBLISH_RELAXED: the thread is queued by a relaxed store
 * mutant RUN_RELAXED: the thread is taken off the queue by a relaxed load
 * mutant RESULT_LATE: the winner writes the result after it has published the thread
 */
#define CPUS 3
#define WORDS 5
#define STORES 8
#include "weak.pml"

#define CLAIM 0    /* 2 * number of the wait + 1 while it waits */
#define DEADLINE 1 /* 1 has passed, 0 means none */
#define CANCEL 2   /* requests that are not taken yet */
#define RESULT 3
#define PUBLISHED 4 /* the number of published waits */

#define WAITER 0
#define CANCELLER 1
#define TIMER 2

#define TIMEDOUT 2
#define CANCELED 3

byte scratch; /* used within one step */

inline claim_word(cpu, ticket, won)
{
    atomic {
        won = NEWEST(CLAIM) == ticket;
        if
        :: won -> rmw(cpu, CLAIM, ticket - 1, true, true, scratch); scratch = 0
        :: else
        fi
    }
}

inline cancel_take(cpu, taken)
{
    atomic {
        taken = NEWEST(CANCEL) != 0;
        if
        :: taken -> rmw(cpu, CANCEL, scratch - 1, true, true, scratch); scratch = 0
        :: else
        fi
    }
}

inline cancel_give(cpu)
{
    atomic { rmw(cpu, CANCEL, scratch + 1, true, true, scratch); scratch = 0 }
}

inline publish(cpu, result)
{
#ifndef RESULT_LATE
    store_relaxed(cpu, RESULT, result);
#endif
    atomic {
        scratch = NEWEST(PUBLISHED) + 1;
#ifdef PUBLISH_RELAXED
        store_relaxed(cpu, PUBLISHED, scratch);
#else
        store_release(cpu, PUBLISHED, scratch);
#endif
        scratch = 0
    }
#ifdef RESULT_LATE
    store_relaxed(cpu, RESULT, result)
#endif
}

inline prepare()
{
    atomic { waits++; ticket = 2 * waits + 1 }
#ifndef DEADLINE_LATE
    store_relaxed(WAITER, DEADLINE, (waits == 1 -> 1 : 0));
#endif
#ifdef PREPARE_RELAXED
    store_relaxed(WAITER, CLAIM, ticket);
#else
    store_release(WAITER, CLAIM, ticket);
#endif
#ifdef DEADLINE_LATE
    store_relaxed(WAITER, DEADLINE, (waits == 1 -> 1 : 0))
#endif
}

proctype waiter()
{
    byte waits, published, ticket, requests, result;
    bool flag;
    do
    :: result != CANCELED ->
#ifdef NO_LIGHT
        load_relaxed(WAITER, CANCEL, requests);
#endif
        prepare();
        result = 0;
#ifndef NO_LIGHT
        fence_light(WAITER);
        load_relaxed(WAITER, CANCEL, requests);
#endif
        if
        :: requests != 0 -> cancel_take(WAITER, flag)
        :: else
        fi;
        if
        :: flag ->
            claim_word(WAITER, ticket, flag);
            if
            :: flag -> result = CANCELED
            :: else -> cancel_give(WAITER)
            fi
        :: else
        fi;
        if
        :: result == 0 ->
#ifdef RUN_RELAXED
            atomic { NEWEST(PUBLISHED) != published; load_relaxed(WAITER, PUBLISHED, result) };
#else
            await(WAITER, PUBLISHED, published + 1, result);
#endif
            published++;
            load_relaxed(WAITER, RESULT, result)
        :: else
        fi;
        assert(result == CANCELED || (result == TIMEDOUT && waits == 1));
        atomic { flag = false; requests = 0; ticket = 0 }
    :: else -> break
    od
}

proctype canceller() /* rouse_thread_cancel */
{
    FENCE_LOCAL;
    byte claim;
    bool won;
    cancel_give(CANCELLER);
    do
    ::
#ifdef NO_HEAVY
        fence_full(CANCELLER);
#elif !defined(NO_FENCE)
        fence_heavy(CANCELLER);
#endif
        load_acquire(CANCELLER, CLAIM, claim);
        won = claim % 2 == 1;
        if
        :: won -> cancel_take(CANCELLER, won)
        :: else
        fi;
        if
        :: won -> claim_word(CANCELLER, claim, won)
        :: else -> break
        fi;
        if
        :: won -> publish(CANCELLER, CANCELED); break
        :: else -> cancel_give(CANCELLER)
        fi
    od
}

proctype timer() /* fire */
{
    byte claim, deadline, looks;
    bool won;
    do
    :: looks < 2 ->
#ifdef FIRE_RELAXED
        load_relaxed(TIMER, CLAIM, claim);
#else
        load_acquire(TIMER, CLAIM, claim);
#endif
        load_relaxed(TIMER, DEADLINE, deadline);
        if
        :: claim % 2 == 1 && deadline == 1 -> claim_word(TIMER, claim, won)
        :: else
        fi;
        if
        :: won -> publish(TIMER, TIMEDOUT)
        :: else
        fi;
        atomic { looks++; claim = 0; deadline = 0; won = false }
    :: else -> break
    od
}

init {
    atomic {
        weak_init();
        run waiter();
        run canceller();
        run timer()
    };
    _nr_pr == 1;
    assert(NEWEST(CANCEL) == 0 && NEWEST(CLAIM) % 2 == 0)
}
