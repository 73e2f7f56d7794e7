/* SPDX-License-Identifier: MIT */
/*
 * order.pml - src/turns/turns.c as preload/accept/order.c uses it: a queue of --accept, and its turn.
 *
 * THREADS threads enter the queue ROUNDS times each. A thread that has entered waits for its turn, or stops waiting
 * at any moment. With DEATHS one thread dies anywhere, and with STOPS one is stopped for good anywhere. With LOOKS
 * the waiting threads check the turn. Such a check finds OVERDUE times a turn overdue whose holder is only slow. A
 * connection is always available. With fewer PLACES than threads, the place of the dead thread is reused. PATIENT:
 * all threads wait until it is their turn. SCAN: the choice reads one place after the other, not all at once.
 *
 * Checked: a waiting thread that lives gets its turn, and does so without checks if no thread dies or stops. It is
 * in the queue while it waits. The thread that is chosen is the first (LIFO: the last, or one that was passed over)
 * of those that the choice had to see. In the end, if all threads live, no thread has the turn.
 *
 * The deciding accesses are seq_cst in the code, and marks are read again, so there are no store buffers here. Not
 * modelled: several queues, since a number identifies its queue; the round robin of the runtime's listener, whose
 * choice differs; and time.
 *
 * run: no thread dies, and there are no checks
 * run THREADS=2 ROUNDS=3 SCAN: no thread dies, and the choice reads place by place
 * run LIFO: no thread dies, and the last one is served first
 * run LOOKS THREADS=2 ROUNDS=2 OVERDUE=2: no thread dies, and two turns are taken away
 * run LOOKS THREADS=2 ROUNDS=2 DEATHS=1: one thread dies
 * run LOOKS THREADS=2 ROUNDS=2 STOPS=1: one thread stops
 * run LOOKS PLACES=2 DEATHS=1 PATIENT: another thread reuses the place of a dead one
 * mutant E2_FIRST: a thread that enters checks the turn before it is in the queue
 * mutant NO_G3: the number is not checked again after the swap
 * mutant NO_L2: a thread that leaves does not check whether the turn is its own
 * mutant L2_FIRST: a thread that leaves checks the turn before it has left
 * mutant NO_SECOND_CHOICE: no thread is chosen again after the turn became free
 * mutant WORD_LATE: the futex's word is read after the check of the turn
 * mutant ANY_ONE: the choice is by place
 * mutant NO_DEATHS_LOOK LOOKS THREADS=2 DEATHS=1: threads do not check for a dead holder
 * mutant NO_STOPS_LOOK LOOKS THREADS=2 STOPS=1: threads do not check for an overdue turn
 * mutant NO_MARK LOOKS THREADS=2 STOPS=1: a holder that missed its turn is not marked
 * mutant NO_NOBODYS_LOOK LOOKS THREADS=2 DEATHS=1: a thread that dies while it hands on leaves the turn free for ever
 * mutant MARK_REMOVED LOOKS THREADS=2 OVERDUE=1: the turn stays free for ever if all waiting threads were marked
 * mutant NUMBER_STORED LOOKS PLACES=2 DEATHS=1 PATIENT: a dead thread's number is cleared even if another has the place
 */
#ifndef THREADS
#define THREADS 3
#endif
#ifndef PLACES
#define PLACES THREADS
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef OVERDUE
#define OVERDUE 0
#endif

typedef place_type {
    byte owner;  /* a thread; 0: free */
    byte number; /* 0: in no queue */
    byte word;   /* the futex */
    bool is_missed;
    bool is_passed; /* a thread that came later was chosen first */
};

place_type places[PLACES + 1]; /* the first is number 1 */
byte turn_number;
byte turn_slot; /* 0: no thread has the turn */
byte callers;
bool is_dead[THREADS + 1];
bool is_stopped[THREADS + 1];
byte overdues;

/* The thread that dies or stops, anywhere in its code. Any thread will do, as all are alike. */
#define MORTAL 2
#define IS_DEAD(thread) (thread == 0 || is_dead[thread])
#define IS_CHOSEN_OF(i) \
    (places[i].number != 0 && !places[i].is_missed && places[i].owner != 0)

