/* SPDX-License-Identifier: MIT */
/*
 * park.h - the one way to wait and to wake; all that the folders above core may see of it.
 *
 * A wait, in the waiter:
 *     ticket = rsi_park_prepare(self, kind, object, site, deadline_ns, flags);
 *     publish (self, ticket) where wakers look, under the object's guard; or call rsi_park_abandon
 *     result = rsi_park_commit(self, ticket);
 * and in whoever ends it:
 *     if (rsi_park_claim(t, ticket, result, site)) rsi_park_publish(t);
 * Exactly one claim of a ticket succeeds, be it a waker's, the timer's or a cancel's; the winner alone
 * writes the second half of the wait record and makes the thread runnable. Between prepare and commit
 * the waiter must not block, and a prepared wait is either committed or abandoned.
 *
 * t may have ended and be another thread by the time of the claim: control blocks are never unmapped and
 * tickets never repeat, so that a late claim fails.
 */
#ifndef RSI_CORE_PARK_H
#define RSI_CORE_PARK_H

#include "ctx/ctx.h"

#include <rouse/obs.h>
#include <rouse/thread.h>

/* The part of struct rouse_wait_record that is always written; the other is in the slot. */
struct rsi_wait {
    struct rsi_store_thread *slot; /* in the shared file, while recording; else NULL */
    const void *object; /* of a thread that has not run yet: when it was created, while recording */
    const void *wait_site;
    uint32_t kind;
    uint32_t owed; /* no part of it: what the thread owes, while it has RSI_PARK_OWES; its own */
};

/*
 * The part of a thread's control block that waiting needs; first member of struct rouse_thread. A wait
 * touches these two lines and the stack, no more: with thousands of threads each line is a cache miss.
 */
struct rsi_waiter {
    /* 4 * wait number + {0 none, 1 waits, 2 waits and may be cancelled}; the claim word */
    uint64_t claim;
    uint64_t deadline_ns; /* of the wait; written by the waiter before claim */
    /* For the object that it waits for, under that object's guard: */
    struct rouse_thread *next; /* its list of waiters; after a claim, the claimer's own list */
    struct rouse_thread *prev;
    int32_t result;     /* what commit returns; written by the winner */
    uint32_t on_cpu;    /* RSI_CPU_RUNS while it runs, or a worker still stands on its stack */
    struct rsi_ctx ctx; /* while it does not run */

    uint32_t cancel;       /* requests to stop not yet taken; any thread adds */
    uint16_t worker_index; /* where it ran last; read racily by wakers */
    uint16_t home;         /* its cluster's number; 0: no user thread. Any thread may move it */
    uint8_t origin;        /* enum rsi_origin */
    uint8_t life;          /* enum rsi_life */
    bool is_listed;        /* whether it stands in an object's list */
    uint8_t mode;          /* reader or writer, ...: the object's own */
    uint8_t stack_class;   /* of user threads */
    bool is_finishing : 1; /* its keys' destructors run, or have run */
    bool is_slotless : 1;  /* it found no room in the record, which was counted */
    bool has_cold;         /* something was written to rsi_cold(this thread) */
    uint8_t trim_mark;     /* low bits of a wait's number; trim.c's */
    struct rsi_wait record;
};
#if !defined(RSI_ASAN) && !defined(RSI_TSAN)
_Static_assert(offsetof(struct rsi_waiter, cancel) == RSI_CACHE_LINE, "the first line is full");
#endif

/*
 * A bit of cancel, set and cleared by the thread itself: it was woken on behalf of all that wait for some
 * object, and has not yet seen to what woke it. Should it park or end, the wake-up is handed on. The bit
 * stands where a park looks anyway, so that those that owe nothing pay nothing.
 */
#define RSI_PARK_OWES (UINT32_C(1) << 31)

/* on_cpu. Nobody runs the thread while it is not 0: who picked it waits. */
#define RSI_CPU_RUNS 1u
#define RSI_CPU_NEW 3u       /* it has no stack yet */
#define RSI_CPU_ELSEWHERE 4u /* no value of on_cpu: it is another cluster's */
#define RSI_CPU_TRIMMED 2u   /* unused memory of its stack is being given back: trim.c */

