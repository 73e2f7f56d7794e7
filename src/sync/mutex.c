/* SPDX-License-Identifier: MIT */
/*
 * mutex.c - an adaptive lock. A newcomer may barge in until a sleeper has waited 1 ms.
 *
 * Problem: handing the lock to its oldest waiter at every unlock is fair but slow, since the lock is idle until
 * that waiter runs. Never handing it over is fast but starves sleepers.
 *
 * state, changed by compare-and-swap, or by a store of the thread that holds both the lock and the guard:
 *   LOCKED   held
 *   WAITERS  the list is not empty; changes only under the guard
 *   WOKEN    one waiter was woken and has neither acquired the lock nor gone back to sleep; further unlocks
 *            wake no thread, and stay one instruction
 *   HANDOFF  the first waiter in the list has waited for more than 1 ms and lost a race; the next unlock keeps
 *            LOCKED and makes that waiter the owner. Implies LOCKED and WAITERS
 *   TIMED    the hold is recorded; the next unlock reports its length. Implies LOCKED; changed only by the
 *            thread that holds the lock
 *
 *            lock, fast          0 W K WK -> + LOCKED            (W: WAITERS, K: WOKEN)
 *            unlock, fast        unless W without K, or HANDOFF, or TIMED   -> - LOCKED
 *            unlock, slow        W -> - LOCKED + K, first in the list is woken
 *            unlock, handing     W HANDOFF -> - HANDOFF, owner = first in the list
 *            woken, acquires     K -> + LOCKED - K
 *            woken, too late     LOCKED K -> LOCKED W (HANDOFF), back to the front of the list
 *
 * No wake-up is lost. WAITERS is set in one step with the check of LOCKED, so the holder's unlock sees it. While
 * WOKEN keeps unlocks from waking, the woken thread will either unlock itself or, if it still sees LOCKED, clear
 * WOKEN in the same step in which it queues.
 *
 * Lifetime: the last thread to hold the lock may free it after unlocking. So the last access of an unlock is the
 * one that clears LOCKED. Only an unlock that has claimed a waiter, which is still inside lock, may use the mutex
 * until it publishes that waiter.
 *
 * Recording every acquisition is optional, and then each takes the slow path: take compares with a variable instead
 * of a constant, and an unlock sees TIMED where it checks WAITERS. So neither fast path has an extra instruction
 * for it.
 *
 * Rejected: spinners that set WOKEN, as in Go. A stream of spinners then keeps a sleeper asleep forever, and
 * nothing measures its 1 ms.
 *
 * Source: sync.Mutex of Go for WOKEN and the hand-over after 1 ms; Solaris for spinning while the owner runs.
 */
#include "sync/mutex.h"

#include "core/hold.h"
#include "core/turn.h"
#include "os/os.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

#define LOCKED RSI_LOCK_HELD
#define WAITERS 2u
#define WOKEN 4u
#define HANDOFF 8u
#define TIMED 16u

/* Results of a waiter's rsi_park_commit: woken to try again, or owner already. */
#define RETRY 0
#define HANDED 1

/* How long newcomers may overtake a sleeper. */
#define PATIENCE_NS 1000000u

/*
 * Spinning: the number of pauses between two checks, doubled each time, and the sum of all, about 10 us. Each check
 * takes the cache line away from the holder. Two workers that contend for one mutex need 16 ns per operation if the
 * first check follows 4 pauses, 8 ns after 32, and 7 ns after 64; but with 64, a short critical section is
 * overslept by twice as long.
 */
#define SPIN_FIRST 32u
#define SPIN_MOST 256u
#define SPIN_TOTAL 480u

struct request {
    struct rouse_mutex *m;
    struct rouse_thread *self;
    const void *site;
    uint64_t deadline_ns;
    unsigned flags;
    uint32_t spin_total;
    uint32_t woken;    /* WOKEN while that bit stands for this thread, else 0 */
    uint64_t since_ns; /* when it first went to sleep; 0: not yet */
    struct rsi_contest contest;
};

