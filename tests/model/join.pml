/* SPDX-License-Identifier: MIT */
/*
 * join.pml - src/core/thread.c: the join word between a thread's end, its joiners and detach.
 *
 * J1 joins a thread, with or without a deadline. After a time-out or a cancellation it joins again or detaches
 * the thread. J2 tries to join it once. The timer ends waits that have a deadline, and a canceller sends J1 two
 * requests. Finally J1 waits for something else, and only the canceller may end this wait. Every step on the
 * join word is a read-modify-write or ordered by one, so no store buffers are needed. Checked: exactly one of
 * them releases the block, once and after the stack was left, and the thread's end does not access the block
 * after that. No joiner sleeps for ever, no late claim ends the later wait, and each request is reported once or
 * kept.
 *
 * mutant TICKET_IN_TARGET: a joiner's ticket is stored in the block of the thread that is joined
 * mutant END_EXCHANGES: the end takes any value of the join word for the joiner that it has seen
 * mutant END_STORES: the end overwrites what was stored after the joiner gave up with ENDED
 * mutant ENDED_AT_ONCE: the end stores ENDED instead of ENDING
 * mutant NO_WAIT_ENDED: a joiner that finds ENDING does not wait for ENDED
 * mutant GIVE_UP_STORES: a joiner gives up by a plain store
 * mutant NO_ABANDON: a joiner that finds the thread ended leaves its wait prepared
 * mutant REQUEST_LOST: a cancelled joiner that finds the thread ended drops the request
 * mutant REQUEST_INVENTED: a thread that cannot withdraw its wait counts a request
 * mutant NO_CLAIM: the end publishes the joiner even if it lost the claim
 * mutant ENDING_FOR_ALL: a joiner that finds ENDING of another joiner treats the thread as ended
 * mutant ENDED_NOT_TAKEN: a joiner that finds ENDED releases the block without taking it
 */
#define NONE 0
#define DETACHED 1
#define ENDED 3
#define JOINER(j) (4 * ((j) + 1))
#define PLUS_ENDING 2 /* on a joiner */
#define PLUS_ENDED 3

#define BUSY 1
#define INVAL 2
#define TIMEDOUT 3
#define CANCELED 4

#define SHOTS 2 /* how often the timer ends a wait of J1 */

byte join_word = NONE;
byte join_ticket; /* TICKET_IN_TARGET */
bool is_left;     /* the thread's stack has been left */
bool is_freed;
bool j2_returned, j1_is_through;
byte successes; /* joins and detaches that returned 0 */

/* One entry per joiner. */
byte claim[2]; /* 4 * number + {0, 2} */
bool is_published[2];
byte result[2];
bool is_timed; /* whether J1's wait has a deadline */

byte requests, told; /* requests to J1: made, and reported to it */

/* Written by the thread's end. */
#define TOUCH assert(!is_freed)

inline block_free()
{
    atomic { assert(!is_freed && is_left); is_freed = true }
}

/* Compare-and-swap of the join word. old: its previous value. */
inline join_cas(expected, new, old)
{
    atomic {
        old = join_word;
        if
        :: old == expected -> join_word = new
        :: else
        fi
    }
}

inline claim_wait(j, t, r, won)
{
    atomic {
        won = claim[j] == t;
        if
        :: won -> claim[j] = t - 2; result[j] = r
        :: else
        fi
    }
}

inline publish(j)
{
    atomic { assert(!is_published[j]); is_published[j] = true }
}

inline prepare(j, timed) /* mine: the ticket */
{
    atomic {
        assert(claim[j] % 4 == 0 && !is_published[j]);
        is_timed = (j == 0 -> timed : is_timed);
        claim[j] = claim[j] + 6;
        mine = claim[j]
    }
}

inline commit(j, error)
{
    atomic { /* rsi_park_cancel_self; park.pml has its steps */
        error = 0;
        if
        :: j == 0 && requests != 0 && claim[j] % 4 != 0 ->
            requests--;
            claim[j] = claim[j] - 2;
            error = CANCELED
        :: else
        fi
    }
    if
    :: error == 0 -> atomic { is_published[j]; is_published[j] = false; error = result[j] }
    :: else
    fi
}

inline keep_request(error)
{
    if
    :: error == CANCELED -> requests++
    :: else
    fi
}

inline join_finish()
{
    join_word = DETACHED;
    block_free();
    error = 0
}

inline join_ended()
{
    seen = join_word;
    if
    :: seen == ENDED ->
#ifndef ENDED_NOT_TAKEN
        join_cas(ENDED, DETACHED, seen);
#endif
        if
        :: seen == ENDED -> join_finish()
        :: else -> error = INVAL
        fi
    :: seen == NONE -> error = BUSY
#ifdef ENDING_FOR_ALL
    :: seen > ENDED && seen % 4 == PLUS_ENDING ->
        join_word % 4 == PLUS_ENDED;
        join_finish()
#endif
    :: else -> error = INVAL
    fi
}

inline join_wait(j)
{
    commit(j, error);
    seen = JOINER(j) + PLUS_ENDING;
    if
    :: error != 0 ->
#ifdef GIVE_UP_STORES
        seen = JOINER(j);
        join_word = NONE
#else
        join_cas(JOINER(j), NONE, seen)
#endif
    :: else
    fi;
    if
    :: seen == JOINER(j) -> skip /* given up */
    :: else ->
#ifndef NO_WAIT_ENDED
        join_word == JOINER(j) + PLUS_ENDED;
#endif
#ifndef REQUEST_LOST
        keep_request(error);
#endif
        join_finish()
    fi
}

