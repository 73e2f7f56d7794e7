/* SPDX-License-Identifier: MIT */
/*
 * taken.pml - src/io/uring/ring.c, submit: a worker submits its ring's entries, and the kernel looks up their
 * descriptor number, while another thread closes it and a third opens the number again.
 *
 * The worker submits two entries, one after the other, and the kernel may leave the first to the second round.
 * Checked: the kernel never looks up a number for an entry that was made for its previous owner, and the closer ends.
 *
 * Full fences separate S1 from S2, and C1 from C2, so the model is sequentially consistent.
 *
 * mutant LOOKS_FIRST: the worker checks for closed descriptors before it announces its submission
 * mutant NO_WAIT: the closer does not wait
 * mutant ONE_LOOK: entries that the kernel did not take are not checked again
 * mutant ONE_PHASE: the closer goes on when the kernel has taken all entries, before the worker submits those it checked
 */
#define NONE 0
#define LOOKS 1
#define GIVES 2

byte phase = NONE;
byte head = 0, tail = 0; /* the entries that the kernel has taken, and those submitted to it */
bool is_closed = false;  /* the descriptor is marked as closed */
bool is_reused = false;
bool is_over = false;
bool is_void[3]; /* by entry, from 1 on: its descriptor was found closed */

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

/* The kernel's look-up. It may lack the memory to take an entry. */
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