enum rsi_origin { RSI_ORIGIN_USER, RSI_ORIGIN_KERNEL, RSI_ORIGIN_FOREIGN };

#define RSI_WORKERS_MAX 1024 /* of all clusters */

struct rsi_store_thread;
struct rsi_worker;
struct rsi_writer;

/* What the calling kernel thread runs; found through one thread-local pointer. */
struct rsi_exec {
    struct rouse_thread *current;
    struct rsi_worker *worker; /* NULL on kernel and foreign threads */
    struct rsi_writer *writer; /* what it counts, while recording: account.c; or NULL */
    uint32_t turn_units;       /* left of the present turn: rsi_turn_spend */
    uint16_t home;      /* of the threads that run here; RSI_HOME_NONE on others than workers */
    uint8_t in_ppoll;   /* of a kernel thread: a publisher must interrupt the call */
    bool is_writerless; /* it asked for a writer, and there was no room */
};

#define RSI_HOME_NONE UINT16_MAX /* that of no thread */

/*
 * The calling kernel thread's exec; one with two NULLs if it has none yet. Read by assembly that the
 * compiler may neither cache nor move over a switch: a thread that parks on one worker and goes on on
 * another must not use the first one's address. (An accessor that is noinline and has a barrier costs a
 * call more.)
 */
extern __thread struct rsi_exec *rsi_tls_exec
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

RSI_INLINE struct rsi_exec *rsi_exec_self(void)
{
    struct rsi_exec *exec;
#if defined(__x86_64__)
    __asm__ volatile("movq rsi_tls_exec@GOTTPOFF(%%rip), %0\n\t"
                     "movq %%fs:(%0), %0"
                     : "=r"(exec)
                     :
                     : "memory");
#else
    __asm__ volatile("adrp %0, :gottprel:rsi_tls_exec\n\t"
                     "ldr %0, [%0, #:gottprel_lo12:rsi_tls_exec]\n\t"
                     "mrs x16, tpidr_el0\n\t"
                     "ldr %0, [x16, %0]"
                     : "=&r"(exec)
                     :
                     : "x16", "memory");
#endif
    return exec;
}

#define RSI_PARK_CANCELLABLE 1u

struct rouse_thread *rsi_foreign_adopt(void);

/* The calling thread, of any kind; a foreign kernel thread is made known at its first call. */
RSI_INLINE struct rouse_thread *rsi_self(void)
{
    struct rouse_thread *self = rsi_exec_self()->current;
    return rsi_likely(self != NULL) ? self : rsi_foreign_adopt();
}

/* The waiter part of a thread. */
RSI_INLINE struct rsi_waiter *rsi_waiter(struct rouse_thread *t)
{
    return (struct rsi_waiter *)t;
}

extern uint32_t rsi_obs_mode;

/* Assembly, since the compilers do not compare with an atomic variable where it lies: this is in each wake-up. */
RSI_INLINE bool rsi_obs_is_on(void)
{
#if defined(__x86_64__)
    bool is_on;
    __asm__ volatile("cmpl $0, %1" : "=@ccne"(is_on) : "m"(rsi_obs_mode));
    return is_on;
#else
    return rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF;
#endif
}

/* The same, or word is not 0: one test for the two, in each switch. */
RSI_INLINE bool rsi_obs_is_on_or(uint32_t word)
{
#if defined(__x86_64__)
    bool is_any;
    __asm__ volatile("orl %2, %1" : "=@ccne"(is_any), "+r"(word) : "m"(rsi_obs_mode));
    return is_any;
#else
    return (rsi_load_relaxed(&rsi_obs_mode) | word) != 0;
#endif
}

/* The call that returns to site, as "function+0x1c (module+0x11fc)", for a program's last line. Returns bytes. */
size_t rsi_obs_site_format(const void *site, char *buffer, size_t bytes);
struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site);

