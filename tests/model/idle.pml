/* SPDX-License-Identifier: MIT */
/*
 * idle.pml - src/core/idle.c: workers that fall asleep while others submit threads.
 *
 * There are WORKERS workers, and a kernel thread that submits PLAIN plain threads and HOGS hogs to any inbox.
 * A hog submits a child to its worker's next slot or queue, and then computes until all threads except hogs
 * have run. One worker is left for all the others and must be awake. Checked: all threads run. When nothing
 * else can happen any more, the watcher, if there is one, checks a few times. After that all must have run.
 * Not modelled: timers, and the poller (poller.pml). A theft is one step (queue_lock.pml).
 *
 * While a worker watches, any queue may be short (share.h): nobody is woken for it, and only the watcher takes from it,
 * if it has not moved. Which queues are short is left open.
 *
 * The watcher repairs most lost wake-ups within 10 ms. Therefore the protocol is also checked without a
 * watcher. Children then go to queues only.
 *
 * run WORKERS=2: with store buffers
 * run UNWATCHED WORKERS=2: with store buffers and without a watcher
 * run UNWATCHED COARSE CHILDLESS WORKERS=3: three workers without a watcher
 * run UNWATCHED COARSE CHILDLESS MORE=1 WORKERS=3: the same, where two may search
 * mutant NO_F1 UNWATCHED: there is no compiler barrier between the push and the check
 * mutant F2_FULL UNWATCHED: the fence before sleep is an ordinary one, not a membarrier
 * mutant NO_W2 UNWATCHED: a worker does not check again before it sleeps
 * mutant NO_WAKE UNWATCHED: a submission wakes no worker
 * mutant LEAK UNWATCHED COARSE CHILDLESS WORKERS=3: a worker with a spurious wake-up that then finds a thread stays counted as a searcher
 * mutant ANY_SEARCHER UNWATCHED COARSE CHILDLESS WORKERS=3: a worker that joins the idle list stays counted as a searcher
 * mutant SILENT_SEARCHER UNWATCHED COARSE CHILDLESS WORKERS=3: the last searcher that found work wakes no worker
 * mutant NO_WATCHER: no worker watches
 * mutant NO_NEXT: the watcher takes nothing from next slots
 * mutant SHORT_UNWATCHED UNWATCHED: a queue may be short though nobody watches
 * mutant STUCK_SHORT: the watcher leaves a short queue alone though it has not moved
 * mutant NO_END_FENCE PLAIN=0: a watcher that ends does not order this before its check of idle_count
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef MORE /* searchers than one, while a worker may still be woken: one for every 8 workers */
#define MORE 0
#endif
#ifndef PLAIN
#define PLAIN 1
#endif
#ifndef EARLY
#ifdef COARSE
#define EARLY 0
#else
#define EARLY 1
#endif
#endif
#ifdef COARSE /* no store buffers, and larger steps */
#define SEQUENTIAL
#define STEP atomic
#define HAS_TURNED(w) false /* the watcher checks only when nothing else can happen */
#define TURN(w, has) skip
#else
#define STEP
#define HAS_TURNED(w) has_turned[w]
#define TURN(w, has) has_turned[w] = has
#endif
#define CPUS WORKERS /* the kernel thread's pushes are full fences: it needs no buffer */
/* Each worker's queue and next slot, as sets of threads, and the worker that watches. */
#define QUEUE(w) (w)
#define NEXT(w) (WORKERS + (w))
#define WATCHING (2 * WORKERS)
#define WORDS (2 * WORKERS + 1)
#define DEPTH 2
#include "memory.pml"

/* Threads, one bit each. */
#define HOGS (WORKERS - 1)
#define IS_HOG(t) ((t) < (1 << HOGS))
#define CHILD(t) ((t) << (PLAIN + HOGS))
#ifdef CHILDLESS
#define ALL ((1 << (PLAIN + HOGS)) - 1)
#else
#define ALL ((1 << (PLAIN + 2 * HOGS)) - 1)
#endif
#define SUBMITTED (1 << (PLAIN + HOGS))
#define ALL_DONE (done == ALL)
#define ALL_BUT_HOGS_DONE ((done | ((1 << HOGS) - 1)) == ALL)
#define FIRST(set) ((set) & -(set))