/* G1: sets chosen and number, 0 if there is none. must: the thread it had to see, if still there at the end. */
inline choose()
{
    atomic {
        chosen = 0; number = 0; must = 0;
        i = 1;
        do
        :: i <= PLACES ->
            if
#ifdef LIFO
            :: IS_CHOSEN_OF(i) && places[i].number > must -> must = places[i].number
#else
            :: IS_CHOSEN_OF(i) && (must == 0 || places[i].number < must) -> must = places[i].number
#endif
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 1;
        oldest = 0; first = 0;
#ifdef SCAN
    }
#endif
    do
    :: atomic { i <= PLACES ->
        if
        :: IS_CHOSEN_OF(i) ->
            if
            :: oldest == 0 || places[i].number < first -> oldest = i; first = places[i].number
            :: else
            fi;
            if
#ifdef ANY_ONE
            :: true ->
#else
#ifdef LIFO
            :: places[i].number > number ->
#else
            :: number == 0 || places[i].number < number ->
#endif
#endif
                chosen = i; number = places[i].number
#ifndef ANY_ONE
            :: else
#endif
            fi
        :: else
        fi;
        i++
    }
    :: atomic { i > PLACES -> break }
    od;
#ifdef SCAN
    atomic {
#endif
        i = 1;
        do
        :: i <= PLACES ->
#ifdef LIFO
            assert(!(must && IS_CHOSEN_OF(i) && places[i].number == must) || number >= must);
#else
            assert(!(must && IS_CHOSEN_OF(i) && places[i].number == must) ||
                   (number && number <= must));
#endif
            i++
        :: else -> break
        od;
        i = 0; must = 0
#ifdef LIFO
        ;
        if
        :: oldest != chosen && places[oldest].is_passed -> chosen = oldest; number = first
        :: oldest != chosen -> places[oldest].is_passed = true
        :: oldest == chosen
        fi
#endif
        ;
        oldest = 0; first = 0
    }
}

/* turn, slot: the previous turn. */
inline give()
{
    do
    :: true ->
        choose();
        if
        :: chosen == 0 && slot == 0 -> break
        :: else
        fi;
        atomic { /* G2 */
            if
            :: turn_number == turn && turn_slot == slot ->
                turn_number++;
                assert(turn_number < 60); /* the turn is not handed back and forth for ever */
                turn_slot = chosen;
                turn = turn_number;
                slot = chosen
            :: else -> break
            fi
        }
        if
        :: chosen == 0 ->
#ifdef NO_SECOND_CHOICE
            break
#else
            skip
#endif
        :: else ->
            owner = places[chosen].owner;
            if
            :: IS_DEAD(owner) ->
                atomic {
                    if
#ifdef NUMBER_STORED
                    :: true -> places[chosen].number = 0
#else
                    :: places[chosen].number == number -> places[chosen].number = 0
                    :: else
#endif
                    fi
                }
                atomic {
                    if
                    :: places[chosen].owner == owner -> places[chosen].owner = 0
                    :: else
                    fi
                }
#ifdef NO_G3
            :: else ->
#else
            :: !IS_DEAD(owner) && places[chosen].number == number -> /* G3 */
#endif
                places[chosen].word++;
                break
#ifndef NO_G3
            :: else
#endif
            fi
        fi
    od;
    atomic { chosen = 0; number = 0; owner = 0; turn = 0; slot = 0 }
}

/* A free turn counts as the caller's own. */
inline turn_take()
{
    atomic { turn = turn_number; slot = turn_slot } /* E2 */
    if
    :: slot == 0 ->
        atomic {
            if
            :: turn_number == turn && turn_slot == 0 -> turn_number++; turn_slot = place
            :: else
            fi;
            turn = 0
        }
    :: else -> atomic { turn = 0; slot = 0 }
    fi
}

inline stand()
{
    places[place].is_missed = false;
    atomic { callers++; number = callers; places[place].is_passed = false }
    atomic { places[place].number = number; number = 0 } /* E1 */
}

inline enter()
{
#ifdef E2_FIRST
    turn_take();
    stand()
#else
    stand();
    turn_take()
#endif
}

inline leave()
{
    assert(places[place].number != 0); /* otherwise it would keep the turn */
#ifndef L2_FIRST
    places[place].number = 0; /* L1 */
#endif
    atomic { turn = turn_number; slot = turn_slot } /* L2 */
#ifdef L2_FIRST
    places[place].number = 0;
#endif
    if
#ifndef NO_L2
    :: slot == place -> give()
    :: else -> atomic { turn = 0; slot = 0 }
#else
    :: true -> atomic { turn = 0; slot = 0 }
#endif
    fi
}

