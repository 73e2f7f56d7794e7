/* SPDX-License-Identifier: MIT */
/*
 * rwlock.c - a reader-writer lock in phases: all waiting readers, one writer, all waiting readers, ...
 *
 * state
 *   WRITER   held for writing
 *   WAITERS  the list is not empty; changes only under the guard, and is never set without a holder: while
 *            threads wait, the lock is handed over and not released
 *   TIMED    the hold of the writer, or of at least one reader, is recorded: its unlock reports its length. Set
 *            by a holder, cleared by the last holder
 *   READERS  how many readers hold it
 * WRITER and READERS are never set together.
 *
 *   read lock     one compare-and-swap, if neither WRITER nor WAITERS; else into the list
 *   write lock    one, from 0; else into the list
 *   read unlock   one, unless it is the last reader and WAITERS: then the oldest writer acquires the lock
 *   write unlock  one, unless WAITERS: then all readers in the list acquire the lock, or the oldest writer
 *
 * A newcomer cannot overtake, since WAITERS closes the fast paths. So a writer waits for the current readers and
 * for at most one phase of readers per writer before it. A reader waits for at most one writer.
 *
 * The list has the readers in front, youngest first, and the writers behind them, oldest first. Readers are
 * admitted all at once, so their order does not matter. Finding the oldest writer means passing each waiting
 * reader, and those readers are admitted when that writer leaves: the list is walked at most once per phase.
 *
 * Lifetime: as in mutex.c. A thread that releases the lock without handing it over does so as its last access,
 * outside the guard.
 *
 * Source: the phase-fair locks of Brandenburg and Anderson.
 */
#include "core/hold.h"
#include "core/turn.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

#define READER 1u
#define READERS (BORROW - 1)
#define BORROW (1u << 28) /* the bit that subtracting a reader from none sets */
#define WRITER RSI_LOCK_HELD
#define WAITERS (1u << 30)
#define TIMED (1u << 31)
_Static_assert(BORROW < WRITER && WRITER < WAITERS,
               "a state below WRITER has no writer, no waiters and no timed hold");

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
 * Acquire pairs with the release of the thread that left last; readers in between pass it on with their own. While
 * every acquisition is recorded, only calls with is_timed succeed.
 */
RSI_INLINE bool take_read(struct rouse_rwlock *l, bool is_timed)
{
    uint32_t state = rsi_load_relaxed(&l->state);
    while (is_timed ? state < RSI_LOCK_HELD : rsi_lock_is_open(state))
        if (rsi_cas_acquire(&l->state, &state, state + READER))
            return true;
    return false;
}

/* As take_read. A lock with readers counts as open here, but then the exchange fails. */
RSI_INLINE bool take_write(struct rouse_rwlock *l, bool is_timed)
{
    uint32_t state = rsi_load_relaxed(&l->state), none = 0;
    return (is_timed ? state == 0 : rsi_lock_is_open(state)) &&
           rsi_cas_acquire(&l->state, &none, WRITER);
}

/*
 * A reader stores its site only while recording, so as not to take the cache line from other readers.
 */
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

/*
 * Set the state after the claimed threads have become the only holders. Release pairs with take_read and
 * take_write.
 */
static void set_holders_locked(struct rouse_rwlock *l, uint32_t holders)
{
    rsi_store_release(&l->state, holders | (l->waiters.first ? WAITERS : 0));
}

/*
 * Hand the lock over. mine is the caller's part of state, WRITER or READER, and the only hold, so with guard and
 * WAITERS no other thread can change state. If there is no thread to hand it to, the caller still holds the lock
 * afterwards, and WAITERS is clear.
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

/*
 * False: state was no longer mine | WAITERS, or no waiter was left. Acquire: the next writer must see what all
 * earlier readers did, as well as this one.
 */
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
 * The waiter timed out or was cancelled. If it was the last waiting writer, the readers behind it join the current
 * readers.
 */
