/* SPDX-License-Identifier: MIT */
/*
 * rwlock.c - a reader-writer lock in phases: all waiting readers, one writer, all waiting readers, ...
 *
 * state
 *   WRITER   held for writing
 *   WAITERS  the list is not empty; changes under the guard only, and never without a holder: the lock is
 *            handed over, not dropped, while somebody waits
 *   TIMED    the hold of a writer, or of a reader at least, is recorded: its unlock says how long it was. Set by
 *            one who holds the lock, cleared by the last who does
 *   READERS  how many readers hold it
 * Never WRITER and readers together.
 *
 *   read lock     one compare-and-swap, if neither WRITER nor WAITERS; else into the list
 *   write lock    one, from 0; else into the list
 *   read unlock   one, unless it is the last reader and WAITERS: then the oldest writer gets the lock
 *   write unlock  one, unless WAITERS: then all readers in the list get the lock, or the oldest writer
 *
 * A newcomer cannot overtake, since WAITERS closes the fast ways in. So a writer waits for the readers
 * there and for at most one phase of readers for each writer before it; a reader for at most one writer.
 *
 * The list has the readers in front, the youngest first, and the writers behind them, the oldest first:
 * readers are let in all at once, so that their order is of no use. To find the oldest writer costs a
 * look at each waiting reader, and that reader is let in when that writer leaves: no list is walked more
 * than once a phase.
 *
 * Lifetime: as in mutex.c. Whoever drops the lock with nobody to hand it to drops it last of all, outside
 * of the guard.
 *
 * Source: the phases are those of Brandenburg and Anderson's phase-fair locks.
 */
#include "core/hold.h"
#include "core/turn.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

#define READER 1u
#define READERS (BORROW - 1)
#define BORROW (1u << 28) /* what taking a reader from none sets */
#define WRITER RSI_LOCK_HELD
#define WAITERS (1u << 30)
#define TIMED (1u << 31)
_Static_assert(BORROW < WRITER && WRITER < WAITERS,
               "below WRITER is: no writer, no waiters, nothing timed");

/* rsi_waiter.mode */
enum { MODE_READ = 1, MODE_WRITE };

struct wait {
    struct rouse_rwlock *l;
    struct rouse_thread *self;
    const void *site;
    uint64_t deadline_ns;
    unsigned flags;
};

static _Noreturn RSI_COLD void misuse(const struct rouse_rwlock *l, const char *what,
                                      const void *site)
{
    const struct rsi_holder writer = { rsi_load_relaxed(&l->owner),
                                       rsi_load_relaxed(&l->acquire_site) };
    rsi_misuse("reader-writer lock", l, l->name, what, site, &writer);
}

/*
 * Acquire pairs with the release of whoever left last; readers between pass it on, by their own. While every
 * acquisition is recorded only those are let in that say so.
 */
RSI_INLINE bool take_read(struct rouse_rwlock *l, bool is_timed)
{
    uint32_t state = rsi_load_relaxed(&l->state);
    while (is_timed ? state < RSI_LOCK_HELD : rsi_lock_is_open(state))
        if (rsi_cas_acquire(&l->state, &state, state + READER))
            return true;
    return false;
}

/* As take_read. A lock with readers in it is open; the exchange fails then. */
RSI_INLINE bool take_write(struct rouse_rwlock *l, bool is_timed)
{
    uint32_t state = rsi_load_relaxed(&l->state), none = 0;
    return (is_timed ? state == 0 : rsi_lock_is_open(state)) &&
           rsi_cas_acquire(&l->state, &none, WRITER);
}

/* A reader stores its site only while recording: another reader's line is not to be taken for it. */
RSI_INLINE void own_read(struct rouse_rwlock *l, const void *site)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_store_relaxed(&l->acquire_site, site);
}

RSI_INLINE void own_write(struct rouse_rwlock *l, struct rouse_thread *self, const void *site)
{
    rsi_store_relaxed(&l->owner, self);
    rsi_store_relaxed(&l->acquire_site, site);
}

static void claim_readers_locked(struct rouse_rwlock *l, const void *site,
                                 struct rsi_claimed *claimed)
{
    for (struct rouse_thread *t; (t = l->waiters.first) && rsi_waiter(t)->mode == MODE_READ;)
        if (rsi_waitlist_claim(&l->waiters, t, 0, site))
            rsi_claimed_add(claimed, t);
}