RSI_INLINE uint64_t rsi_park_prepare(struct rouse_thread *self, enum rouse_wait_kind kind,
                                     const void *object, const void *site, uint64_t deadline_ns,
                                     unsigned flags)
{
    struct rsi_waiter *waiter = rsi_waiter(self);
    rsi_store_relaxed(&waiter->record.kind, (uint32_t)kind); /* the census looks at any time */
    waiter->record.object = object;
    waiter->record.wait_site = site;
    uint64_t ticket = (rsi_load_relaxed(&waiter->claim) | 3) +
                      ((flags & RSI_PARK_CANCELLABLE) ? 3 : 2);
    rsi_store_relaxed(&waiter->deadline_ns, deadline_ns);
    rsi_store_release(&waiter->claim, ticket); /* pairs with the acquires in fire and cancel */
    return ticket;
}

/*
 * Sleep until the ticket is claimed. Returns the claimer's result, -ETIMEDOUT or -ECANCELED. A deadline
 * in the past still lets a waker that came first win. Always gives other threads their turn.
 */
int rsi_park_commit(struct rouse_thread *self, uint64_t ticket);

/* Take a prepared wait back. False: it was claimed already, and must be committed to get the result. */
bool rsi_park_abandon(struct rouse_thread *self, uint64_t ticket);

/*
 * The part of a claim that decides it. The winner calls rsi_park_claimed next, and goes on with the t that it
 * returns: so t is not kept over a call that is seldom made.
 */
RSI_INLINE bool rsi_park_claim_bare(struct rouse_thread *t, uint64_t ticket, int result)
{
    struct rsi_waiter *waiter = rsi_waiter(t);
    uint64_t expected = ticket;
    uintptr_t sp = (uintptr_t)rsi_load_relaxed(&waiter->ctx.sp); /* a late claim's may be any */
    __builtin_prefetch((const void *)sp);
    __builtin_prefetch((const void *)(sp + RSI_CACHE_LINE));
    rsi_test_delay();
    if (rsi_unlikely(!rsi_cas_acq_rel(&waiter->claim, &expected, ticket & ~UINT64_C(3))))
        return false;
    waiter->result = result;
    return true;
}

RSI_INLINE struct rouse_thread *rsi_park_claimed(struct rouse_thread *t, int result,
                                                 const void *site)
{
    return rsi_unlikely(rsi_obs_is_on()) ? rsi_account_wake(t, result, site) : t;
}

/*
 * Try to end t's wait. result: 0 or positive for the waiter's own use, or -errno. site: the wake site.
 * True: the caller has won and must call rsi_park_publish(t), soon, once; it may hold guards while
 * claiming and publish after releasing them.
 */
RSI_INLINE bool rsi_park_claim(struct rouse_thread *t, uint64_t ticket, int result,
                               const void *site)
{
    if (!rsi_park_claim_bare(t, ticket, result))
        return false;
    (void)rsi_park_claimed(t, result, site);
    return true;
}
void rsi_park_publish(struct rouse_thread *t);

/* Publish many at once (linked through rsi_waiter.next, ended by NULL); other workers are woken once. */
void rsi_park_publish_list(struct rouse_thread *first);

/* The verdict of the calling thread's last wait, if recording is on. */
void rsi_park_verdict(struct rouse_thread *self, enum rouse_verdict verdict);

/*
 * self owes a wake-up; what says to whom, and settle(what) hands it on: called by self when it is about to
 * park, in between prepare and commit, or to end. settle may take guards, claim and publish, and not block;
 * it is the same in every call.
 */
void rsi_park_owe(struct rouse_thread *self, uint32_t what, void (*settle)(uint32_t what));

RSI_INLINE bool rsi_park_owes(struct rouse_thread *self)
{
    return (rsi_load_relaxed(&rsi_waiter(self)->cancel) & RSI_PARK_OWES) != 0;
}

/* What self owes. is_seen_to: it does so no longer. */
uint32_t rsi_park_debt(struct rouse_thread *self, bool is_seen_to);

/*
 * For a verdict that is known only after another wait: past is the last wait as it is now. False: it was not
 * recorded.
 */
struct rsi_past {
    uint64_t wait_site, wake_site, object, waits;
    uint32_t kind, verdict;
};
bool rsi_park_past(struct rouse_thread *self, struct rsi_past *past);
void rsi_park_past_verdict(struct rouse_thread *self, const struct rsi_past *past,
                           enum rouse_verdict verdict);

/* A signal, or broadcast, of a condition that nobody waits for. */
void rsi_account_unheard_slow(bool is_broadcast);