#define HOLDER places[turn_slot].owner
#define IS_OVERDUE(slot) (is_stopped[places[slot].owner] || places[slot].number == 0)
/* A check that finds nothing to do is no step, since it would hide a thread that waits for ever. */
#define IS_OTHERS (turn_slot != 0 && turn_slot != place)
#define FINDS_MARK (places[place].is_missed)
#define FINDS_OWN (turn_slot == place)
#if defined NO_NOBODYS_LOOK || defined MARK_REMOVED
#define FINDS_NOBODYS false
#else
#define FINDS_NOBODYS (turn_slot == 0)
#endif
#ifdef NO_DEATHS_LOOK
#define FINDS_DEAD false
#else
#define FINDS_DEAD (IS_OTHERS && IS_DEAD(HOLDER))
#endif
#ifdef NO_STOPS_LOOK
#define FINDS_OVERDUE false
#else
#define FINDS_OVERDUE \
    (IS_OTHERS && !IS_DEAD(HOLDER) && (IS_OVERDUE(turn_slot) || overdues < OVERDUE))
#endif
#define LOOK_FINDS (FINDS_MARK || FINDS_OWN || FINDS_NOBODYS || FINDS_DEAD || FINDS_OVERDUE)

/* The turn that was seen and the 100 ms are not modelled: a stopped thread is overdue at once. */
inline look()
{
    places[place].is_missed = false;
    atomic { turn = turn_number; slot = turn_slot }
    if
    :: slot == 0 ->
#if !defined NO_NOBODYS_LOOK && !defined MARK_REMOVED
        atomic {
            if
            :: turn_number == turn && turn_slot == 0 -> turn_number++; turn_slot = place
            :: else
            fi;
            turn = 0
        }
#else
        turn = 0
#endif
    :: slot == place -> atomic { turn = 0; slot = 0 }
    :: else ->
        atomic {
            if
            :: IS_DEAD(places[slot].owner) ->
#ifndef NO_DEATHS_LOOK
                late = true
#endif
            :: !IS_DEAD(places[slot].owner) && IS_OVERDUE(slot) ->
#ifndef NO_STOPS_LOOK
                late = true
#endif
            :: !IS_DEAD(places[slot].owner) && overdues < OVERDUE -> overdues++; late = true
            :: else
            fi
        }
        if
        :: late ->
            late = false;
#ifndef NO_MARK
            places[slot].is_missed = true;
#endif
            give()
        :: else -> atomic { turn = 0; slot = 0 }
        fi
    fi
}

/* A free place, or that of a dead thread. */
inline place_swap(at)
{
    atomic { place == 0 && IS_DEAD(places[at].owner) -> owner = places[at].owner };
    atomic {
        if
        :: places[at].owner == owner -> places[at].owner = me; place = at
        :: else
        fi;
        owner = 0
    };
    if
    :: place == at -> places[at].number = 0
    :: else
    fi
}

inline sleep()
{
    do
    :: true ->
        assert(places[place].number != 0); /* it is in the queue */
#ifndef WORD_LATE
        word = places[place].word;
#endif
        if
        :: turn_slot == place -> break
        :: else
        fi;
#ifdef WORD_LATE
        word = places[place].word;
#endif
        if
        :: places[place].word != word -> skip
#ifdef LOOKS
        :: LOOK_FINDS -> look()
#endif
        fi
    od;
    word = 0
}

proctype thread(byte me)
{
    byte round, place, turn, slot, chosen, number, must, oldest, first, i, owner, word;
    bool late;
    {
#if PLACES < THREADS
end_no_place: /* it waits without a turn, as the program does */
        do
        :: atomic { place == 0 && me <= PLACES -> place = me; places[me].owner = me }
        :: me > PLACES && place == 0 && is_dead[MORTAL] -> place_swap(MORTAL)
        :: place != 0 -> break
        od;
#else
        atomic { place = me; places[me].owner = me };
#endif
        do
        :: round < ROUNDS ->
            round++;
            enter();
            if
            :: sleep()
#ifndef PATIENT
            :: skip /* it times out, or a signal arrives */
#endif
            fi;
            leave()
        :: else -> break
        od
    }
#if DEATHS || STOPS
    unless { is_dead[me] || is_stopped[me] }
#endif
}

proctype fate()
{
#if DEATHS
    is_dead[MORTAL] = true;
#endif
#if STOPS
    is_stopped[MORTAL] = true;
#endif
    skip
}

init {
    byte t = 1;
    atomic {
        do
        :: t <= THREADS -> run thread(t); t++
        :: else -> break
        od;
        run fate()
    };
end:
    _nr_pr == 1;
#if !DEATHS && !STOPS
    assert(turn_slot == 0)
#endif
}
