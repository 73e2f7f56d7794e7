/* SPDX-License-Identifier: MIT */
/*
 * order.c - the queue of threads in accept, and who gets the next connection.
 *
 * Problem: a thread that calls accept while a connection is there may take it, although other threads have waited
 * longer and one of them has just been woken for it. The woken thread finds nothing (a spurious wake-up) and goes to
 * the end of the list. A busy thread takes most of the connections that way.
 *
 * Queue: the waiting threads, oldest first. on_way: threads that were woken and have not tried yet. Both are under
 * the entry's guard.
 *   - Each event wakes one thread of the queue, chosen by the order. It is then on its way, and the connection is
 *     reserved for it.
 *   - A thread that calls accept while another waits or is on its way joins the queue without a try.
 *   - A thread that was on its way and took a connection first leaves on_way and then checks whether there are more.
 *     If there are, and no other thread is on its way, it wakes the next.
 *   - A thread that found nothing (a kernel thread or another process was faster) returns to its old place.
 *
 * Invariant: while the queue is not empty and no thread is on its way, every connection that is there will still be
 * announced by an event.
 *   The first thread of the queue has found nothing since the last event (ready.c, step 4), or is queued because
 *   another was on its way. The thread that leaves on_way checks after that, and so sees a connection whose event
 *   woke nobody. A later event wakes a thread by itself.
 * A chosen thread that was cancelled or timed out cannot be claimed: the next one is chosen.
 *
 * Promotion: under lifo and scatter a thread may be passed over again and again. Choosing a thread marks all older
 * unmarked ones with the time. The oldest thread goes first when its mark is 100 ms old. Marked threads are the
 * oldest ones, in the order of their marks, so looking at the first is enough, and each thread is marked once.
 *
 * Rejected: applying the order when a thread is listed (promotion must be decided when a connection arrives, not when
 * a thread does); trying first and applying the order only to wake-ups. Figures: docs/decisions.md.
 */
#include "io/accept/order.h"

#include "core/turn.h"
#include "io/accept/gates.h"
#include "io/ready.h"
#include "io/uring/multishot.h"

#include <rouse/io.h>

#include <poll.h>

#define TRY_COST 128u /* as in ready.c */
#define PROMOTE_NS UINT64_C(100000000)
/* Scatter chooses among this many of the oldest: a longer walk would hold the guard too long. */
#define SCATTER_MOST 64u

/* A thread in accept, on its stack. Under the guard while it is listed. */
struct rsi_caller {
    struct rsi_caller *next, *prev;
    struct rouse_thread *thread;
    uint64_t ticket;
    uint64_t number;    /* arrival number. 0: never listed */
    uint64_t passed_ns; /* when a younger thread was first preferred. 0: never */
    bool is_listed;
    bool is_on_way;
};

/* List c by its number, oldest first. It is usually the last, or after a spurious wake-up the first. */
static void list_locked(struct rsi_listener *l, struct rsi_caller *c)
{
    struct rsi_caller *before = l->last;
    if (c->number == 0)
        c->number = ++l->callers;
    else if (l->order == ROUSE_ACCEPT_FIFO && l->first != NULL && l->first->number > c->number)
        before = NULL;
    while (before != NULL && before->number > c->number)
        before = before->prev;
    c->prev = before;
    c->next = before != NULL ? before->next : l->first;
    *(c->next != NULL ? &c->next->prev : &l->last) = c;
    *(before != NULL ? &before->next : &l->first) = c;
    if (c->next != NULL && c->passed_ns == 0)
        c->passed_ns = c->next->passed_ns;
    c->is_listed = true;
    l->count++;
}

static void unlist_locked(struct rsi_listener *l, struct rsi_caller *c)
{
    if (!c->is_listed)
        return;
    c->is_listed = false;
    *(c->next != NULL ? &c->next->prev : &l->last) = c->prev;
    *(c->prev != NULL ? &c->prev->next : &l->first) = c->next;
    l->count--;
}

static struct rsi_caller *scatter_locked(struct rsi_listener *l)
{
    uint32_t most = l->count < SCATTER_MOST ? l->count : SCATTER_MOST;
    struct rsi_caller *c = l->first;
    for (uint64_t skip = (rsi_random_next(&l->random) >> 32) % most; skip != 0; skip--)
        c = c->next;
    return c;
}

/* The thread that goes first. The queue is not empty. */
static struct rsi_caller *choose_locked(struct rsi_listener *l)
{
    struct rsi_caller *c = l->first;
    if (l->order == ROUSE_ACCEPT_FIFO || c->next == NULL)
        return c;
    /* Not the coarse clock, which is stale for a thread that has just slept in poll. */
    uint64_t now_ns = rsi_now_ns();
    if (c->passed_ns != 0 && now_ns >= c->passed_ns + PROMOTE_NS)
        return c;
    c = l->order == ROUSE_ACCEPT_LIFO ? l->last : scatter_locked(l);
    for (struct rsi_caller *older = c->prev; older != NULL && older->passed_ns == 0;
         older = older->prev)
        older->passed_ns = now_ns;
    return c;
}