_Noreturn static RSI_COLD void misuse(const struct rouse_mutex *m, const char *what,
                                      const void *site)
{
    const struct rsi_holder holder = { rsi_load_relaxed(&m->owner),
                                       rsi_load_relaxed(&m->acquire_site) };
    rsi_misuse("mutex", m, m->name, what, site, &holder);
}

RSI_INLINE void own(struct rouse_mutex *m, struct rouse_thread *self, const void *site)
{
    rsi_store_release(&m->owner, self); /* pairs with owner_runs, which reads the control block */
    rsi_store_relaxed(&m->acquire_site, site);
}

/*
 * One attempt. HANDOFF implies LOCKED, so a thread never barges into a lock that is about to be handed over.
 * Acquire pairs with the release that cleared LOCKED.
 */
RSI_INLINE bool take(struct rouse_mutex *m)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    return rsi_lock_is_open(state) && rsi_cas_acquire(&m->state, &state, state | LOCKED);
}

/* The caller has just acquired m: record its hold from now on. contest: NULL if m was free. */
static void hold(struct rouse_mutex *m, const void *site, const struct rsi_contest *contest)
{
    if (rsi_hold_begin(ROUSE_WAIT_MUTEX, m, &m->name, site, contest))
        rsi_fetch_or_relaxed(&m->state, TIMED);
}

/* As take, while every acquisition is recorded; false at any other time. */
static RSI_NOINLINE bool take_timed(struct rouse_mutex *m, struct rouse_thread *self,
                                    const void *site)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    if (!rsi_holds_are_timed() || state & LOCKED ||
        !rsi_cas_acquire(&m->state, &state, state | LOCKED)) /* pairs as in take */
        return false;
    own(m, self, site);
    hold(m, site, NULL);
    return true;
}

/* No owner: it has just acquired the lock, or is just releasing it. */
static bool owner_runs(struct rouse_mutex *m)
{
    struct rouse_thread *owner = rsi_load_acquire(&m->owner); /* pairs with own */
    return !owner || rsi_is_running(owner);
}

static unsigned more(unsigned pauses)
{
    return pauses < SPIN_MOST ? 2 * pauses : SPIN_MOST;
}

static void relax(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        rsi_cpu_relax();
}

/*
 * Try to acquire the lock, at least once, and repeat while its holder runs on another CPU, for a bounded time. While
 * recording is on, that time is counted. The first attempt is not: it takes less than a time stamp.
 */
static bool spin(struct request *r)
{
    struct rouse_mutex *m = r->m;
    uint64_t since_tsc = 0;
    bool is_acquired = false;
    for (unsigned spent = 0, pauses = SPIN_FIRST;; spent += pauses, pauses = more(pauses)) {
        uint32_t state = rsi_load_relaxed(&m->state);
        /* pairs with the release that cleared LOCKED */
        is_acquired = !(state & LOCKED) &&
                      rsi_cas_acquire(&m->state, &state, (state | LOCKED) & ~r->woken);
        if (is_acquired || state & HANDOFF || spent >= r->spin_total || !owner_runs(m))
            break;
        if (spent == 0 && r->contest.since_tsc)
            since_tsc = rsi_tsc();
        relax(pauses);
    }
    if (since_tsc)
        r->contest.spin_ticks += rsi_tsc() - since_tsc;
    return is_acquired;
}

/* The waiter timed out or was cancelled. HANDOFF was set only for the first in the list. */
static void leave(struct request *r)
{
    struct rouse_mutex *m = r->m;
    rsi_test_delay();
    rsi_guard_lock(&m->guard);
    uint32_t clear = m->waiters.first == r->self ? HANDOFF : 0;
    if (rsi_waitlist_leave(&m->waiters, r->self)) {
        clear |= m->waiters.first ? 0 : WAITERS;
        if (clear)
            __atomic_fetch_and(&m->state, ~clear, __ATOMIC_RELAXED);
    }
    rsi_guard_unlock(&m->guard);
}

