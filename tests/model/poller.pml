/* SPDX-License-Identifier: MIT */
/*
 * poller.pml - src/core/idle.c and src/io/epoll.c: one idle worker sleeps in the poller and the others on
 * their futexes, and a wake-up must reach each where it sleeps.
 *
 * Two workers fall asleep, are woken, and also poll while they are busy. A kernel thread submits to their
 * inboxes and wakes them. Descriptors become ready. Threads run at once and for a moment only, and idle.pml
 * models the queues. The shared words change by read-modify-writes or under a guard, so no store buffers are
 * needed. Checked: when nothing happens any more, no inbox holds a thread and no event waits in the poller.
 * Only one worker at a time blocks there.
 *
 * mutant NO_INTERRUPT: a worker in the poller is woken like the others
 * mutant ROLE_UNCHECKED: a worker takes the poller's role although it was woken meanwhile
 * mutant ROLE_KEPT: a worker that was woken meanwhile keeps the role
 * mutant ROLE_NOT_LEFT: a worker that leaves the poller keeps the role
 * mutant FLAG_LATE: is_polling is not set under the guard together with the check of is_idle
 * mutant TAKE_REVERSED SUBMISSIONS=3: the poller resets interrupted before it reads the eventfd
 * mutant NOT_TAKEN: the poller does not reset interrupted
 * mutant NO_WORD: the futex does not compare its word
 * mutant NO_W2: a worker that has joined the idle list does not check its inbox again
 */
#define WORKERS 2
#ifndef SUBMISSIONS
#define SUBMISSIONS 2
#endif

bool guard;
/* Protected by the guard. */
bool is_idle[WORKERS], is_polling[WORKERS], wake_word[WORKERS];

bool polling; /* a worker has the poller's role */
bool in_futex[WORKERS];
bool inbox[WORKERS];

/* The kernel's state: what epoll_wait would return. */
byte eventfd;
bool is_ready; /* a descriptor is ready */
bool interrupted;

byte blocked; /* workers in a blocking poll */

inline lock()
{
    atomic { !guard -> guard = true }
}

inline unlock()
{
    guard = false
}

inline take_interrupt()
{
#ifdef TAKE_REVERSED
    interrupted = false;
    eventfd = 0
#else
    eventfd = 0;
#ifndef NOT_TAKEN
    interrupted = false
#endif
#endif
}

inline poll_blocking()
{
    atomic { blocked++; assert(blocked == 1) }
end_poll:
    atomic { is_ready || eventfd != 0; blocked-- }
    if
    :: atomic { is_ready -> is_ready = false; found = true }
    :: !is_ready
    fi;
    if
    :: eventfd != 0 -> take_interrupt()
    :: else
    fi
}

inline sleep_once()
{
    if
    :: wake_word[me]
    :: else ->
        atomic { taken = !polling; polling = true };
        if
        :: taken ->
            lock();
#ifdef FLAG_LATE
            taken = is_idle[me];
            unlock();
            is_polling[me] = taken;
#else
            is_polling[me] = is_idle[me];
            taken = is_idle[me];
            unlock();
#endif
#ifdef ROLE_UNCHECKED
            taken = true;
#endif
            if
#ifndef ROLE_KEPT
            :: !taken -> polling = false
#endif
            :: else
            fi
        :: else
        fi;
        if
        :: taken ->
            poll_blocking();
            lock();
            is_polling[me] = false;
            unlock();
#ifndef ROLE_NOT_LEFT
            polling = false
#endif
        :: else -> /* rsi_futex_wait checks the word and falls asleep in one step */
#ifdef NO_WORD
            in_futex[me] = true;
#else
            in_futex[me] = !wake_word[me];
#endif
end_futex:
            !in_futex[me]
        fi
    fi;
    taken = false
}

/* A busy worker polls from time to time. */
inline poll_busy()
{
    if
    :: atomic { !polling -> polling = true };
        if
        :: atomic { is_ready -> is_ready = false }
        :: !is_ready
        fi;
        polling = false
    :: true
    fi
}

proctype worker(byte me)
{
    bool taken, found;
    do
    ::
        lock();
        wake_word[me] = false;
        is_idle[me] = true;
        unlock();
        do
        :: wake_word[me] || found -> break
        :: else ->
            if
#ifndef NO_W2
            :: inbox[me] -> break
#endif
            :: else -> sleep_once()
            fi
        od;
        lock();
        is_idle[me] = false;
        unlock();
        found = false;
        if
        :: inbox[me] -> inbox[me] = false
        :: else
        fi;
        poll_busy()
    od
}

proctype submitter(byte times)
{
    byte w;
    bool in_poller, was_idle;
    do
    :: times != 0 ->
        times--;
        if
        :: atomic { !inbox[0] -> w = 0 }
        :: atomic { !inbox[1] -> w = 1 }
        fi;
        inbox[w] = true;
        lock();
        was_idle = is_idle[w];
        in_poller = is_polling[w];
        if
        :: was_idle -> is_idle[w] = false; wake_word[w] = true
        :: else
        fi;
        unlock();
        if
#ifndef NO_INTERRUPT
        :: was_idle && in_poller ->
            atomic { was_idle = interrupted; interrupted = true };
            if
            :: !was_idle -> eventfd++
            :: else
            fi
        :: was_idle && !in_poller -> in_futex[w] = false
#else
        :: was_idle -> in_futex[w] = false
#endif
        :: else
        fi;
        atomic { was_idle = false; in_poller = false; w = 0 }
    :: else -> break
    od
}

proctype kernel(byte times)
{
    do
    :: times != 0 ->
        atomic { !is_ready; is_ready = true; times-- }
    :: else -> break
    od
}

/* Nothing else can happen any more. */
proctype judge()
{
    timeout;
    assert(!inbox[0] && !inbox[1] && !is_ready)
}

init {
    atomic {
        run worker(0);
        run worker(1);
        run submitter(SUBMISSIONS);
        run kernel(2);
        run judge()
    }
}
