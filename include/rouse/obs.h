/* SPDX-License-Identifier: MIT */
/*
 * rouse/obs.h - records of waits: what a thread waited for, since when, and which thread woke it.
 *
 * Each thread has one record, which describes its current or latest wait. The waiting thread writes the first
 * half before it can be woken. The thread that ends the wait writes the second half before the waiter may run;
 * one atomic word decides which thread that is. Timestamps are raw ticks of the CPU's time-stamp counter
 * (AArch64: CNTVCT_EL0).
 *
 * Timestamps and the second half are written only while recording is on. It is on unless the environment
 * variable ROUSE_OBS is "off" or rouse_obs_set_mode changes it. While it is on, the process counts the waits of all
 * its threads in a file in shared memory, which `rouse top` and `rouse report` read: PID.rouse in $ROUSE_OBS_DIR
 * or /dev/shm/rouse-UID. In a PID namespace other than the initial one it is PID-INODE.rouse. The file is removed
 * when the process exits normally, and is kept when the process is killed. If it cannot be created, nothing is
 * recorded; with ROUSE_OBS=counted the reason is printed on standard error.
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
    ROUSE_WAIT_POLL, /* poll and select; object is the number of descriptors */
    ROUSE_WAIT_KINDS
};

/* The verdict on a wake-up: whether it was of use to the thread that it woke. */
enum rouse_verdict {
    ROUSE_VERDICT_NONE,      /* still waiting, or not recorded */
    ROUSE_VERDICT_USEFUL,    /* the awaited event had happened, and the thread acquired it */
    ROUSE_VERDICT_LOST_RACE, /* the event had happened, but another thread took it first */
    ROUSE_VERDICT_FALSE,     /* spurious: no awaited event had happened */
    ROUSE_VERDICT_EARLY,     /* woken before its deadline, and put back to sleep */
    ROUSE_VERDICT_TIMEOUT,
    ROUSE_VERDICT_CANCELLED,
    ROUSE_VERDICTS
};

struct rouse_wait_record {
    uint64_t since_tsc;     /* when the wait began, in ticks */
    const void *object;     /* the lock, or the descriptor's number */
    const void *wait_site;  /* return address of the call that waits */
    uint32_t kind;          /* enum rouse_wait_kind */
    uint32_t verdict;       /* enum rouse_verdict, of the latest wait that ended */
    uint64_t wake_tsc;      /* when the wait was ended, in ticks; 0: not yet */
    const void *wake_site;  /* return address of the call that woke; NULL: the runtime itself */
    uint64_t waker_id;      /* rouse_thread_id of the waker; 0: timer, poller or signal */
    uint64_t wait_count;    /* waits of this thread so far, including this one */
    uint64_t useless_count; /* its wake-ups so far with the verdict LOST_RACE or FALSE */
};

enum rouse_obs_mode {
    /* Record nothing. */
    ROUSE_OBS_OFF,
    /*
     * Count waits and wake-ups, with their times. A worker whose turns take less than 2 us on average times a random sample
     * of them, so that recording stays cheap; its times are then estimates.
     */
    ROUSE_OBS_COUNTED,
    /* Also count every lock acquisition, and how long the lock is held. */
    ROUSE_OBS_LOCKS,
    /* As COUNTED; also write each event to a ring buffer per kernel thread, which keeps the newest events. */
    ROUSE_OBS_TRACE,
    /* As COUNTED, with the time of every wait. LOCKS and TRACE time every wait, too. */
    ROUSE_OBS_EXACT
};

/*
 * Set the recording mode. Each thread follows from its next wait on, and each lock from its next acquisition on.
 *
 * Returns  0; -EINVAL; -ENOMEM (not enough memory for ROUSE_OBS_LOCKS; the mode is unchanged).
 */
int rouse_obs_set_mode(enum rouse_obs_mode mode);

/* Copy the calling thread's record of its latest wait. */
void rouse_obs_last_wait(struct rouse_wait_record *record);

/*
 * Print every thread, its state and its backtrace to the descriptor fd.
 *
 * SIGQUIT does the same to standard error, unless the program handles or ignores that signal. Other threads keep
 * running; the lines of one thread are of one instant. The call interrupts running threads with a signal
 * (SIGRTMAX - 3), so a system call that a foreign thread makes outside rouse may return EINTR.
 *
 * Blocks   the calling kernel thread. May be called from a signal handler.
 */
