/* SPDX-License-Identifier: MIT */
/*
 * herd.h - threads that call select() on many descriptors, with a select() as in old kernels.
 *
 * Problem: what did broadcast wake-ups, wide locks and clock ticks each cost? The old kernels are gone, so
 * the layer (layer.c) is a small select() of the benchmark's own over descriptors of its own, in which each
 * of the four is a switch; the kernel below it only runs threads and keeps time. All of it lies in one
 * mapping, shared with forked processes, whose threads take part as they did then.
 *
 *   wake         broadcast  a thread that has ever selected on a descriptor stays tied to it; each event wakes
 *                           all tied threads that sleep, whatever they select on now (HP-UX 11.23)
 *                precise    each event wakes only threads that select on it now: they are tied during the call
 *   sched lock   process    putting a thread on a run queue, or taking it off, acquires one lock of the whole
 *                           process, or of a family of forked processes (HP-UX 11.23)
 *                thread     each thread has its own lock
 *   select lock  global     one lock covers all selects (FreeBSD before 7)
 *                fine       each descriptor and each thread has its own lock
 *   timer        tick       time-outs are counted in ticks, rounded up; a tick wakes all threads
 *                           that are due; a thread that was woken early goes back to sleep
 *                exact      the kernel's timer wakes each thread at its time
 *
 * The same herd (member.c) also runs on poll(2) and on rouse_poll, with eventfds for descriptors.
 *
 * Load: there are T members. Member i selects on its own window of S descriptors, or shares it with others
 * (--share). Each has once selected on all windows. The first half passes tokens round: a member that takes an
 * event posts one to the next member's window. No event occurs in the windows of the other half, whose calls
 * end by their time-out. Without descriptors (S is 0), all calls time out. In a stepped run there are no tokens:
 * the measuring thread posts one event at a time, whenever all members sleep.
 */
#ifndef BENCH_HERD_HERD_H
#define BENCH_HERD_HERD_H

#include "impl.h"

#define HERD_MEMBERS_MAX BENCH_HERD_MOST
#define HERD_TAKEN_MAX 16u
#define HERD_CONTROL 0u
#define HERD_CLOCK 1u
#define HERD_OTHERS 2u
#define HERD_STAMPS 32768u /* timer wake-ups recorded per member; later ones are only counted */

/* A lock that counts its waits. A waiter spins briefly, then sleeps. Works across processes. */
struct herd_lock {
    _Alignas(64) _Atomic uint32_t state; /* 0 free, 1 held, 2 held and perhaps waited for */
    uint32_t queued;                     /* scheduling locks: runnable threads that it covers */
};

struct herd_waits {
    uint64_t taken, contended, wait_ns;
};

struct herd_fd {
    _Alignas(64) struct herd_lock lock;
    /* Protected by the lock: */
    uint32_t pending; /* events not taken yet */
    uint64_t tied[HERD_MEMBERS_MAX / 64];
};

enum herd_cause { HERD_EVENT = 1, HERD_TIMER = 2, HERD_STOP = 4 };

/* The verdicts of wake-ups. */
struct herd_verdicts {
    uint64_t useful;    /* found an event to take */
    uint64_t lost_race; /* another thread took the event first */
    uint64_t none;      /* false: there was no event on its descriptors */
    uint64_t early;     /* the timer woke it before its time */
    uint64_t timeout;   /* the timer woke it in time or late */
};

struct herd_stamp {
    uint64_t at_ns;   /* the moment at which the timer acted */
    uint64_t late_ns; /* UINT64_MAX: the wake-up was early and has no lateness */
};

/* CPU time and switches. */
struct herd_use {
    uint64_t user_ns, system_ns, voluntary, involuntary;
};

struct herd_counts {
    uint64_t calls, events; /* calls that it completed; events that it posted */
    struct herd_verdicts verdicts;
    struct herd_waits sched, select;
    uint64_t stamps;
};

struct herd;

/* One thread of the herd. Its lock, or the select lock if that is global, guards the members that follow it. */
struct herd_member {
    struct herd_lock lock;
    uint32_t cause; /* enum herd_cause: why it has been or is to be woken */
    bool hit;       /* one of the events that woke it was in its set */
    bool asleep, notified;
    uint32_t first, count; /* its current set; count 0: none */
    uint64_t deadline_ns, due_tick, woken_ns;