static void claim_writer_locked(struct rouse_rwlock *l, const void *site,
                                struct rsi_claimed *claimed)
{
    struct rouse_thread *t = l->waiters.first, *next;
    for (; t; t = next) {
        next = rsi_waiter(t)->next;
        if (rsi_waiter(t)->mode == MODE_WRITE && rsi_waitlist_claim(&l->waiters, t, 0, site)) {
            rsi_claimed_add(claimed, t);
            own_write(l, t, rsi_waiter(t)->record.wait_site);
            return;
        }
    }
}

/* The state once the claimed threads have the lock and nobody else. Release pairs with the takes. */
static void set_holders_locked(struct rouse_rwlock *l, uint32_t holders)
{
    rsi_store_release(&l->state, holders | (l->waiters.first ? WAITERS : 0));
}

/*
 * The lock changes hands. mine is the caller's part of state, WRITER or READER, and all that is held, so
 * that with guard and WAITERS nobody else can change state. Without anybody to hand it to the caller
 * still holds it afterwards, and WAITERS is gone.
 */
static void hand_over_locked(struct rouse_rwlock *l, uint32_t mine, const void *site,
                             struct rsi_claimed *claimed)
{
    bool is_writer;
    if (mine == WRITER) {
        claim_readers_locked(l, site, claimed);
        is_writer = claimed->count == 0;
        if (is_writer)
            claim_writer_locked(l, site, claimed);
    } else {
        claim_writer_locked(l, site, claimed);
        is_writer = claimed->count != 0;
        if (!is_writer)
            claim_readers_locked(l, site, claimed);
    }
    if (claimed->count == 0)
        set_holders_locked(l, mine);
    else
        set_holders_locked(l, is_writer ? WRITER : READER * claimed->count);
}

/* False: it was no longer mine | WAITERS, or nobody was left to hand it to. Acquire: what the readers
 * before did goes to the next writer with what this one did. */
static RSI_NOINLINE bool hand_over(struct rouse_rwlock *l, uint32_t mine, const void *site)
{
    struct rsi_claimed claimed = { 0 };
    rsi_guard_lock(&l->guard);
    if (rsi_load_acquire(&l->state) == (mine | WAITERS))
        hand_over_locked(l, mine, site, &claimed);
    rsi_guard_unlock(&l->guard);
    rsi_test_delay();
    rsi_claimed_publish(&claimed);
    return claimed.count != 0;
}

/*
 * The time ran out, or a cancel came. When the last writer gives up, the readers it kept out go in to
 * those that read.
 */
static RSI_COLD void leave(struct wait *w)
{
    struct rouse_rwlock *l = w->l;
    struct rsi_claimed claimed = { 0 };
    rsi_test_delay();
    rsi_guard_lock(&l->guard);
    if (rsi_waitlist_leave(&l->waiters, w->self)) {
        struct rouse_thread *last = l->waiters.last;
        /* pairs with the release of the last writer, for the readers let in here */
        bool is_written = rsi_load_acquire(&l->state) & WRITER;
        if (last && rsi_waiter(last)->mode == MODE_READ && !is_written)
            claim_readers_locked(l, w->site, &claimed);
        uint32_t by = READER * claimed.count - (l->waiters.first ? 0 : WAITERS);
        rsi_fetch_add_relaxed(&l->state, by);
    }
    rsi_guard_unlock(&l->guard);
    rsi_claimed_publish(&claimed);
}

/* Set WAITERS, or take the lock after all. True: taken. */
static bool take_or_announce_locked(struct rouse_rwlock *l, uint8_t mode)
{
    uint32_t state = rsi_load_relaxed(&l->state);
    while (!(state & WAITERS)) {
        bool is_free = mode == MODE_READ ? !(state & WRITER) : state == 0;
        uint32_t held = mode == MODE_READ ? state + READER : WRITER;
        /* acquire as in the takes */
        if (rsi_cas_acquire(&l->state, &state, is_free ? held : state | WAITERS))
            return is_free;
    }
    return false;
}

