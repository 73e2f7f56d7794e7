/* SPDX-License-Identifier: MIT */
/*
 * taken.pml - src/io/uring/ring.c, submit: a worker gives its ring's entries to the kernel, which looks their descriptor's
 * number up, while another thread closes it and a third opens it anew.
 *
 * The worker gives two entries, one after the other, and the kernel may leave the first to the second round. Checked:
 * the kernel never looks up a number for an entry that was made for its last owner, and the closer comes through.
 *
 * Full fences stand between S1 and S2, and between C1 and C2: all of this is sequentially consistent.
 *
 * mutant LOOKS_FIRST: the worker looks at what is closed before it says so
 * mutant NO_WAIT: the closer does not wait
 * mutant ONE_LOOK: what the kernel did not take is not looked at again
 * mutant ONE_PHASE: the closer goes on when the kernel has taken all, though the worker has yet to give what it saw
 */
#define NONE 0
#define LOOKS 1
#define GIVES 2

byte phase = NONE;
byte head = 0, tail = 0; /* what the kernel has taken, and what it was given */
bool is_closed = false;  /* marked so */
bool is_reused = false;
bool is_over = false;
bool is_void[3]; /* by entry, from 1 on: it was found to be for what is closed */

inline look(round)
{
#ifdef ONE_LOOK
    is_void[round] = is_closed;
#else
    entry = head + 1;
    do
    :: entry <= round -> is_void[entry] = is_closed; entry++
    :: else -> break
    od;
#endif
}

/* The kernel's look-up; it may have no memory for what it was given. */
inline take(round)
{
    if
    :: entry = head + 1;
       do
       :: entry <= round -> assert(is_void[entry] || !is_reused); entry++
       :: else -> break
       od;
       head = round
    :: round == 1
    fi
}

proctype worker()
{
    byte round, entry;
    for (round : 1 .. 2) {
#ifdef LOOKS_FIRST
        look(round);
        phase = LOOKS;
#else
        phase = LOOKS;
        look(round);
#endif
        tail = round;
        phase = GIVES;
        take(round);
        phase = NONE
    }
}

proctype closer()
{
    is_closed = true;
#ifndef NO_WAIT
#ifdef ONE_PHASE
    phase == NONE || head == tail;
#else
    phase == NONE || (phase == GIVES && head == tail);
#endif
#endif
    is_reused = true;
    is_over = true
}

init
{
    atomic {
        run worker();
        run closer()
    };
    is_over
}