/* These change by read-modify-writes only. */
byte inbox[WORKERS];
byte idle_count, searching;

bool guard;
/* Protected by the guard. */
bool is_idle[WORKERS], wake_word[WORKERS];

bool has_turned[WORKERS]; /* the watcher's record of turns; handed on with WATCHING */
byte done;                /* threads that have ended */
byte quiet_looks;         /* the watcher's checks in a row during which nothing else happened */
byte early_looks = EARLY; /* how often the watcher may still check before that */

#define IS_FENCED (me == WORKERS || IS_DRAINED(me % WORKERS))
#define HAS_WORK(w) (LOAD(me, QUEUE(w)) != 0 || inbox[w] != 0)
#ifdef SHORT_UNWATCHED
#define IS_SHORT(w) (inbox[w] == 0)
#else
#define IS_SHORT(w) (LOAD(me, WATCHING) != 0 && inbox[w] == 0) /* or it is not */
#endif

/* preferred: WORKERS means none. The choice among the others is left open here. */
inline wake_one(preferred)
{
    atomic {
        !guard && IS_FENCED;
        guard = true;
        woken = preferred;
        if
        :: woken < WORKERS && is_idle[woken % WORKERS]
        :: else ->
            if
            :: is_idle[0] -> woken = 0
            :: is_idle[1] -> woken = 1
#if WORKERS > 2
            :: is_idle[2] -> woken = 2
#endif
            :: else -> woken = WORKERS; guard = false
            fi
        fi;
        if
        :: woken < WORKERS -> is_idle[woken] = false; idle_count--
        :: else
        fi
    };
    if
    :: woken < WORKERS ->
        atomic { searching++; wake_word[woken] = true; guard = false; woken = 0 }
    :: else -> woken = 0
    fi
}

/* The caller has done S1. */
inline wake_if_useful(is_lonely)
{
    STEP {
        fence_light(me); /* F1 */
        if               /* S2 */
        :: idle_count == 0
#ifndef NO_WAKE
        :: idle_count != 0 ->
            if
            :: searching > MORE
            :: searching <= MORE ->
                if
                :: LOAD(me, WATCHING) != 0 /* the queue is short */
                :: !is_lonely || LOAD(me, WATCHING) == 0 -> wake_one(WORKERS)
                fi
            fi
#else
        :: else
#endif
        fi
    }
}

/* Take one thread from victim. Sets whether there was one. */
inline steal(victim, stuck)
{
    atomic {
        IS_DRAINED(victim) && HAS_ROOM(me);
        memory[QUEUE(victim)] = memory[QUEUE(victim)] | inbox[victim];
        inbox[victim] = 0;
        seen = FIRST(memory[QUEUE(victim)]);
        memory[QUEUE(victim)] = memory[QUEUE(victim)] - seen;
        if
        :: seen == 0 && stuck -> seen = memory[NEXT(victim)]; memory[NEXT(victim)] = 0
        :: else
        fi;
        found = seen != 0;
        seen = seen | LOAD(me, QUEUE(me));
        if
        :: found -> put(me, QUEUE(me), seen, true)
        :: else
        fi;
        seen = 0
    }
}

inline steal_from_all()
{
    STEP {
        do
        :: atomic { other < WORKERS && !found && (other == me || !HAS_WORK(other)) -> other++ }
        :: atomic { other < WORKERS && !found && other != me && HAS_WORK(other) -> seen = 1 };
            steal(other, false);
            other++
        :: atomic { other < WORKERS && !found && other != me && IS_SHORT(other) -> other++ }
        :: atomic { other == WORKERS || found -> other = 0; break }
        od
    }
}

inline anyone_has_work()
{
    STEP {
        do
        :: atomic { other < WORKERS && !found -> found = HAS_WORK(other); other++ }
        :: atomic { other < WORKERS && !found && other != me && IS_SHORT(other) -> other++ }
        :: atomic { other == WORKERS || found -> other = 0; break }
        od
    }
}