/* The caller has just got l: its hold is recorded from here on. contest: NULL if l was free for it. */
static void hold(struct rouse_rwlock *l, uint8_t mode, const void *site,
                 const struct rsi_contest *contest)
{
    enum rouse_wait_kind kind = mode == MODE_READ ? ROUSE_WAIT_READ_LOCK : ROUSE_WAIT_WRITE_LOCK;
    if (rsi_hold_begin(kind, l, &l->name, site, contest))
        rsi_fetch_or_relaxed(&l->state, TIMED);
}

/* As the takes, while every acquisition is recorded; false at any other time. */
static RSI_NOINLINE bool take_timed(struct rouse_rwlock *l, uint8_t mode, const void *site)
{
    if (!rsi_holds_are_timed() || !(mode == MODE_READ ? take_read(l, true) : take_write(l, true)))
        return false;
    hold(l, mode, site, NULL);
    return true;
}

/* Returns 0, with the lock held, or -errno. */
static int wait_for(struct wait *w, uint8_t mode, struct rsi_contest *contest)
{
    struct rouse_rwlock *l = w->l;
    bool is_reader = mode == MODE_READ;
    rsi_guard_lock(&l->guard);
    if (take_or_announce_locked(l, mode)) {
        rsi_guard_unlock(&l->guard);
        return 0;
    }
    enum rouse_wait_kind kind = is_reader ? ROUSE_WAIT_READ_LOCK : ROUSE_WAIT_WRITE_LOCK;
    rsi_contest_begin(contest, rsi_load_relaxed(&l->acquire_site));
    uint64_t ticket = rsi_park_prepare(w->self, kind, l, w->site, w->deadline_ns, w->flags);
    rsi_waiter(w->self)->mode = mode;
    if (is_reader)
        rsi_waitlist_push_front(&l->waiters, w->self);
    else
        rsi_waitlist_push_back(&l->waiters, w->self);
    rsi_guard_unlock(&l->guard);
    rsi_contest_sleep(contest, kind, l, &l->name, w->site);
    rsi_test_delay();
    int result = rsi_park_commit(w->self, ticket);
    contest->has_slept = true;
    rsi_contest_end(contest, kind, l, &l->name, w->site, result >= 0);
    if (result < 0)
        leave(w);
    return result;
}

/* Returns 0, with the lock held, or -errno. */
static RSI_NOINLINE int lock_slow(struct wait *w, uint8_t mode)
{
    struct rsi_contest contest = { 0 };
    if (rsi_load_relaxed(&w->l->owner) == w->self)
        misuse(w->l, "locked again by the thread that holds it for writing", w->site);
    if (take_timed(w->l, mode, w->site))
        return 0;
    int result = wait_for(w, mode, &contest);
    if (result == 0 && rsi_holds_are_timed())
        hold(w->l, mode, w->site, &contest);
    return result;
}

RSI_INLINE int read_lock(struct rouse_rwlock *l, const void *site, uint64_t deadline_ns,
                         unsigned flags)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    if (rsi_unlikely(!take_read(l, false))) {
        struct wait w = { l, self, site, deadline_ns, flags };
        int result = lock_slow(&w, MODE_READ);
        if (result < 0)
            return result;
    }
    own_read(l, site);
    return 0;
}

RSI_INLINE int write_lock(struct rouse_rwlock *l, const void *site, uint64_t deadline_ns,
                          unsigned flags)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    if (rsi_unlikely(!take_write(l, false))) {
        struct wait w = { l, self, site, deadline_ns, flags };
        int result = lock_slow(&w, MODE_WRITE);
        if (result < 0)
            return result;
    }
    own_write(l, self, site);
    return 0;
}

void rouse_rwlock_init(struct rouse_rwlock *l, const char *name)
{
    *l = (struct rouse_rwlock)ROUSE_RWLOCK_INIT_NAMED(name);
}

RSI_NOINLINE void rouse_rwlock_read_lock(struct rouse_rwlock *l)
{
    (void)read_lock(l, RSI_CALLER(), ROUSE_FOREVER, 0);
}

RSI_NOINLINE int rouse_rwlock_read_lock_until(struct rouse_rwlock *l, uint64_t deadline_ns)
{
    return read_lock(l, RSI_CALLER(), deadline_ns, RSI_PARK_CANCELLABLE);
}

