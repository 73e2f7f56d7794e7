/* SPDX-License-Identifier: MIT */
/*
 * rouse/obs.h - the record of a wait: what a thread waits for, since when, and who ended it.
 *
 * Each thread has one record, which describes its present or last wait. The waiter
 * writes the first half before it can be woken; whoever ends the wait (one thread, decided by one
 * atomic word) writes the second half before the waiter may run. Stamps are raw ticks of the CPU's
 * time-stamp counter (AArch64: CNTVCT_EL0). Stamps and the second half are written only while recording
 * is on: unless ROUSE_OBS=off stands in the environment, or rouse_obs_set_mode says otherwise. What all
 * threads have waited for is then counted in a file of the process's own, in shared memory, which `rouse top` and
 * `rouse report` read: PID.rouse in $ROUSE_OBS_DIR or /dev/shm/rouse-UID, in a PID namespace of its own
 * PID-INODE.rouse. It is taken away when the process ends in good order, and stays when it is killed. Where it
 * cannot be made, nothing is recorded; ROUSE_OBS=counted then says why on standard error.
 */
#ifndef ROUSE_OBS_H
#define ROUSE_OBS_H

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum rouse_wait_kind {
    ROUSE_WAIT_NONE,
    ROUSE_WAIT_MUTEX,
    ROUSE_WAIT_READ_LOCK,
    ROUSE_WAIT_WRITE_LOCK,
    ROUSE_WAIT_COND,
    ROUSE_WAIT_SEM,
    ROUSE_WAIT_BARRIER,
    ROUSE_WAIT_ONCE,
    ROUSE_WAIT_JOIN,
    ROUSE_WAIT_SLEEP,
    ROUSE_WAIT_READ,
    ROUSE_WAIT_WRITE,
    ROUSE_WAIT_ACCEPT,
    ROUSE_WAIT_CONNECT,
    ROUSE_WAIT_BLOCKING,
    ROUSE_WAIT_SET,
    ROUSE_WAIT_POLL, /* also select; the object is the number of descriptors */
    ROUSE_WAIT_KINDS
};

enum rouse_verdict {
    ROUSE_VERDICT_NONE,      /* still waiting, or not recorded */
    ROUSE_VERDICT_USEFUL,    /* what it waited for had happened, and it got it */
    ROUSE_VERDICT_LOST_RACE, /* it had happened, but another took it first */
    ROUSE_VERDICT_FALSE,     /* nothing it waits for had happened */
    ROUSE_VERDICT_EARLY,     /* before its time, and put back to sleep */
    ROUSE_VERDICT_TIMEOUT,
    ROUSE_VERDICT_CANCELLED,
    ROUSE_VERDICTS
};

struct rouse_wait_record {
    uint64_t since_tsc;     /* when the wait began */
    const void *object;     /* the lock, or the descriptor as a number */
    const void *wait_site;  /* return address of the call that waits */
    uint32_t kind;          /* enum rouse_wait_kind */
    uint32_t verdict;       /* enum rouse_verdict, of the last wait that ended */
    uint64_t wake_tsc;      /* when it was ended; 0: not yet */
    const void *wake_site;  /* return address of the call that woke; NULL: the runtime itself */
    uint64_t waker_id;      /* rouse_thread_id of who woke; 0: timer, poller, signal */
    uint64_t wait_count;    /* waits of this thread so far, this one included */
    uint64_t useless_count; /* of their wake-ups: those with the verdict lost-race or false */
};

enum rouse_obs_mode {
    ROUSE_OBS_OFF,
    ROUSE_OBS_COUNTED,
    ROUSE_OBS_LOCKS, /* also every time a lock is got, and how long it is held */
    ROUSE_OBS_TRACE /* counted, and each event goes to a ring of the kernel thread's: the newest stay */
};

/*
 * Switch recording; takes effect on each thread's next wait, and on each lock when it is got next. Returns 0,
 * -EINVAL, or -ENOMEM: there is no memory for ROUSE_OBS_LOCKS, and the mode stays as it was.
 */
int rouse_obs_set_mode(enum rouse_obs_mode mode);

/* Copy the calling thread's record of its last wait. */
void rouse_obs_last_wait(struct rouse_wait_record *record);