/* Stores the result of the call in error. */
inline join(j)
{
    error = BUSY;
    do
    :: error == BUSY ->
        join_ended();
        if
        :: error == BUSY ->
            prepare(j, timed);
#ifdef TICKET_IN_TARGET
            join_ticket = mine;
#endif
            join_cas(NONE, JOINER(j), seen);
            if
            :: seen == NONE -> join_wait(j)
            :: else ->
#ifndef NO_ABANDON
                atomic {
                    won = claim[j] == mine;
                    claim[j] = (claim[j] / 4) * 4
                }
                if
                :: !won -> /* it has just been cancelled, or an old entry of the timer expired */
                    commit(j, error);
#ifdef REQUEST_INVENTED
                    error = CANCELED;
#endif
                    keep_request(error)
                :: else
                fi;
#endif
                error = BUSY
            fi
        :: else
        fi
    :: else -> break
    od;
    atomic {
        if
        :: error == 0 -> successes++
        :: error == CANCELED -> told++
        :: else
        fi
    }
}

inline detach()
{
    join_cas(NONE, DETACHED, seen);
    if
    :: seen == NONE -> error = 0
    :: else -> join_ended()
    fi;
    if
    :: error == 0 -> successes++
    :: else
    fi
}

proctype j1()
{
    byte error, seen, mine;
    bool timed, won;
    do
    ::
        if
        :: timed = true
        :: timed = false
        fi;
        join(0);
        if
        :: error == TIMEDOUT || error == CANCELED -> detach()
        :: true
        fi;
        if
        :: error == 0 -> break
        :: error == INVAL || error == BUSY ->
            j2_returned;
            if
            :: successes != 0 -> break
            :: else
            fi
        :: else
        fi;
        atomic { error = 0; seen = 0; mine = 0; won = false }
    od;
    atomic { error = 0; seen = 0; won = false; timed = false };
    prepare(0, false);
    j1_is_through = true;
    commit(0, error);
    assert(error == CANCELED);
    told++
}

proctype j2()
{
    byte error, seen, mine;
    bool timed, won;
    join(1);
    assert(error == 0 || error == INVAL);
    j2_returned = true
}

/* seen: the new value of the join word */
inline announce_end()
{
    atomic { TOUCH; seen = join_word }
    do
    :: seen > ENDED && seen % 4 == 0 ->
        joiner = seen / 4 - 1;
#ifdef END_EXCHANGES
        atomic {
            TOUCH;
            seen = join_word;
            assert(seen % 4 == 0); /* otherwise it is no address */
            won = seen != NONE;
            join_word = JOINER(joiner) + PLUS_ENDING
        }
#else
        TOUCH;
#ifdef ENDED_AT_ONCE
        join_cas(JOINER(joiner), JOINER(joiner) + PLUS_ENDED, seen);
#else
        join_cas(JOINER(joiner), JOINER(joiner) + PLUS_ENDING, seen);
#endif
        won = seen == JOINER(joiner);
#endif
        if
        :: won ->
            seen = JOINER(joiner) + PLUS_ENDING;
#ifdef TICKET_IN_TARGET
            atomic { TOUCH; t = join_ticket }
#else
            t = claim[joiner]; /* its joiner cannot begin another wait before ENDED */
#endif
            if
            :: t % 4 != 0 -> claim_wait(joiner, t, 0, won)
            :: else -> won = false
            fi;
#ifdef NO_CLAIM
            won = true;
#endif
            if
            :: won -> publish(joiner)
            :: else
            fi;
            break
        :: else
        fi
    :: else -> break
    od
}

proctype target()
{
    byte seen, joiner, t;
    bool won;
    announce_end(); /* rouse_thread_exit */
    is_left = true;
    do /* rsi_thread_left */
    ::
        announce_end();
        if
        :: seen == DETACHED -> block_free(); break
#ifndef END_STORES
        :: seen == NONE ->
            TOUCH;
            join_cas(NONE, ENDED, seen);
            if
            :: seen == NONE -> break
            :: else
            fi
#endif
        :: else ->
            TOUCH;
            join_word = (seen / 4) * 4 + PLUS_ENDED;
            break
        fi
    od
}

proctype timer()
{
    bool won;
    byte seen, shots;
end:
    do
    :: atomic { claim[0] % 4 != 0 && is_timed && shots < SHOTS -> seen = claim[0]; shots++ }
        claim_wait(0, seen, TIMEDOUT, won);
        if
        :: won -> publish(0)
        :: else
        fi;
        atomic { seen = 0; won = false }
    od
}

proctype canceller() /* rouse_thread_cancel; park.pml has its steps */
{
    bool won;
    byte asked;
    do
    :: asked < 2 ->
        asked == 0 || j1_is_through;
        atomic {
            asked++;
            if
            :: claim[0] % 4 == 2 ->
                claim[0] = claim[0] - 2;
                result[0] = CANCELED;
                won = true
            :: else -> requests++
            fi
        }
        if
        :: won -> publish(0)
        :: else
        fi;
        won = false
    :: else -> break
    od
}

init {
    atomic {
        run timer();
        run target();
        run j1();
        run j2();
        run canceller()
    };
    _nr_pr == 2;
    assert(is_freed && successes == 1 && told + requests == 2 && !is_published[0] && !is_published[1])
}