RSI_INLINE void rsi_account_unheard(bool is_broadcast)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_unheard_slow(is_broadcast);
}

/* A blocking call of a kind, of I/O or a sleep, is over: its result. */
void rsi_account_call_slow(enum rouse_wait_kind kind, long result);

RSI_INLINE void rsi_account_call(enum rouse_wait_kind kind, long result)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_call_slow(kind, result);
}

/* So many threads, more than one, were woken at once. */
void rsi_account_herd(size_t count);

/*
 * A thread found a lock held: from its arrival until it has it or gives up. holder_site: where the holder had
 * got it. Between begin and end it may spin and wait; spin_ticks says for how long it did the one. Before it
 * sleeps it calls sleep, so that a wait that never ends is seen with both its sides, too.
 */
struct rsi_contest {
    uint64_t since_tsc; /* 0: not recorded */
    uint64_t spin_ticks;
    const void *holder_site;
    bool has_slept;
    bool is_shown; /* in the thread's slot */
};

RSI_INLINE void rsi_contest_begin(struct rsi_contest *contest, const void *holder_site)
{
    bool is_on = rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF;
    *contest =
        (struct rsi_contest){ .since_tsc = is_on ? rsi_tsc() : 0, .holder_site = holder_site };
}

/* name: where the address of the lock's name stands. Callable often; not under a guard. */
void rsi_contest_sleep_slow(struct rsi_contest *contest, enum rouse_wait_kind kind,
                            const void *lock, const char *const *name, const void *site);

RSI_INLINE void rsi_contest_sleep(struct rsi_contest *contest, enum rouse_wait_kind kind,
                                  const void *lock, const char *const *name, const void *site)
{
    if (rsi_unlikely(contest->since_tsc != 0))
        rsi_contest_sleep_slow(contest, kind, lock, name, site);
}

void rsi_contest_end_slow(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                          const void *lock, const char *const *name, const void *site, bool is_got);

RSI_INLINE void rsi_contest_end(const struct rsi_contest *contest, enum rouse_wait_kind kind,
                                const void *lock, const char *const *name, const void *site,
                                bool is_got)
{
    if (rsi_unlikely(contest->since_tsc != 0))
        rsi_contest_end_slow(contest, kind, lock, name, site, is_got);
}

/*
 * How long locks are held, while every acquisition is recorded (ROUSE_OBS_LOCKS). The fast ways into a lock are for
 * states below rsi_lock_limit: RSI_LOCK_HELD, which a lock's state reaches when newcomers must not enter; or 0, and
 * each goes the slow way. There the one who got the lock calls begin, and sets a bit of the lock's own if it says
 * true; the unlock that sees that bit calls end, and count once the lock is another's.
 */
#define RSI_LOCK_HELD (UINT32_C(1) << 29)
extern uint32_t rsi_lock_limit;

struct rsi_hold {
    uint64_t ticks, site;
    const void *lock, *holder_site;
    uint32_t
        kind; /* ROUSE_WAIT_NONE: there was none, or it goes on, since it was begun more than once */
};

/* state < rsi_lock_limit. Assembly, since the compilers do not compare with an atomic variable where it lies. */
RSI_INLINE bool rsi_lock_is_open(uint32_t state)
{
#if defined(__x86_64__)
    bool is_open;
    __asm__ volatile("cmpl %2, %1" : "=@ccb"(is_open) : "r"(state), "m"(rsi_lock_limit));
    return is_open;
#else
    return state < rsi_load_relaxed(&rsi_lock_limit);
#endif
}

RSI_INLINE bool rsi_holds_are_timed(void)
{
    return rsi_load_relaxed(&rsi_lock_limit) == 0;
}

/* The calling thread has got a lock, after contest, or at once (NULL). A reader may begin again: it counts once. */
bool rsi_hold_begin(enum rouse_wait_kind kind, const void *lock, const char *const *name,
                    const void *site, const struct rsi_contest *contest);
void rsi_hold_end(const void *lock, struct rsi_hold *past);
void rsi_hold_count(const struct rsi_hold *past, const char *const *name);