/*
 * Print every thread, its state and its backtrace, to the descriptor fd; what SIGQUIT does with standard
 * error, unless the program has a handler of its own for it or ignores it. The others go on meanwhile;
 * each thread's lines are of one instant. Blocks the calling kernel thread. May be called from a signal
 * handler. Threads that run are asked by a signal (SIGRTMAX - 3), so that a system call which a foreign
 * thread makes outside of rouse may return EINTR.
 */
void rouse_obs_dump(int fd);

/*
 * A worker that was stuck, since a user thread of the program's sat in a system call, or computed without a
 * turn, while in its cluster no worker was idle. Another worker, a spare, is added then, if something waits.
 */
struct rouse_stuck {
    uint64_t thread_id;          /* rouse_thread_id of who did it */
    char name[ROUSE_NAME_BYTES]; /* its name */
    uint64_t since_ns;           /* rouse_now_ns, when it was first seen so */
    uint64_t lasted_ns;          /* from then until it was last seen so */
    const void *site; /* where the system call was made, in libc as a rule; NULL: not known */
    int32_t call;     /* its number; -1: not known */
    uint32_t worker;  /* rouse_worker_index */
    bool computes;    /* it ran, and was in no system call */
    bool is_now;      /* it is stuck still */
};

struct rouse_monitor_figures {
    uint64_t stuck_count; /* times that a worker was stuck */
    uint64_t
        refused_count; /* looks that would have added a spare, but for the bound or for want of memory */
    uint32_t spares;       /* there now */
    uint32_t spares_most;  /* there at once so far */
    uint32_t spares_bound; /* 0: nobody looks */
};

/*
 * The last of them, at most 31, the newest first: up to most to out, which may be written to though fewer are
 * returned. Returns how many. Both calls block nobody, and may be made from a signal handler.
 */
unsigned rouse_obs_stuck(struct rouse_stuck *out, unsigned most);
void rouse_obs_monitor(struct rouse_monitor_figures *figures);

/*
 * What the process's threads have waited for since recording began: sums over all of them, those that have ended
 * too. Kinds are enum rouse_wait_kind. A wait is counted when it has ended; a wake-up whose verdict turns out
 * otherwise later goes from one count to the other, so that a count may go down by these.
 */
struct rouse_totals {
    uint64_t calls[ROUSE_WAIT_KINDS]; /* blocking calls that completed, by kind: I/O and sleep */
    uint64_t wakes[ROUSE_WAIT_KINDS][ROUSE_VERDICTS];
    uint64_t wait_ns[ROUSE_WAIT_KINDS];        /* from a wait's begin until its end */
    uint64_t late_ns[ROUSE_WAIT_KINDS];        /* from its end until the thread ran */
    uint64_t waste_ns[ROUSE_WAIT_KINDS];       /* run after wake-ups that were of no use */
    uint64_t lock_contested[ROUSE_WAIT_KINDS]; /* times a lock of the kind was held on arrival */
    uint64_t lock_wait_ns[ROUSE_WAIT_KINDS];   /* until it was got or given up, spinning included */
    uint64_t lock_spin_ns[ROUSE_WAIT_KINDS];   /* of lock_wait_ns */
    uint64_t signals_unheard;                  /* of a condition that nobody waited for */
    uint64_t broadcasts_unheard;
    uint64_t switches;      /* threads put on a CPU */
    uint64_t threads;       /* known and not ended */
    uint64_t threads_ended; /* of those that were known */
    /* What found no room: threads without a record, wake-ups and contests that are missing above; names and code. */
    uint64_t lost_threads, lost_wakes, lost_locks, lost_names;
};

/*
 * Add them up: a walk over all that is recorded, some megabytes with ten thousand threads. Stops nobody, and so is
 * of no one moment: each sum is exact of what happened before the call, and may have some of what happens in it.
 * Returns 0, or -ENODATA while nothing is recorded: recording is off and was never on, or it is refused, or no
 * thread has had to say anything yet; totals is then all 0. Recording that was switched off later keeps its sums.
 * Blocks nobody. Any thread; not from a signal handler.
 */
int rouse_obs_totals(struct rouse_totals *totals);

/* Names for the values above, "?" for others. */
const char *rouse_wait_kind_name(uint32_t kind);
const char *rouse_verdict_name(uint32_t verdict);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