/*
 * Announce a sleeper and clear the WOKEN that stood for it, in one step that requires LOCKED. False: the lock was
 * released. Relaxed: a thread that sees WAITERS takes the guard before it reads the list.
 */
static bool announce_locked(struct request *r, uint32_t bits)
{
    uint32_t state = rsi_load_relaxed(&r->m->state);
    do {
        if (!(state & LOCKED))
            return false;
    } while (!rsi_cas_relaxed(&r->m->state, &state, (state | bits) & ~r->woken));
    return true;
}

/* Sleep until woken. Returns RETRY (also if the lock was released before), HANDED or -errno. */
static int sleep_queued(struct request *r)
{
    struct rouse_mutex *m = r->m;
    /* Only a thread that has lost a race reads the exact time. */
    bool is_late = r->since_ns && rsi_now_ns() - r->since_ns > PATIENCE_NS;

    rsi_guard_lock(&m->guard);
    if (!announce_locked(r, r->woken && is_late ? WAITERS | HANDOFF : WAITERS)) {
        rsi_guard_unlock(&m->guard);
        return RETRY;
    }
    if (r->woken)
        rsi_waitlist_verdict(r->self, ROUSE_VERDICT_LOST_RACE);
    if (!r->since_ns)
        r->since_ns = rsi_now_coarse_ns();
    uint64_t ticket =
        rsi_park_prepare(r->self, ROUSE_WAIT_MUTEX, m, r->site, r->deadline_ns, r->flags);
    if (r->woken)
        rsi_waitlist_push_front(&m->waiters, r->self);
    else
        rsi_waitlist_push_back(&m->waiters, r->self);
    rsi_guard_unlock(&m->guard);
    rsi_test_delay();

    int result = rsi_park_commit(r->self, ticket);
    r->woken = result == RETRY ? WOKEN : 0;
    if (result < 0)
        leave(r);
    return result;
}

/* Returns 1 if the caller slept, 0 if not, or -errno. */
static RSI_NOINLINE int lock_slow(struct rouse_mutex *m, struct rouse_thread *self,
                                  const void *site, uint64_t deadline_ns, unsigned flags)
{
    if (rsi_load_relaxed(&m->owner) == self)
        misuse(m, "locked again by the thread that holds it", site);
    if (take_timed(m, self, site))
        return 0;
    struct request r = { .m = m, .self = self, .site = site };
    r.deadline_ns = deadline_ns;
    r.flags = flags;
    /* With a past deadline the sleep ends at once, but still lets other threads run. */
    bool is_past = deadline_ns != ROUSE_FOREVER && deadline_ns <= rsi_now_ns();
    r.spin_total = is_past ? 0 : SPIN_TOTAL;
    int result = RETRY;
    rsi_contest_begin(&r.contest, rsi_load_relaxed(&m->acquire_site));
    while (result == RETRY && !spin(&r)) {
        rsi_contest_sleep(&r.contest, ROUSE_WAIT_MUTEX, m, &m->name, site);
        result = sleep_queued(&r);
    }
    r.contest.has_slept = r.since_ns != 0;
    rsi_contest_end(&r.contest, ROUSE_WAIT_MUTEX, m, &m->name, site, result >= 0);
    if (result < 0)
        return result;
    own(m, self, site);
    if (rsi_holds_are_timed())
        hold(m, site, &r.contest);
    return r.since_ns != 0;
}

bool rsi_mutex_lock(struct rouse_mutex *m, struct rouse_thread *self, const void *site)
{
    if (rsi_unlikely(!take(m)))
        return lock_slow(m, self, site, ROUSE_FOREVER, 0) > 0;
    own(m, self, site);
    return false;
}

/* Whether an unlock that sees this state must check the list, or end a recorded hold. */
RSI_INLINE bool must_wake(uint32_t state)
{
    return state & (WAITERS | TIMED) && (state & (WOKEN | HANDOFF | TIMED)) != WOKEN;
}