static bool claim_locked(struct rsi_listener *l, struct rsi_caller *c, int result, const void *site,
                         struct rsi_fd_batch *batch)
{
    unlist_locked(l, c);
    return rsi_fdtable_claim(c->thread, c->ticket, result, site, batch);
}

/* Wake the next thread. Returns false if none is left. */
static bool wake_locked(struct rsi_listener *l, const void *site, struct rsi_fd_batch *batch)
{
    while (l->first != NULL) {
        struct rsi_caller *c = choose_locked(l);
        if (!claim_locked(l, c, 0, site, batch))
            continue;
        c->is_on_way = true;
        c->passed_ns = 0;
        l->on_way++;
        return true;
    }
    return false;
}

bool rsi_order_event_locked(struct rsi_fd *entry, bool all, struct rsi_fd_batch *batch)
{
    struct rsi_listener *l = rsi_listener_of(entry);
    /* With turns only one thread is on its way at a time: when it has settled, another process has the turn. */
    if (l->gates != NULL && l->on_way != 0 && !all)
        return false;
    while (wake_locked(l, NULL, batch) && all) {
    }
    return l->is_exclusive && l->first == NULL;
}

void rsi_order_end_locked(struct rsi_fd *entry, const void *site, struct rsi_fd_batch *batch)
{
    struct rsi_listener *l = rsi_listener_of(entry);
    while (l->first != NULL)
        (void)claim_locked(l, l->first, -EBADF, site, batch);
    l->on_way = 0; /* threads on their way notice by the generation */
    rsi_store_relaxed(&entry->flags, (uint8_t)(entry->flags & ~RSI_FD_IS_ORDERED));
}

bool rsi_order_has_waiters_locked(const struct rsi_fd *entry)
{
    return (entry->flags & RSI_FD_IS_ORDERED) != 0 && rsi_listener_of(entry)->first != NULL;
}

static bool is_past(const struct rsi_io_op *op)
{
    return op->deadline_ns != ROUSE_FOREVER && op->deadline_ns <= rsi_now_ns();
}

static bool has_connection(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = POLLIN };
    struct timespec zero = { 0, 0 };
    if (rsi_multishot_is_on(op->ref.entry))
        return rsi_multishot_events(op->ref.entry, op->fd) != 0;
    return rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) != 0;
}

static bool is_our_turn(const struct rsi_io_op *op, struct rsi_listener *l)
{
    if (rsi_likely(rsi_load_relaxed(&l->gates) == NULL))
        return true;
    rsi_guard_lock(&op->ref.entry->arming);
    bool is_ours = l->gates == NULL || rsi_gates_is_mine(l->gates);
    rsi_guard_unlock(&op->ref.entry->arming);
    return is_ours;
}

/* The caller is done, with a connection or an error. If it was on its way, the next may have to be woken. */
static void settle(const struct rsi_io_op *op, struct rsi_listener *l, struct rsi_caller *c)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    uint32_t *guard = &op->ref.entry->guard;
    if (!c->is_on_way)
        return;
    c->is_on_way = false;
    rsi_guard_lock(guard);
    bool is_last = rsi_listener_is_current(op) && --l->on_way == 0 && l->first != NULL;
    rsi_guard_unlock(guard);
    if (!is_last || !is_our_turn(op, l) || !has_connection(op))
        return;
    rsi_guard_lock(guard);
    if (rsi_listener_is_current(op) && l->on_way == 0)
        (void)wake_locked(l, op->site, &batch);
    rsi_guard_unlock(guard);
    rsi_fdtable_publish(&batch);
}

/* List the caller and sleep. The guard is held on entry and released. */
static int sleep_locked(const struct rsi_io_op *op, struct rsi_listener *l, struct rsi_caller *c)
{
    uint32_t *guard = &op->ref.entry->guard;
    c->ticket = rsi_park_prepare(c->thread, ROUSE_WAIT_ACCEPT, (const void *)(intptr_t)op->fd,
                                 op->site, op->deadline_ns, RSI_PARK_CANCELLABLE);
    list_locked(l, c);
    rsi_guard_unlock(guard);
    int result = rsi_park_commit(c->thread, c->ticket);
    if (result == -ETIMEDOUT || result == -ECANCELED) {
        rsi_guard_lock(guard);
        unlist_locked(l, c);
        bool is_idle = l->is_exclusive && l->first == NULL;
        rsi_guard_unlock(guard);
        if (rsi_unlikely(is_idle))
            rsi_epoll_disarm(op, 1u << RSI_FD_READ);
    }
    return result;
}

/* Before the first try. Returns 0 when the caller may try, or -errno. */
static int enter(const struct rsi_io_op *op, struct rsi_listener *l, struct rsi_caller *c)
{
    uint32_t *guard = &op->ref.entry->guard;
    rsi_guard_lock(guard);
    bool is_free = l->first == NULL && l->on_way == 0;
    /*
     * An exclusive listener that no thread waited for is not armed, so connections raise no event here. The caller
     * tries, and then arms it.
     */
    bool has_events = !l->is_exclusive || (op->ref.entry->armed & (1u << RSI_FD_READ)) != 0;
    if (rsi_likely(rsi_listener_is_current(op)) && !is_free && has_events && !is_past(op))
        return sleep_locked(op, l, c);
    rsi_guard_unlock(guard);
    return 0;
}