    struct herd_lock sched;
    _Alignas(64) _Atomic uint32_t go; /* futex: 1 when it is on the run queue */
    uint32_t tied; /* how many descriptors of its set it is tied to, from the first one on */
    unsigned index;
    struct herd *herd;
    struct herd_counts counts; /* written only by the member, read when it rests */
    struct herd_use used;      /* CPU time and switches of a forked process */
    struct herd_stamp *stamp;
    struct pollfd *polled; /* poll(2), rouse_poll */
    int pid;
    uint64_t random;
    struct bench_sem start;
    struct bench_thread thread;
};

struct herd {
    struct bench_run *run;
    const struct bench_options *options;
    unsigned members, active, windows; /* active: members with tokens */
    unsigned sets;                     /* descriptors per window */
    struct herd_fd *fd;                /* windows * sets */
    int *eventfd;                      /* the same, for poll(2) and rouse_poll */
    struct herd_member *member;        /* members, then the pure wakers: HERD_CONTROL, HERD_CLOCK */
    int futex_private;

    struct herd_lock sched, select;
    _Alignas(64) _Atomic uint64_t tick;
    _Atomic uint64_t tick_ns;
    _Alignas(64) _Atomic bool stop; /* the sample is over */
    _Atomic bool quit;              /* the run is over */
    _Atomic uint32_t round, finished;
    _Alignas(64) _Atomic uint32_t asleep;
    _Alignas(64) _Atomic uint64_t hops; /* events taken in this sample */
    _Atomic uint64_t hops_most;         /* from this number on, tokens end */
    _Atomic uint32_t tokens;            /* tokens that still go round */
    struct bench_sem done;

    unsigned created; /* threads */
    bool has_clock;
    struct bench_thread clock;
    struct herd_use used; /* in all samples */
};

uint64_t herd_now_ns(void);
/* Sleep while *word is value. deadline_ns UINT64_MAX: no deadline. Returns false when the deadline has passed. */
bool herd_futex_wait(const struct herd *h, _Atomic uint32_t *word, uint32_t value,
                     uint64_t deadline_ns);
void herd_futex_wake(const struct herd *h, _Atomic uint32_t *word, int count);
void herd_lock(const struct herd *h, struct herd_lock *lock, struct herd_waits *waits);
void herd_unlock(const struct herd *h, struct herd_lock *lock);

static inline uint32_t herd_window(const struct herd *h, unsigned member)
{
    return member / h->options->share * h->sets;
}

/* Record that the timer, which acted at at_ns, woke a call of m. now_ns shows how late or early it was. */
void herd_note_timer(struct herd_member *m, uint64_t at_ns, uint64_t now_ns);

/*
 * One call: wait for events in m's window or for the time-out, and take the events. Returns their number, at
 * most HERD_TAKEN_MAX, and stores their positions. Returns 0 on time-out and -1 when the sample is over.
 */
int herd_layer_call(struct herd_member *m, uint32_t *taken);
int herd_poll_call(struct herd_member *m, uint32_t *taken);
int herd_rouse_call(struct herd_member *m, uint32_t *taken);

/* Post an event on descriptor number at. */
void herd_layer_post(struct herd_member *by, uint32_t at);
void herd_poll_post(struct herd_member *by, uint32_t at);

/* Tie m to every descriptor, as if it had selected on each once. */
void herd_layer_tie_all(struct herd_member *m);
/* Wake all members, since the sample is over. */
void herd_layer_stop(struct herd_member *by);
static inline uint64_t herd_tick_ns(const struct herd *h)
{
    return UINT64_C(1000000000) / h->options->hz;
}

/* Thread body: deliver the clock's ticks until the run is over. arg is the herd. */
void *herd_layer_tick(void *arg);

/* CPU time and switches of this process so far. */
struct herd_use herd_own_use(void);

void herd_post(struct herd_member *by, uint32_t at);
/* The member's thread calls enter first. run takes one sample. */
void herd_member_enter(struct herd_member *m);
void herd_member_run(struct herd_member *m);
/* The main function of a forked process. */
_Noreturn void herd_process_main(struct herd_member *m);

/* Report the figures of run. */
void herd_report(struct herd *h);

#endif