/* is_lonely: the worker's own queue has at most one thread */
inline search_done()
{
    STEP {
        atomic { IS_FENCED; is_searching = false; searching--; found = searching <= MORE };
#ifndef SILENT_SEARCHER
        if
        :: found ->
            found = false;
            seen = LOAD(me, QUEUE(me));
            lonely = FIRST(seen) == seen;
            seen = 0;
            wake_if_useful(lonely)
        :: else
        fi;
        lonely = false
#endif
    }
}

inline watch()
{
    STEP {
        quiet = idle_count == WORKERS;
        do
        :: other < WORKERS ->
            atomic {
                stuck = !HAS_TURNED(other);
                TURN(other, false);
                quiet = quiet && (stuck || other == me)
            }
            if
#ifdef NO_NEXT
            :: other != me && HAS_WORK(other) -> steal(other, false); break
            :: other == me || !HAS_WORK(other)
#else
            :: other != me && (HAS_WORK(other) || (stuck && LOAD(me, NEXT(other)) != 0)) ->
                steal(other, stuck);
                break
#ifdef STUCK_SHORT
            :: other != me && inbox[other] == 0
#else
            :: other != me && !stuck && inbox[other] == 0 /* its queue is short */
#endif
            :: other == me || !(HAS_WORK(other) || (stuck && LOAD(me, NEXT(other)) != 0))
#endif
            fi;
            other++
        :: else -> break
        od;
        atomic { other = 0; stuck = false }
    }
}

inline watch_begin()
{
    STEP {
#if defined(NO_WATCHER) || defined(UNWATCHED)
        skip
#else
        if
        :: is_watcher || idle_count == WORKERS
        :: !is_watcher && idle_count != WORKERS ->
            atomic {
                RMW_ACQUIRE_READY(me, WATCHING);
                if
                :: memory[WATCHING] == 0 ->
                    memory[WATCHING] = 1;
                    is_watcher = true;
                    TURN(0, false);
                    TURN(1, false);
#if WORKERS > 2
                    TURN(2, false);
#endif
                :: else
                fi
            }
        fi
#endif
    }
}

inline watch_end()
{
    atomic { HAS_ROOM(me); is_watcher = false; put(me, WATCHING, 0, true) }
}

inline idle_join()
{
    STEP {
        atomic {
            !guard && IS_FENCED;
            guard = true;
            wake_word[me] = false;
            is_idle[me] = true;
            idle_count++; /* W1 */
            found = idle_count == WORKERS
        };
        atomic {
#ifndef ANY_SEARCHER
            searching = searching - is_searching;
#endif
            is_searching = false;
            guard = false
        };
        if
        :: found -> fence_full(me); found = false
#ifdef F2_FULL
        :: else -> fence_full(me)
#else
        :: else -> fence_heavy(me) /* F2 */
#endif
        fi
    }
}

inline idle_leave()
{
    STEP {
        atomic {
            !guard && IS_FENCED;
            if
            :: is_idle[me] -> is_idle[me] = false; idle_count--
            :: else -> is_searching = true
            fi;
            found = is_watcher
        };
        if
        :: is_watcher -> watch_end()
        :: else
        fi;
        if
        :: found || LOAD(me, WATCHING) == 0 -> found = false; wake_if_useful(true)
        :: !found && LOAD(me, WATCHING) != 0
        fi
    }
}

inline sleep_once()
{
    if
    :: wake_word[me] || ALL_DONE
    :: atomic { is_watcher && early_looks != 0 -> early_looks--; is_due = true }
    :: atomic {
        is_watcher && timeout ->
        quiet_looks++;
        assert(quiet_looks < 4); /* otherwise nothing more would happen, but not all threads have run */
        is_due = true
    }
    fi
}

/* W2. Sets found if there is work. */
inline look_again()
{
#ifndef NO_W2
    anyone_has_work();
#endif
    if
    :: !found && is_due ->
        is_due = false;
        watch();
        if
        :: !found && quiet -> /* the watcher's period has reached its maximum */
            watch_end();
#ifndef NO_END_FENCE
            fence_full(me)
#endif
        :: true
        fi;
        quiet = false
    :: else
    fi
}

