/* SPDX-License-Identifier: MIT */
/*
 * inflight.pml - src/io/uring/inflight.c: an operation on a ring, its thread, a timer, and the ring's worker.
 *
 * The operation is on its thread's stack, so no one may access it after the thread has returned. If the timer
 * ends the thread's wait, the thread asks the worker by mail to stop the operation, and waits again. This wait
 * is for the completion, which may have come before, and for the answer to the request, which the kernel may
 * overlook twice. Then the thread waits once more for something else. Checked: no one accesses the operation
 * too late, no claim ends a wait for which it was not meant, and the thread ends even if the operation would
 * never complete by itself.
 *
 * All shared words are written by exchanges and compare-and-swaps with acquire and release. The data that these
 * order (the result, the second ticket) is not modelled.
 *
 * mutant NO_SECOND_WAIT: a thread that stopped the operation does not wait for the completion
 * mutant NO_ANSWER_COUNT: the completion ends the second wait before the answer has come
 * mutant STORES_ALONE: the thread writes ALONE without checking whether the operation is done
 * mutant TOUCHES_LATE: the completion reads the operation after it has written DONE
 * mutant MAIL_ASKS_ONLY: mail that arrives after the completion wakes no thread
 * mutant ASKS_ONCE: a request that the kernel overlooked is not repeated
 */
#define PENDING 0
#define DONE 1
#define ALONE 2

/* Waits: 1 for the operation, 2 until the kernel releases it, 3 for something else. 0: none. */
byte claim = 0;
byte woken_of = 0; /* the wait that the last claim ended */
bool by_timer = false;

byte state = PENDING;
bool is_live = false; /* the thread has not returned */
bool is_submitted = false, is_completed = false;
bool is_over = false, is_asked = false; /* owned by the worker; is_asked first by the thread */
bool is_endless = false, is_stopped = false, request = false; /* owned by the kernel */
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

/* The timer may end wait 1. Wait 3 is ended by something else. */
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
    /* The kernel completes the operation at any time, by itself or because it was stopped. */
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
    /* The answer to the request, which the kernel may have overlooked. */
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