static RSI_COLD void leave(struct wait *w)
{
    struct rouse_rwlock *l = w->l;
    struct rsi_claimed claimed = { 0 };
    rsi_test_delay();
    rsi_guard_lock(&l->guard);
    if (rsi_waitlist_leave(&l->waiters, w->self)) {
        struct rouse_thread *last = l->waiters.last;
        /* pairs with the release of the last writer, for the readers admitted here */
        bool is_written = rsi_load_acquire(&l->state) & WRITER;
        if (last && rsi_waiter(last)->mode == MODE_READ && !is_written)
            claim_readers_locked(l, w->site, &claimed);
        uint32_t by = READER * claimed.count - (l->waiters.first ? 0 : WAITERS);
        rsi_fetch_add_relaxed(&l->state, by);
    }
    rsi_guard_unlock(&l->guard);
    rsi_claimed_publish(&claimed);
}

/* Set WAITERS, or acquire the lock if it is free by now. True: acquired. */
static bool take_or_announce_locked(struct rouse_rwlock *l, uint8_t mode)
{
    uint32_t state = rsi_load_relaxed(&l->state);
    while (!(state & WAITERS)) {
        bool is_free = mode == MODE_READ ? !(state & WRITER) : state == 0;
        uint32_t held = mode == MODE_READ ? state + READER : WRITER;
        /* acquire as in take_read and take_write */
        if (rsi_cas_acquire(&l->state, &state, is_free ? held : state | WAITERS))
            return is_free;
    }
    return false;
}

/*
 * The caller has just acquired l: record its hold from now on. contest: NULL if l was free for it.
 */
static void hold(struct rouse_rwlock *l, uint8_t mode, const void *site,
                 const struct rsi_contest *contest)
{
    enum rouse_wait_kind kind = mode == MODE_READ ? ROUSE_WAIT_READ_LOCK : ROUSE_WAIT_WRITE_LOCK;
    if (rsi_hold_begin(kind, l, &l->name, site, contest))
        rsi_fetch_or_relaxed(&l->state, TIMED);
}

/* As take_read and take_write, while every acquisition is recorded; otherwise false. */
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

/*
 * A reader leaves, and ends its recorded hold if it has one. The hold is counted last; l may be freed by then.
 */
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
        if (is_last && state & TIMED) {
            /* The whole state is exchanged: a reader that arrived meanwhile may have set TIMED. */
            if (rsi_cas_relaxed(&l->state, &state, state & ~TIMED))
                state &= ~TIMED;
        } else if (is_last && state & WAITERS) {
            if (hand_over(l, READER, site))
                break;
            state = rsi_load_relaxed(&l->state);
        } else if (rsi_cas_release(&l->state, &state,
                                   state - READER)) { /* pairs with take_read, take_write */
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
    } while (
        !rsi_cas_release(&l->state, &state, state - READER)); /* pairs with take_read, take_write */
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

/* Threads wait, or the hold is recorded. The hold is counted last; l may be freed by then. */
static RSI_NOINLINE void write_unlock_slow(struct rouse_rwlock *l, const void *site)
{
    struct rsi_hold past = { 0 };
    if (rsi_load_relaxed(&l->state) & TIMED) {
        rsi_hold_end(l, &past);
        rsi_fetch_and_relaxed(&l->state, ~TIMED);
    }
    uint32_t state = WRITER;
    while (!rsi_cas_release(&l->state, &state, 0)) { /* pairs with take_read, take_write */
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
    if (rsi_unlikely(!rsi_cas_release(&l->state, &state, 0))) /* pairs with take_read, take_write */
        write_unlock_slow(l, RSI_CALLER());
}

RSI_NOINLINE void rouse_rwlock_destroy(struct rouse_rwlock *l)
{
    if (rsi_load_relaxed(&l->state) != 0)
        misuse(l, "destroyed while held or waited for", RSI_CALLER());
}