RSI_NOINLINE int rouse_rwlock_read_lock_try(struct rouse_rwlock *l)
{
    rsi_turn_spend(rsi_self(), 1);
    if (!take_read(l, false) && !take_timed(l, MODE_READ, RSI_CALLER()))
        return -EBUSY;
    own_read(l, RSI_CALLER());
    return 0;
}

/* A reader leaves, and ends a recorded hold if it has one. l may be gone when that is counted. */
static RSI_NOINLINE void read_unlock_slow(struct rouse_rwlock *l, const void *site)
{
    struct rsi_hold past = { 0 };
    uint32_t state = rsi_load_relaxed(&l->state);
    if ((state & READERS) == 0)
        misuse(l, "unlocked for reading while nobody reads", site);
    if (state & TIMED)
        rsi_hold_end(l, &past);
    for (;;) {
        bool is_last = (state & READERS) == READER;
        if (is_last &&
            state & TIMED) { /* exchanged whole: a reader that came meanwhile may have set it */
            if (rsi_cas_relaxed(&l->state, &state, state & ~TIMED))
                state &= ~TIMED;
        } else if (is_last && state & WAITERS) {
            if (hand_over(l, READER, site))
                break;
            state = rsi_load_relaxed(&l->state);
        } else if (rsi_cas_release(&l->state, &state, state - READER)) { /* pairs with the takes */
            break;
        }
    }
    if (past.kind != ROUSE_WAIT_NONE)
        rsi_hold_count(&past, &l->name);
}

RSI_NOINLINE void rouse_rwlock_read_unlock(struct rouse_rwlock *l)
{
    uint32_t state = rsi_load_relaxed(&l->state);
    do {
        if (rsi_unlikely((state - READER) & (BORROW | TIMED)) ||
            rsi_unlikely(state == (READER | WAITERS))) {
            read_unlock_slow(l, RSI_CALLER());
            return;
        }
    } while (!rsi_cas_release(&l->state, &state, state - READER)); /* pairs with the takes */
}

RSI_NOINLINE void rouse_rwlock_write_lock(struct rouse_rwlock *l)
{
    (void)write_lock(l, RSI_CALLER(), ROUSE_FOREVER, 0);
}

RSI_NOINLINE int rouse_rwlock_write_lock_until(struct rouse_rwlock *l, uint64_t deadline_ns)
{
    return write_lock(l, RSI_CALLER(), deadline_ns, RSI_PARK_CANCELLABLE);
}

RSI_NOINLINE int rouse_rwlock_write_lock_try(struct rouse_rwlock *l)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1);
    if (!take_write(l, false) && !take_timed(l, MODE_WRITE, RSI_CALLER()))
        return -EBUSY;
    own_write(l, self, RSI_CALLER());
    return 0;
}

/* Somebody waits, or the hold is recorded. l may be gone when that is counted. */
static RSI_NOINLINE void write_unlock_slow(struct rouse_rwlock *l, const void *site)
{
    struct rsi_hold past = { 0 };
    if (rsi_load_relaxed(&l->state) & TIMED) {
        rsi_hold_end(l, &past);
        rsi_fetch_and_relaxed(&l->state, ~TIMED);
    }
    uint32_t state = WRITER;
    while (!rsi_cas_release(&l->state, &state, 0)) { /* pairs with the takes */
        if (hand_over(l, WRITER, site))
            break;
        state = WRITER;
    }
    if (past.kind != ROUSE_WAIT_NONE)
        rsi_hold_count(&past, &l->name);
}

RSI_NOINLINE void rouse_rwlock_write_unlock(struct rouse_rwlock *l)
{
    if (rsi_unlikely(rsi_load_relaxed(&l->owner) != rsi_self()))
        misuse(l, "unlocked for writing by a thread that does not hold it", RSI_CALLER());
    rsi_store_relaxed(&l->owner, NULL);
    uint32_t state = WRITER;
    if (rsi_unlikely(!rsi_cas_release(&l->state, &state, 0))) /* pairs with the takes */
        write_unlock_slow(l, RSI_CALLER());
}

RSI_NOINLINE void rouse_rwlock_destroy(struct rouse_rwlock *l)
{
    if (rsi_load_relaxed(&l->state) != 0)
        misuse(l, "destroyed while held or waited for", RSI_CALLER());
}
