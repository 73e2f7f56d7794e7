/* SPDX-License-Identifier: MIT */
/*
 * inflight.pml - src/io/uring/inflight.c: an operation on a ring, its thread, a timer, and the ring's worker.
 *
 * The operation lies on its thread's stack: when the thread has returned nobody may touch it. A thread whose
 * wait was ended by the timer has the operation stopped, by mail to the worker, and waits again: for the
 * completion, which may have come before, and for the answer to the request, which the kernel may overlook
 * twice. Afterwards it waits once more for something else. Checked: nobody touches the operation late, no claim
 * ends another wait than it is meant for, the thread comes through, though the operation would never end.
 *
 * All that is shared is written by exchanges and compare-and-swaps with acquire and release; what they order
 * (the result, the second ticket) is not modelled.
 *
 * mutant NO_SECOND_WAIT: a thread that had it stopped does not wait for the completion
 * mutant NO_ANSWER_COUNT: the completion ends the second wait though the answer is yet to come
 * mutant STORES_ALONE: the thread writes ALONE without looking whether it is done
 * mutant TOUCHES_LATE: the completion looks at the operation after it has written DONE
 * mutant MAIL_ASKS_ONLY: mail that comes after the completion wakes nobody
 * mutant ASKS_ONCE: a request that was overlooked is not made again
 */
#define PENDING 0
#define DONE 1
#define ALONE 2

/* Waits: 1 for the operation, 2 for the kernel to let go, 3 for something else; 0: none. */
byte claim = 0;
byte woken_of = 0; /* the wait that the last claim ended */
bool by_timer = false;

byte state = PENDING;
bool is_live = false; /* the thread has not returned */
bool is_submitted = false, is_completed = false;
bool is_over = false, is_asked = false; /* the worker's; is_asked is the thread's before */
bool is_endless = false, is_stopped = false, request = false; /* the kernel's */
byte overlooked = 0;
bool mail = false, mail_taken = false;
bool thread_over = false;

inline touch()
{
    assert(is_live)
}

inline wait_for(number)
{
    woken_of == number && claim != number; /* parks until claimed */
    woken_of = 0
}

proctype thread()
{
    byte old;
    atomic { is_live = true; claim = 1; is_submitted = true }
    wait_for(1);
    if
    :: !by_timer -> skip
    :: by_timer ->
        claim = 2;
        is_asked = true;
#ifdef STORES_ALONE
        old = PENDING;
        state = ALONE;
#else
        atomic { old = state; state = ALONE }
#endif
        if
        :: old == DONE ->
            if
            :: atomic { claim == 2 -> claim = 0 }
            :: claim != 2 -> wait_for(2)
            fi
        :: else ->
            mail = true;
#ifndef NO_SECOND_WAIT
            wait_for(2)
#endif
        fi
    fi;
    is_live = false;
    atomic { claim = 3 }
    wait_for(3);
    thread_over = true
}

/* Ends wait 1 or not; wait 3 is another's affair. */
proctype timer()
{
    if
    :: atomic {
        claim == 1 -> claim = 0; by_timer = true; woken_of = 1;
        if
        :: is_endless = true
        :: skip
        fi
    }
    :: skip
    fi
}

proctype another()
{
    atomic { claim == 3 -> claim = 0; woken_of = 3 }
}

inline end_wait(number)
{
    if
    :: atomic { claim == number -> claim = 0; woken_of = number }
    :: claim != number
    fi
}

proctype worker()
{
    byte old, ticket;
    do
    /* The kernel completes it, by itself or because it was stopped, when it likes. */
    :: is_submitted && !is_completed && (!is_endless || is_stopped) ->
        is_completed = true;
        touch();
        ticket = 1;
        atomic { old = state; state = DONE }
#ifdef TOUCHES_LATE
        touch();
#endif
        if
        :: old == ALONE ->
            touch();
            ticket = 2;
            is_over = true;
#ifndef NO_ANSWER_COUNT
            if
            :: is_asked -> ticket = 0
            :: else
            fi
#endif
        :: else
        fi;
        if
        :: ticket != 0 -> end_wait(ticket)
        :: else
        fi
    :: mail && !mail_taken ->
        mail_taken = true;
        touch();
        if
        :: is_over ->
#ifdef MAIL_ASKS_ONLY
            skip
#else
            end_wait(2)
#endif
        :: else -> request = true
        fi
    /* The answer; it was overlooked, or not. */
    :: request ->
        request = false;
        touch();
        if
        :: is_over -> end_wait(2)
        :: !is_over && overlooked < 2 ->
            overlooked++;
#ifdef ASKS_ONCE
            is_asked = false
#else
            request = true
#endif
        :: !is_over -> is_stopped = true; is_asked = false
        fi
    :: thread_over && is_completed && (!mail || mail_taken) && !request -> break
    od
}

init
{
    atomic {
        run thread();
        run timer();
        run another();
        run worker()
    }
}
