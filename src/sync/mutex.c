/* SPDX-License-Identifier: MIT */
/*
 * mutex.c - an adaptive lock that a newcomer may barge into, until a sleeper has waited 1 ms.
 *
 * Problem: handing a lock to its oldest waiter at every unlock is fair and slow, since the lock stands
 * still until that waiter runs. Never handing it over is fast and starves sleepers.
 *
 * state, all transitions by compare-and-swap, or by a store of the one who holds lock and guard:
 *   LOCKED   held
 *   WAITERS  the list is not empty; changes under the guard only
 *   WOKEN    one waiter was woken and has neither taken the lock nor gone back to sleep; further unlocks
 *            wake nobody, and stay one instruction
 *   HANDOFF  the first in the list has waited more than 1 ms in vain; the next unlock keeps LOCKED and
 *            makes it the owner. Implies LOCKED and WAITERS
 *   TIMED    the hold is recorded; the next unlock says how long it was. Implies LOCKED; changed by the
 *            one who holds the lock only
 *
 *            lock, fast          0 W K WK -> + LOCKED            (W: WAITERS, K: WOKEN)
 *            unlock, fast        unless W without K, or HANDOFF, or TIMED   -> - LOCKED
 *            unlock, slow        W -> - LOCKED + K, first in the list is woken
 *            unlock, handing     W HANDOFF -> - HANDOFF, owner = first in the list
 *            woken, gets it      K -> + LOCKED - K
 *            woken, too late     LOCKED K -> LOCKED W (HANDOFF), back to the front of the list
 *
 * No wake-up is lost: WAITERS is set while LOCKED is seen, in one step, so the holder's unlock sees it;
 * and while WOKEN keeps unlocks from waking, the woken thread will either unlock itself or, still seeing
 * LOCKED, clear WOKEN in the same step in which it queues.
 *
 * Lifetime: the last to hold the lock may free it once it has unlocked. So an unlock's last access is
 * the one that drops LOCKED; only if it has claimed a waiter, which is still inside lock, it may use the
 * mutex until it publishes that waiter.
 *
 * Every acquisition is recorded on request only, and then each goes the slow way: take compares with a number
 * instead of a constant, an unlock sees TIMED where it looks for WAITERS. Neither way has an instruction more for it.
 *
 * Rejected: spinners that set WOKEN, as Go's do: a stream of spinners then keeps a sleeper asleep for
 * ever, and nobody counts its 1 ms.
 *
 * Source: sync.Mutex of Go for WOKEN and the 1 ms hand-over; the spin on a running owner is Solaris'.
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

/* What a waiter's commit returns: woken to try again, or owner already. */
#define RETRY 0
#define HANDED 1

/* How long newcomers may overtake a sleeper. */
#define PATIENCE_NS 1000000u

/*
 * Spinning: pauses between two looks, doubled each time; and the sum of all, about 10 us. Each look takes
 * the line away from the holder. A first look after 4 pauses makes an operation of two workers that hammer
 * one mutex cost 16 ns, after 32 it is 8; after 64, 7, but a short critical section is then waited for in
 * vain for twice as long.
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
    uint32_t woken;    /* WOKEN while this thread is the one that the bit stands for, else 0 */
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
    rsi_store_release(&m->owner, self); /* its block goes with it to owner_runs */
    rsi_store_relaxed(&m->acquire_site, site);
}

/* One attempt. HANDOFF implies LOCKED, so a lock that is about to be handed over is never barged into.
 * Acquire pairs with the release that dropped LOCKED. */
RSI_INLINE bool take(struct rouse_mutex *m)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    return rsi_lock_is_open(state) && rsi_cas_acquire(&m->state, &state, state | LOCKED);
}

/* The caller has just got m: its hold is recorded from here on. contest: NULL if m was free. */
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

/* No owner: it has just come or is just leaving. */
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

/* Try to take the lock, at least once, and go on while its holder runs elsewhere, for a bounded time. */
static bool spin(struct request *r)
{
    struct rouse_mutex *m = r->m;
    for (unsigned spent = 0, pauses = SPIN_FIRST;; spent += pauses, pauses = more(pauses)) {
        uint32_t state = rsi_load_relaxed(&m->state);
        /* pairs with the release that dropped LOCKED */
        if (!(state & LOCKED) && rsi_cas_acquire(&m->state, &state, (state | LOCKED) & ~r->woken))
            return true;
        if (state & HANDOFF || spent >= r->spin_total || !owner_runs(m))
            return false;
        relax(pauses);
    }
}

/* As spin; while recording, how long it took is counted. */
static bool spin_recorded(struct request *r)
{
    if (rsi_likely(r->contest.since_tsc == 0))
        return spin(r);
    uint64_t since_tsc = rsi_tsc();
    bool is_got = spin(r);
    r->contest.spin_ticks += rsi_tsc() - since_tsc;
    return is_got;
}

/* The time ran out, or a cancel came. HANDOFF was set for the first in the list only. */
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
 * Announce a sleeper and give up the WOKEN that stood for it, in one step that needs LOCKED. False: the
 * lock came free. Relaxed: whoever sees WAITERS takes the guard before it looks at the list.
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

/* Sleep until woken. Returns RETRY (also when the lock came free before), HANDED or -errno. */
static int sleep_queued(struct request *r)
{
    struct rouse_mutex *m = r->m;
    /* The exact time is asked for by those only who were woken in vain. */
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

/* Returns 1 when the caller had to sleep, 0 when not, or -errno. */
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
    /* with a past deadline the sleep ends at once, and still gives others their turn */
    bool is_past = deadline_ns != ROUSE_FOREVER && deadline_ns <= rsi_now_ns();
    r.spin_total = is_past ? 0 : SPIN_TOTAL;
    int result = RETRY;
    rsi_contest_begin(&r.contest, rsi_load_relaxed(&m->acquire_site));
    while (result == RETRY && !spin_recorded(&r)) {
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

/* Whether an unlock that sees this state has to look at the list, or to end a recorded hold. */
RSI_INLINE bool must_wake(uint32_t state)
{
    return state & (WAITERS | TIMED) && (state & (WOKEN | HANDOFF | TIMED)) != WOKEN;
}

/* Drop LOCKED, the last access to m, unless somebody has to be woken. Release pairs with take. */
RSI_INLINE bool drop(struct rouse_mutex *m)
{
    uint32_t state = rsi_load_relaxed(&m->state);
    while (rsi_likely(!must_wake(state)))
        if (rsi_likely(rsi_cas_release(&m->state, &state, state & ~LOCKED)))
            return true;
    return false;
}

/*
 * Under guard and lock nobody else changes state: barging needs it unlocked, all else the guard. Hence
 * stores. Returns the thread to publish, with which the lock is dropped or handed over; NULL: there was
 * none, and the lock is still held.
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

/* What a recorded hold was is counted when others can have the lock already; m may be gone by then. */
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
