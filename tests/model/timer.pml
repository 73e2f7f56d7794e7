/* SPDX-License-Identifier: MIT */
/*
 * timer.pml - src/core/timer.c: arming, expiring, and entries that are kept although their wait is over.
 *
 * A thread waits WAITS times, on either of two workers, with a near deadline, a far one, or none. A waker may end
 * any wait, and always ends those without a deadline. When an entry is due, its worker or a thief expires it. Time
 * passes at any moment, and when nothing else can happen. Checked: no wait ends before its deadline. When nothing
 * else can happen, none is overdue. A thread has at most one valid entry. A worker's lanes and heap are one set
 * here: the model leaves open which of them holds an entry.
 *
 * mutant KEEP_ANY WAITS=2: arming keeps an entry of the worker although it expires later than the new deadline
 * mutant NO_MOVE WAITS=2: an entry that expires before its thread's current deadline is dropped
 * mutant NO_CLEAR WAITS=2: an entry that finds its thread not waiting leaves timer_word unchanged
 * mutant NO_GENERATION: a new entry does not make older ones stale
 * mutant CAS_STORES WAITS=2: an expiring worker writes timer_word without comparing
 * mutant NO_QUEUE_LOCK WAITS=2: arming and expiring on one worker do not exclude each other
 * mutant NO_ARM WAITS=2: a wait that has a deadline does not arm
 * mutant DEADLINE_LATE WAITS=2: prepare stores the deadline after the claim word
 * mutant PREPARE_RELAXED WAITS=2: prepare's store of the claim word is relaxed
 * mutant CLAIM_STORES WAITS=2: the timer's claim is not conditional
 */
#define WORKERS 2
#define CPUS 3 /* those of the workers and of a thief */
#define THIEF 2
#define WORDS 2
#define DEPTH 3
#include "memory.pml"

#define CLAIM 0
#define DEADLINE 1
#define FOREVER 0 /* as a deadline */

#ifndef WAITS
#define WAITS 3
#endif
#define TIME_FREE 3 /* up to this value, time passes at any moment */
#define TIME_MAX 7
#define ENTRIES 3
#define NONE WORKERS

/* timer_word changes by read-modify-writes only */
#define OWNER(word) ((word) / 64) /* worker + 1; 0: no entry */
#define GENERATION(word) (((word) / 8) % 8)
#define KEY(word) ((word) % 8)
#define MAKE(owner, generation, key) ((owner) * 64 + ((generation) % 8) * 8 + (key))

typedef heap_of_worker {
    byte deadline[ENTRIES]; /* 0: free */
    byte generation[ENTRIES];
};

heap_of_worker heap[WORKERS];
byte timer_word;
byte now = 1;
byte runs_on;           /* the worker that the thread runs on, or NONE */
bool is_expiring[WORKERS]; /* the worker expires entries itself, and cannot run the thread meanwhile */
bool queue_lock[WORKERS];
bool is_published, is_timeout;
byte deadline_of_wait; /* as the thread sees it */
bool is_asleep;
bool has_ended;

#ifdef NO_QUEUE_LOCK
#define QUEUE_LOCK_ENTER(w) skip
#else
#define QUEUE_LOCK_ENTER(w) atomic { !queue_lock[w]; queue_lock[w] = true }
#endif
#define QUEUE_LOCK_LEAVE(w) queue_lock[w] = false

#ifdef NO_GENERATION
#define NEXT_GENERATION(word) GENERATION(word)
#else
#define NEXT_GENERATION(word) (GENERATION(word) + 1)
#endif

/* Whether timer_word names the entry. */
#define COUNTS(w, i) (heap[w].deadline[i] != 0 && OWNER(timer_word) == (w) + 1 && \
                      heap[w].generation[i] == GENERATION(timer_word))

inline insert(w, d, g)
{
    d_step {
        at = 0;
        do
        :: heap[w].deadline[at] != 0 -> at++; assert(at < ENTRIES)
        :: else -> break
        od;
        heap[w].deadline[at] = d;
        heap[w].generation[at] = g;
        assert(COUNTS(w, 0) + COUNTS(w, 1) + COUNTS(w, 2) <= 1);
        at = 0
    }
}

inline claim_wait(ticket, timeout_won, won)
{
    atomic {
#ifdef CLAIM_STORES
        won = memory[CLAIM] == ticket || timeout_won;
#else
        won = memory[CLAIM] == ticket;
#endif
        if
        :: won ->
            memory[CLAIM] = (ticket / 2) * 2;
            is_timeout = timeout_won;
            assert(!is_published);
            is_published = true
        :: else
        fi
    }
}

inline arm(w, d)
{
    QUEUE_LOCK_ENTER(w);
    word = timer_word;
    if
    :: OWNER(word) == w + 1 &&
#ifdef KEEP_ANY
        true
#else
        KEY(word) <= d
#endif
        -> skip /* keep it */
    :: else ->
        fresh = MAKE(w + 1, NEXT_GENERATION(word), d);
        atomic { IS_DRAINED(w); timer_word = fresh };
        insert(w, d, GENERATION(fresh))
    fi;
    QUEUE_LOCK_LEAVE(w);
    atomic { word = 0; fresh = 0 }
}

