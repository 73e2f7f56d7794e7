/* SPDX-License-Identifier: MIT */
/*
 * taken.pml - src/io/ring.c, submit: a worker gives its ring's entries to the kernel, which looks their descriptor's
 * number up, while another thread closes it and a third opens it anew.
 *
 * The worker looks twice, as it does when it is told to while the closer waits. Checked: the kernel never looks up
 * a number for an entry that was made for its last owner, and the closer comes through.
 *
 * Full fences stand between S1 and S2, and between C1 and C2: all of this is sequentially consistent.
 *
 * mutant LOOKS_FIRST: the worker looks at what is closed before it says so
 * mutant NO_WAIT: the closer does not wait
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

proctype worker()
{
    bool is_void;
    byte round;
    for (round : 1 .. 2) {
#ifdef LOOKS_FIRST
        is_void = is_closed;
        phase = LOOKS;
#else
        phase = LOOKS;
        is_void = is_closed;
#endif
        tail = round;
        phase = GIVES;
        assert(is_void || !is_reused); /* the kernel's look-up */
        head = round;
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