inline idle_wait()
{
    if
    :: idle_count + 1 < WORKERS ->
        atomic {
            IS_FENCED;
            searching = searching + !is_searching;
            is_searching = true;
            found = HAS_WORK(me)
        };
        steal_from_all()
    :: else
    fi;
    if
    :: found -> search_done()
    :: else ->
        idle_join();
        do
        :: atomic { wake_word[me] || ALL_DONE || found -> found = false; is_due = false; break }
        :: atomic { !(wake_word[me] || ALL_DONE || found) -> skip };
            look_again();
            if
            :: !found -> watch_begin(); sleep_once()
            :: else
            fi
        od;
        idle_leave();
        if
        :: is_searching ->
            found = HAS_WORK(me);
            steal_from_all();
            if
            :: found -> search_done()
            :: else
            fi
        :: else
        fi
    fi;
    found = false
}

inline hog_submits()
{
#ifdef NO_F1
    wake_if_useful(true);
#endif
    if
#ifndef UNWATCHED
    :: atomic { /* rsi_run_soon */
        HAS_ROOM(me);
        seen = LOAD(me, QUEUE(me));
        lonely = seen == 0;
        put(me, NEXT(me), CHILD(t), true); /* S1 */
        seen = 0
    }
#endif
    :: atomic { /* rsi_run_later */
        HAS_ROOM(me);
        seen = LOAD(me, QUEUE(me)) | CHILD(t);
        lonely = FIRST(seen) == seen;
        put(me, QUEUE(me), seen, true); /* S1 */
        seen = 0
    }
    fi;
#ifndef NO_F1
    wake_if_useful(lonely);
#endif
    lonely = false
}

inline pick()
{
    atomic {
        IS_DRAINED(me);
        quiet_looks = 0;
        TURN(me, true);
        seen = LOAD(me, QUEUE(me)) | inbox[me];
        inbox[me] = 0;
        t = LOAD(me, NEXT(me));
        if
        :: t != 0 -> put(me, NEXT(me), 0, true)
        :: else -> t = FIRST(seen)
        fi;
        seen = seen & (255 - t);
        if
        :: LOAD(me, QUEUE(me)) != seen -> put(me, QUEUE(me), seen, true)
        :: else
        fi;
        seen = 0
    }
}

proctype worker(byte me)
{
    FENCE_LOCAL;
    byte other, seen, woken, t;
    bool is_searching, is_watcher, found, quiet, stuck, is_due, lonely;
    do
    :: ALL_DONE -> break
    :: else ->
        pick();
        if
        :: t != 0 ->
#ifndef LEAK
            if
            :: is_searching -> search_done(); found = false
            :: else
            fi;
#endif
            if
            :: IS_HOG(t) ->
#ifndef CHILDLESS
                hog_submits();
#endif
                ALL_BUT_HOGS_DONE
            :: else
            fi;
            atomic { done = done | t; t = 0 }
        :: else -> idle_wait()
        fi
    od
}

/* The kernel thread calls rsi_run_elsewhere and rsi_idle_wake_for. */
proctype submitter(byte me)
{
    byte t = 1, woken, w;
    do
    :: t < SUBMITTED ->
        atomic {
#ifdef COARSE
            if
            :: w = 0
            :: t == 2 -> w = 1
            :: t == 4 -> w = 2
            fi;
#else
            if
            :: w = 0
            :: w = 1
            fi;
#endif
            inbox[w] = inbox[w] | t; /* S1, F1 */
            t = t * 2
        };
        if /* S2 */
        :: idle_count == 0
        :: idle_count != 0 ->
            if
            :: searching > MORE
            :: searching <= MORE -> wake_one(w)
            fi
        fi;
        w = 0
    :: else -> break
    od
}

init {
    atomic {
        run_drain(0);
        run_drain(1);
#if WORKERS > 2
        run_drain(2);
#endif
        run worker(0);
        run worker(1);
#if WORKERS > 2
        run worker(2);
#endif
        run submitter(WORKERS)
    }
}
