/* SPDX-License-Identifier: MIT */
/*
 * sem.c - a counting semaphore that hands each unit to the longest waiter.
 *
 * count and list change under the guard: one locked instruction per call, since releasing the guard is a store.
 * Invariant, while the guard is free: count > 0 implies that the list is empty. So a post with waiters never
 * touches count, a newcomer cannot take a unit from a waiter, and no wake-up is spurious.
 *
 * Lifetime: the thread that acquired the last unit may free the semaphore. A unit added to count can be acquired
 * only after the guard's release, which is the poster's last access. A unit that is handed over is acquired only
 * after the publishing.
 *
 * Rejected: acquiring a unit by compare-and-swap on count without the guard. It saves nothing (the guard is one
 * such instruction too), and the thread could free the semaphore before the poster has released the guard.
 */
#include "core/turn.h"
#include "sync/misuse.h"
#include "sync/waitlist.h"

#include <errno.h>

RSI_INLINE bool take_locked(struct rouse_sem *s)
{
    uint32_t count = rsi_load_relaxed(&s->count);
    if (count == 0)
        return false;
    rsi_store_relaxed(&s->count, count - 1);
    return true;
}

/*
 * The waiter timed out or was cancelled. No unit was handed over, since that claim was the only one to succeed.
 */
static RSI_COLD int leave(struct rouse_sem *s, struct rouse_thread *self, int result)
{
    rsi_test_delay();
    rsi_guard_lock(&s->guard);
    (void)rsi_waitlist_leave(&s->waiters, self);
    rsi_guard_unlock(&s->guard);
    return result;
}

RSI_INLINE int wait_until(struct rouse_sem *s, uint64_t deadline_ns, const void *site)
{
    struct rouse_thread *self = rsi_self();
    /* before a unit is held, and only if the call will probably not sleep */
    if (rsi_load_relaxed(&s->count) > 0)
        rsi_turn_spend(self, 1);

    rsi_guard_lock(&s->guard);
    if (take_locked(s)) {
        rsi_guard_unlock(&s->guard);
        return 0;
    }
    uint64_t ticket =
        rsi_park_prepare(self, ROUSE_WAIT_SEM, s, site, deadline_ns, RSI_PARK_CANCELLABLE);
    rsi_waitlist_push_back(&s->waiters, self);
    rsi_guard_unlock(&s->guard);
    rsi_test_delay();

    int result = rsi_park_commit(self, ticket);
    if (rsi_unlikely(result < 0))
        return leave(s, self, result);
    return 0;
}

void rouse_sem_init(struct rouse_sem *s, uint32_t units, const char *name)
{
    *s = (struct rouse_sem)ROUSE_SEM_INIT_NAMED(units, name);
}

RSI_NOINLINE int rouse_sem_wait(struct rouse_sem *s)
{
    return wait_until(s, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE int rouse_sem_wait_until(struct rouse_sem *s, uint64_t deadline_ns)
{
    return wait_until(s, deadline_ns, RSI_CALLER());
}

int rouse_sem_wait_try(struct rouse_sem *s)
{
    rsi_turn_spend(rsi_self(), 1);
    rsi_guard_lock(&s->guard);
    bool is_taken = take_locked(s);
    rsi_guard_unlock(&s->guard);
    return is_taken ? 0 : -EAGAIN;
}

RSI_NOINLINE int rouse_sem_post(struct rouse_sem *s)
{
    rsi_guard_lock(&s->guard);
    struct rouse_thread *t = rsi_waitlist_claim_first(&s->waiters, 0, RSI_CALLER());
    if (t) {
        rsi_guard_unlock(&s->guard);
        rsi_test_delay();
        rsi_park_publish(t);
        return 0;
    }
    uint32_t count = rsi_load_relaxed(&s->count);
    if (rsi_likely(count != UINT32_MAX))
        rsi_store_relaxed(&s->count, count + 1);
    rsi_guard_unlock(&s->guard);
    return rsi_likely(count != UINT32_MAX) ? 0 : -EOVERFLOW;
}

uint32_t rouse_sem_value(const struct rouse_sem *s)
{
    return rsi_load_relaxed(&s->count);
}

RSI_NOINLINE void rouse_sem_destroy(struct rouse_sem *s)
{
    rsi_guard_lock(&s->guard);
    if (s->waiters.first)
        rsi_misuse("semaphore", s, s->name, "destroyed while waited for", RSI_CALLER(), NULL);
    rsi_guard_unlock(&s->guard);
}