/* A try that began after edge seen found nothing: wait. Returns 0 to try again, or -errno. */
static int wait_event(const struct rsi_io_op *op, struct rsi_listener *l, struct rsi_caller *c,
                      uint32_t seen)
{
    struct rsi_fd *entry = op->ref.entry;
    uint8_t bit = 1u << RSI_FD_READ;
    for (;;) {
        int result = 0;
        rsi_guard_lock(&entry->guard);
        if (!rsi_listener_is_current(op)) {
            result = -EBADF;
        } else if ((entry->armed & bit) != 0) {
            if (entry->sides[RSI_FD_READ].edges == seen)
                break;
            rsi_guard_unlock(&entry->guard);
            return 0;
        }
        rsi_guard_unlock(&entry->guard);
        if (result == 0 && is_past(op) && !rouse_thread_cancel_pending())
            result = -ETIMEDOUT;
        if (result == 0)
            result = rsi_epoll_arm(op, bit);
        if (result < 0)
            return result;
    }
    if (c->is_on_way)
        l->on_way--;
    c->is_on_way = false;
    return sleep_locked(op, l, c);
}

static uint64_t event_data(const struct rsi_io_op *op)
{
    return (uint64_t)op->ref.generation << 32 | (unsigned)op->fd;
}

/* Whether it is this process's turn: 1 or 0, or -errno. */
static int ask_for_turn(const struct rsi_io_op *op, struct rsi_listener *l,
                        const struct rsi_caller *c)
{
    struct rsi_fd *entry = op->ref.entry;
    int result = -EBADF;
    bool is_new = false;
    rsi_guard_lock(&entry->arming);
    if (rsi_listener_is_current(op))
        result = l->gates == NULL
                     ? 1
                     : rsi_gates_ask(l->gates, op->fd, event_data(op), c->is_on_way, &is_new);
    if (is_new) {
        rsi_guard_lock(&entry->guard);
        rsi_store_relaxed(&entry->armed, 0);
        rsi_guard_unlock(&entry->guard);
    }
    rsi_guard_unlock(&entry->arming);
    return result;
}

static void pass_turn(const struct rsi_io_op *op, struct rsi_listener *l)
{
    rsi_guard_lock(&op->ref.entry->arming);
    if (rsi_listener_is_current(op) && l->gates != NULL)
        rsi_gates_pass(l->gates, op->fd);
    rsi_guard_unlock(&op->ref.entry->arming);
}

/* One try. Returns a descriptor or -errno. *seen: the edges before it. */
static long attempt(const struct rsi_io_op *op, struct rsi_listener *l, const struct rsi_caller *c,
                    uint32_t *seen)
{
    bool has_turns = rsi_load_relaxed(&l->gates) != NULL;
    struct rsi_fd *entry = op->ref.entry;
    long result;
    /* Acquire: pairs with rsi_ready_event's release; the call must not seem to begin before it. */
    *seen = rsi_load_acquire(&entry->sides[RSI_FD_READ].edges);
    /* Closed meanwhile, and perhaps reused. Acquire: pairs with end_generation. */
    if (rsi_unlikely(rsi_load_acquire(&entry->generation) != op->ref.generation))
        return -EBADF;
    if (rsi_unlikely(has_turns)) {
        result = ask_for_turn(op, l, c);
        if (result <= 0)
            return result == 0 ? -EAGAIN : result;
    }
    do {
        result = rsi_multishot_is_on(entry)
                     ? rsi_multishot_take(op)
                     : rsi_syscall4(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3]);
    } while (result == -EINTR || rsi_listener_is_dead(result));
    if (rsi_unlikely(has_turns) && result != -EAGAIN)
        pass_turn(op, l);
    return result;
}

static void record_verdict(const struct rsi_caller *c, enum rouse_verdict verdict)
{
    if (c->is_on_way && rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != 0))
        rsi_park_verdict(c->thread, verdict);
}

long rsi_order_accept(struct rsi_io_op *op)
{
    struct rsi_listener *l = rsi_listener_of(op->ref.entry);
    struct rsi_caller c = { .thread = rsi_self() };
    uint32_t seen;
    rsi_turn_spend(c.thread, TRY_COST);
    long result = enter(op, l, &c);
    while (result >= 0) {
        result = attempt(op, l, &c, &seen);
        record_verdict(&c, result == -EAGAIN ? ROUSE_VERDICT_LOST_RACE : ROUSE_VERDICT_USEFUL);
        if (result != -EAGAIN)
            break;
        result = wait_event(op, l, &c, seen);
    }
    settle(op, l, &c);
    if (result >= 0)
        rsi_poll_served(c.thread, op->fd, false);
    return result;
}