/* True while t runs on some CPU, as far as can be told: a spinner may wait for it. Racy by nature. */
RSI_INLINE bool rsi_is_running(struct rouse_thread *t)
{
    return rsi_load_relaxed(&rsi_waiter(t)->on_cpu) == RSI_CPU_RUNS;
}

RSI_INLINE bool rsi_is_user(struct rouse_thread *t)
{
    return rsi_waiter(t)->origin == RSI_ORIGIN_USER;
}

/*
 * One unit of a thread's turn is used up: called by blocking calls that did not have to block, with a
 * cost of cost units of 1,024. When the turn's units are spent, a user thread yields, so that a loop of
 * calls that succeed at once still lets the others run. To be called while nothing is held.
 */
void rsi_turn_spent(struct rouse_thread *self);

RSI_INLINE void rsi_turn_spend(struct rouse_thread *self, unsigned cost)
{
    struct rsi_exec *exec = rsi_exec_self();
    if (rsi_likely(exec->turn_units > cost))
        exec->turn_units -= cost;
    else
        rsi_turn_spent(self);
}

/* Now, or up to some 40 us ago on a worker that is busy: a clock that costs next to nothing. */
uint64_t rsi_now_coarse_ns(void);

/*
 * Lists of waiters, oldest first: struct rouse_waiters of the public objects. Under the object's guard.
 */
struct rouse_waiters;

/*
 * The poller, as core sees it. Registered once, by io. poll looks for finished waits and claims and
 * publishes them; it blocks until there are some, until deadline_ns, or until interrupt is called
 * (deadline_ns 0: it does not block; UINT64_MAX: no limit). One worker at a time polls.
 * interrupt ends a blocking poll, now or the next to come; callable from any thread.
 * Threads blocked in I/O: has_waiters tells whether polling can ever bring something.
 * child: after fork, in the child, single-threaded: drop the parent's and start anew.
 */
struct rsi_poller {
    void (*poll)(uint64_t deadline_ns);
    void (*interrupt)(void);
    bool (*has_waiters)(void);
    void (*child)(void);
    /*
     * NULL all, or of a poller that has something of each worker's own, a ring. own: make it, for the worker with
     * this index, that the program has asked for; spares have none (io/ring.h). turn: hand over what the calling
     * worker has collected and take what has finished, without blocking; is_due: also when nothing was collected. sleep: block until something of the worker's own finishes, until *wake_word is 1
     * and woken by futex, or until deadline_ns; watches: also until poll would find something, and poll
     * then. False: the worker has nothing of its own, and sleeps as if there were no such call.
     */
    void (*own)(unsigned worker_index);
    void (*turn)(bool is_due);
    bool (*sleep)(uint32_t *wake_word, uint64_t deadline_ns, bool watches);
};
void rsi_poller_register(const struct rsi_poller *poller);
void rsi_poller_own(
    unsigned worker_index); /* if there is one that has something of the workers' own */

/* Which way of I/O the program has asked for. */
enum rouse_io rsi_config_io(void);

/* poll without blocking, unless another worker polls. On a worker. */
void rsi_poller_try(void);

/*
 * Something that the worker with this index is to do, soon, on its own kernel thread, between two threads'
 * turns: take is called with the mail, which it may release. From any thread; wakes the worker if it sleeps.
 */
struct rsi_mail {
    struct rsi_mail *next;
    void (*take)(struct rsi_mail *mail);
};
void rsi_mail_send(unsigned worker_index, struct rsi_mail *mail);

/* How many other threads the calling worker has to run. */
uint32_t rsi_worker_others(void);

/*
 * commit for a kernel or foreign thread that waits for descriptors: also returns, with 0, when ppoll says
 * that one of them has one of its events or an error, as its revents tell then; or with ppoll's own error.
 * The ticket is no longer claimable after any return.
 */
struct pollfd;
int rsi_park_commit_ppoll(struct rouse_thread *self, uint64_t ticket, struct pollfd *fds,
                          size_t count);

/*
 * Run fn(arg) on a helper kernel thread and park the calling user thread meanwhile; elsewhere call it
 * directly. Returns 0 or -EAGAIN. Not cancellable. site: the wait site.
 */
int rsi_blocking_run(void (*fn)(void *), void *arg, const void *site);

#endif