inline prepare(w, d)
{
    atomic {
        ticket = (LOAD(w, CLAIM) / 2) * 2 + 3; /* 2 * number + 1 */
        deadline_of_wait = d;
        is_asleep = true
    }
#ifdef DEADLINE_LATE
    store_release(w, CLAIM, ticket);
    store_relaxed(w, DEADLINE, d);
#else
    store_relaxed(w, DEADLINE, d);
#ifdef PREPARE_RELAXED
    store_relaxed(w, CLAIM, ticket);
#else
    store_release(w, CLAIM, ticket);
#endif
#endif
}

proctype thread()
{
    byte word, fresh, at, ticket, d, waits;
    do
    :: waits < WAITS ->
        atomic {
            waits++;
            if
            :: d = FOREVER
            :: now + 1 <= TIME_MAX -> d = now + 1
            :: now + 2 <= TIME_MAX -> d = now + 2
            fi
        }
        prepare(runs_on, d);
        if
#ifndef NO_ARM
        :: d != FOREVER -> arm(runs_on, d)
#endif
        :: else
        fi;
        runs_on = NONE;
        atomic { /* its stack has been left, and any worker may pick it */
            is_published;
            assert(!is_timeout || (d != FOREVER && now >= d));
            is_published = false;
            is_timeout = false;
            is_asleep = false
        };
        atomic {
            if
            :: !is_expiring[0] -> runs_on = 0
            :: !is_expiring[1] -> runs_on = 1
            fi;
            d = 0
        }
    :: else -> break
    od;
    has_ended = true
}

/* fire, with the queue lock held. here is the CPU that runs it. */
inline fire(w, here, d, g)
{
    word = timer_word;
    ticket = LOAD(here, CLAIM);
    deadline = LOAD(here, DEADLINE);
    moves = ticket % 2 != 0 && deadline > d && deadline != FOREVER;
#ifdef NO_MOVE
    moves = false;
#endif
    atomic {
        IS_DRAINED(here);
        won = OWNER(word) == w + 1 && GENERATION(word) == g;
#ifndef CAS_STORES
        won = won && timer_word == word;
#endif
        if
        :: won && moves -> timer_word = MAKE(w + 1, g, deadline)
#ifdef NO_CLEAR
        :: won && !moves && ticket % 2 == 0 -> skip
        :: won && !moves && ticket % 2 != 0 -> timer_word = MAKE(0, g, 0)
#else
        :: won && !moves -> timer_word = MAKE(0, g, 0)
#endif
        :: else
        fi
    };
    if
    :: won && moves -> insert(w, deadline, g)
    :: won && !moves && ticket % 2 != 0 && deadline <= now && deadline != FOREVER ->
        claim_wait(ticket, true, won)
    :: else
    fi;
    atomic { word = 0; ticket = 0; deadline = 0; moves = false; won = false }
}

#define IS_DUE(w, i) (heap[w].deadline[i] != 0 && heap[w].deadline[i] <= now)
#define ANY_DUE(w) (IS_DUE(w, 0) || IS_DUE(w, 1) || IS_DUE(w, 2))

inline expire(w, here)
{
    do
    :: atomic { /* pop */
        ANY_DUE(w) ->
        at = (IS_DUE(w, 0) -> 0 : (IS_DUE(w, 1) -> 1 : 2));
        d = heap[w].deadline[at];
        g = heap[w].generation[at];
        heap[w].deadline[at] = 0;
        heap[w].generation[at] = 0;
        at = 0
    }
        fire(w, here, d, g);
        atomic { d = 0; g = 0 }
    :: !ANY_DUE(w) -> break
    od
}

/* Expire entries of worker me: by itself while it does not run the thread, and otherwise by a thief. */
proctype expirer(byte me)
{
    byte word, ticket, deadline, at, d, g, cpu;
    bool moves, won;
    do
    :: has_ended -> break
    :: atomic {
        ANY_DUE(me) ->
        cpu = (runs_on == me -> THIEF : me);
        is_expiring[me] = cpu == me
    }
        QUEUE_LOCK_ENTER(me);
        IS_DRAINED(me); /* needed for the thief's membarrier, without effect if me does it */
        expire(me, cpu);
        QUEUE_LOCK_LEAVE(me);
        atomic { is_expiring[me] = false; cpu = 0 }
    od
}

proctype waker()
{
    byte ticket, spare;
    bool won;
    if
    :: spare = 0
    :: spare = 1
    :: spare = 2
    fi;
    do
    :: has_ended -> break
    :: atomic {
        memory[CLAIM] % 2 != 0 && (deadline_of_wait == FOREVER || spare != 0) ->
        ticket = memory[CLAIM];
        spare = spare - (deadline_of_wait != FOREVER -> 1 : 0)
    }
        claim_wait(ticket, false, won);
        atomic { ticket = 0; won = false }
    od
}

proctype clock()
{
    do
    :: has_ended -> break
    :: now < TIME_FREE -> now++
    :: timeout ->
        assert(!(is_asleep && deadline_of_wait != FOREVER && deadline_of_wait <= now));
        now < TIME_MAX;
        now++
    od
}

init {
    atomic {
        run_drain(0);
        run_drain(1);
        run_drain(2);
        run thread();
        run expirer(0);
        run expirer(1);
        run waker();
        run clock()
    }
}