void rouse_obs_dump(int fd);

/*
 * A stuck worker: its user thread stayed in a system call, or computed without yielding, while no worker of the
 * cluster was idle. If threads wait to run, the runtime then adds another worker, called a spare.
 */
struct rouse_stuck {
    /* rouse_thread_id and name of the thread that occupied the worker. */
    uint64_t thread_id;
    char name[ROUSE_NAME_BYTES];
    /* rouse_now_ns when the worker was first seen stuck. */
    uint64_t since_ns;
    /* From then until it was last seen stuck. */
    uint64_t lasted_ns;
    /* Where the system call was made, usually in libc. NULL: unknown. */
    const void *site;
    /* The system call's number. -1: unknown. */
    int32_t call;
    /* The worker's number, as returned by rouse_worker_index. */
    uint32_t worker;
    /* The thread was running, not in a system call. */
    bool computes;
    /* The worker is still stuck. */
    bool is_now;
};

struct rouse_monitor_figures {
    /* How often a worker was stuck. */
    uint64_t stuck_count;
    /* How often a check would have added a spare, had the limit and the memory allowed it. */
    uint64_t refused_count;
    /* Spares that exist now. */
    uint32_t spares;
    /* The most that have existed at once. */
    uint32_t spares_most;
    /* The limit. 0: nothing checks for stuck workers. */
    uint32_t spares_bound;
};

/*
 * Copy the latest cases of a stuck worker to out, newest first: at most `most`, and at most 31. Returns how many.
 * All `most` elements of out may be overwritten, even if fewer are returned.
 *
 * Blocks   never, as does rouse_obs_monitor. Both may be called from a signal handler.
 */
unsigned rouse_obs_stuck(struct rouse_stuck *out, unsigned most);
void rouse_obs_monitor(struct rouse_monitor_figures *figures);

/*
 * Sums over the waits of all threads of the process since recording began, including threads that have ended.
 * Arrays are indexed by enum rouse_wait_kind. A wait is counted when it ends. If the verdict on a wake-up changes
 * later, the wake-up moves from one count to the other, so a count of wakes may decrease.
 */
struct rouse_totals {
    uint64_t calls[ROUSE_WAIT_KINDS]; /* completed blocking calls; I/O and sleep only */
    uint64_t wakes[ROUSE_WAIT_KINDS][ROUSE_VERDICTS];
    uint64_t wait_ns[ROUSE_WAIT_KINDS];        /* from the begin of a wait until its end */
    uint64_t late_ns[ROUSE_WAIT_KINDS];        /* from the end of a wait until the thread ran */
    uint64_t waste_ns[ROUSE_WAIT_KINDS];       /* run time after wake-ups that were of no use */
    uint64_t lock_contested[ROUSE_WAIT_KINDS]; /* lock calls that found the lock held */
    uint64_t lock_wait_ns[ROUSE_WAIT_KINDS]; /* until it was acquired or given up, with spinning */
    uint64_t lock_spin_ns[ROUSE_WAIT_KINDS]; /* the part of lock_wait_ns spent spinning */
    uint64_t signals_unheard;                /* of a condition that no thread waited for */
    uint64_t broadcasts_unheard;             /* likewise */
    uint64_t switches;                       /* how often a worker began to run a thread */
    uint64_t threads;                        /* recorded threads that have not ended */
    uint64_t threads_ended;                  /* recorded threads that have ended */
    /*
     * Losses for lack of room: threads without a record, wake-ups and contended lock calls that are missing from
     * the counts above, and names of threads and of code.
     */
    uint64_t lost_threads, lost_wakes, lost_locks, lost_names;
};

/*
 * Compute the sums, by reading all records: some megabytes for ten thousand threads.
 *
 * No thread is stopped, so the sums are not of one instant. Each includes everything before the call, and
 * may include some of what happens during it. Sums remain after recording is switched off.
 *
 * Returns  0; -ENODATA if nothing has been recorded: recording was never on, its file could not be created, or no
 *          thread has waited yet. totals is then all 0.
 * Blocks   never. Any thread may call it, but not a signal handler.
 */
int rouse_obs_totals(struct rouse_totals *totals);

/* Names of the values above; "?" for any other value. */
const char *rouse_wait_kind_name(uint32_t kind);
const char *rouse_verdict_name(uint32_t verdict);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