/* Clear LOCKED, the last access to m, unless a thread must be woken. Release pairs with take. */
RSI_INLINE bool drop(struct rouse_mutex *m)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    while (rsi_likely(!must_wake(state)))
        if (rsi_likely(rsi_cas_release(&m->state, &state, state & ~LOCKED)))
            return true;
    return false;
}

/*
 * With guard and lock held, no other thread changes state: barging requires it unlocked, and everything else
 * requires the guard. So plain stores suffice. Returns the thread to publish; the lock has then been released or
 * handed over. NULL: there was none, and the lock is still held.
 */
static struct rouse_thread *pass_on_locked(struct rouse_mutex *m, const void *site)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    if (!must_wake(state))
        return NULL;
    bool is_handing = state & HANDOFF;
    struct rouse_thread *t =
        rsi_waitlist_claim_first(&m->waiters, is_handing ? HANDED : RETRY, site);
    state &= ~(HANDOFF | (m->waiters.first ? 0 : WAITERS));
    if (t && is_handing)
        own(m, t, rsi_waiter(t)->record.wait_site);
    else if (t)
        state = (state & ~LOCKED) | WOKEN;
    rsi_store_release(&m->state, state); /* pairs with take */
    return t;
}

static void wake_one(struct rouse_mutex *m, const void *site)
{
    do {
        rsi_guard_lock(&m->guard);
        struct rouse_thread *t = pass_on_locked(m, site);
        rsi_guard_unlock(&m->guard);
        if (t) {
            rsi_test_delay();
            rsi_park_publish(t);
            return;
        }
    } while (!drop(m));
}

/* The hold is counted after other threads may have acquired the lock; m may be freed by then. */
static RSI_NOINLINE void unlock_slow(struct rouse_mutex *m, const void *site)
{
    if (rsi_unlikely(rsi_load_relaxed(&m->state) & TIMED)) {
        struct rsi_hold past;
        rsi_hold_end(m, &past);
        rsi_fetch_and_relaxed(&m->state, ~TIMED);
        if (!drop(m))
            wake_one(m, site);
        if (past.kind != ROUSE_WAIT_NONE)
            rsi_hold_count(&past, &m->name);
    } else {
        wake_one(m, site);
    }
}

void rsi_mutex_unlock(struct rouse_mutex *m, struct rouse_thread *self, const void *site)
{
    if (rsi_unlikely(rsi_load_relaxed(&m->owner) != self))
        misuse(m, "unlocked by a thread that does not hold it", site);
    rsi_store_relaxed(&m->owner, NULL);
    if (rsi_unlikely(!drop(m)))
        unlock_slow(m, site);
}

void rouse_mutex_init(struct rouse_mutex *m, const char *name)
{
    *m = (struct rouse_mutex)ROUSE_MUTEX_INIT_NAMED(name);
}

RSI_NOINLINE void rouse_mutex_lock(struct rouse_mutex *m)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    (void)rsi_mutex_lock(m, self, RSI_CALLER());
}

RSI_NOINLINE int rouse_mutex_lock_try(struct rouse_mutex *m)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    if (!take(m))
        return take_timed(m, self, RSI_CALLER()) ? 0 : -EBUSY;
    own(m, self, RSI_CALLER());
    return 0;
}

RSI_NOINLINE int rouse_mutex_lock_until(struct rouse_mutex *m, uint64_t deadline_ns)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    if (rsi_unlikely(!take(m))) {
        int result = lock_slow(m, self, RSI_CALLER(), deadline_ns, RSI_PARK_CANCELLABLE);
        return result < 0 ? result : 0;
    }
    own(m, self, RSI_CALLER());
    return 0;
}

RSI_NOINLINE void rouse_mutex_unlock(struct rouse_mutex *m)
{
    rsi_mutex_unlock(m, rsi_self(), RSI_CALLER());
}

RSI_NOINLINE void rouse_mutex_destroy(struct rouse_mutex *m)
{
    if (rsi_load_relaxed(&m->state) != 0)
        misuse(m, "destroyed while held or waited for", RSI_CALLER());
}
