/* SPDX-License-Identifier: MIT */
/*
 * listener.c - accept in an order.
 *
 * Problem: a thread that calls accept while a connection is there may take it although others have waited
 * for long, of whom one has just been woken for it. That one finds nothing, has run in vain, and goes to
 * the end of the list. A busy thread so takes most of the connections.
 *
 * Queue: the threads that wait, oldest first. on_way: those that were woken and have not tried yet. Both
 * under the entry's guard. Each event wakes one thread of the queue, chosen by the order, which is then on
 * its way: the connection is its own. Whoever calls accept while somebody waits or is on the way joins the
 * queue without a try. A thread that was on its way and took a connection leaves on_way first and looks
 * then whether more is there; if so, and nobody else is on the way, it wakes the next. One that found
 * nothing (a kernel thread or another process was faster) goes back to its old place.
 *
 * Invariant: while the queue has a thread and nobody is on the way, each connection that is there will
 * still be announced by an event.
 *   The first of a queue has found nothing since the last event (ready.c, step 4), or stands there because
 *   somebody was on the way. Whoever leaves on_way looks after that: what an event that was not needed
 *   announced is seen by this look. An event that comes after it wakes a thread by itself.
 * A thread that is chosen, but was cancelled or timed out, cannot be claimed: the next one is chosen.
 *
 * Promotion: under lifo and scatter a thread may be passed over again and again. Choosing one marks all
 * older ones with the time, unless they have a mark; the oldest one goes first when its mark is 100 ms old.
 * Those with a mark are the oldest ones, in the order of their marks, so that one look at the first is
 * enough and a choice marks each thread once.
 *
 * Rejected: the order as the place at which a thread is listed (promotion must be looked at when a
 * connection comes, not when a thread does); trying first and only choosing by the order whom to wake:
 * the figures are in DESIGN.md.
 */
#include "io/listener.h"
#include "io/ready.h"

#include <rouse/io.h>

#include <poll.h>
#include <sys/stat.h>

#define TRY_COST 128u /* as in ready.c */
#define PROMOTE_NS UINT64_C(100000000)
#define SCATTER_MOST \
    64u /* scatter chooses among so many of the oldest: a longer walk holds the guard */
#define BUCKETS 256u

/* A thread in accept; on its stack. Under the guard while it is listed. */
struct caller {
    struct caller *next, *prev;
    struct rouse_thread *thread;
    uint64_t ticket;
    uint64_t number;    /* of its coming; 0: was never listed */
    uint64_t passed_ns; /* when a younger one was chosen first; 0: never */
    bool is_listed;
    bool is_on_way;
};

/* Belongs to its entry for good, and is used again with it. */
struct rsi_listener {
    struct rsi_listener *chain; /* of its bucket; both are written before it is published */
    struct rsi_fd *entry;
    /* under the entry's guard */
    struct caller *first, *last;
    uint64_t callers; /* numbers given out */
    uint64_t random;
    uint64_t inode; /* of the socket */
    uint32_t count; /* listed */
    uint32_t on_way;
    uint8_t order;
};

static struct rsi_listener *buckets[BUCKETS];
static uint32_t pool_guard;
static struct rsi_listener *pool, *pool_end; /* under pool_guard */

static struct rsi_listener **bucket_of(const struct rsi_fd *entry)
{
    return &buckets[(uintptr_t)entry / sizeof *entry % BUCKETS];
}

/* That of an entry which is ordered, or was when the caller looked: there is one. */
static struct rsi_listener *of_ordered(const struct rsi_fd *entry)
{
    /* Acquire: pairs with make's release. */
    struct rsi_listener *l = rsi_load_acquire(bucket_of(entry));
    while (l->entry != entry)
        l = l->chain;
    return l;
}

/* The listener of entry, or NULL: no memory. */
static struct rsi_listener *make(struct rsi_fd *entry)
{
    rsi_guard_lock(&pool_guard);
    struct rsi_listener *l = *bucket_of(entry);
    while (l != NULL && l->entry != entry)
        l = l->chain;
    if (l == NULL && pool == pool_end) {
        pool = rsi_map(RSI_PAGE);
        pool_end = pool != NULL ? pool + RSI_PAGE / sizeof *pool : NULL;
    }
    if (l == NULL && pool != NULL) {
        l = pool++;
        l->entry = entry;
        l->chain = *bucket_of(entry);
        rsi_store_release(bucket_of(entry), l); /* pairs with of_ordered's acquire */
    }
    rsi_guard_unlock(&pool_guard);
    return l;
}

/* List c by its number: the oldest is first. It is the last as a rule, or, if it was woken in vain, the first. */
static void list_locked(struct rsi_listener *l, struct caller *c)
{
    struct caller *before = l->last;
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

static void unlist_locked(struct rsi_listener *l, struct caller *c)
{
    if (!c->is_listed)
        return;
    c->is_listed = false;
    *(c->next != NULL ? &c->next->prev : &l->last) = c->prev;
    *(c->prev != NULL ? &c->prev->next : &l->first) = c->next;
    l->count--;
}

static struct caller *scatter_locked(struct rsi_listener *l)
{
    uint32_t most = l->count < SCATTER_MOST ? l->count : SCATTER_MOST;
    struct caller *c = l->first;
    for (uint64_t skip = (rsi_random_next(&l->random) >> 32) % most; skip != 0; skip--)
        c = c->next;
    return c;
}

/* Who goes first. The queue is not empty. */
static struct caller *choose_locked(struct rsi_listener *l)
{
    struct caller *c = l->first;
    if (l->order == ROUSE_ACCEPT_FIFO || c->next == NULL)
        return c;
    uint64_t now_ns = rsi_now_coarse_ns();
    if (c->passed_ns != 0 && now_ns - c->passed_ns >= PROMOTE_NS)
        return c;
    c = l->order == ROUSE_ACCEPT_LIFO ? l->last : scatter_locked(l);
    for (struct caller *older = c->prev; older != NULL && older->passed_ns == 0;
         older = older->prev)
        older->passed_ns = now_ns;
    return c;
}

static bool claim_locked(struct rsi_listener *l, struct caller *c, int result, const void *site,
                         struct rsi_fd_batch *batch)
{
    unlist_locked(l, c);
    return rsi_fdtable_claim(c->thread, c->ticket, result, site, batch);
}

/* False: nobody is left. */
static bool wake_locked(struct rsi_listener *l, const void *site, struct rsi_fd_batch *batch)
{
    while (l->first != NULL) {
        struct caller *c = choose_locked(l);
        if (!claim_locked(l, c, 0, site, batch))
            continue;
        c->is_on_way = true;
        c->passed_ns = 0;
        l->on_way++;
        return true;
    }
    return false;
}

void rsi_listener_event_locked(struct rsi_fd *entry, bool all, struct rsi_fd_batch *batch)
{
    struct rsi_listener *l = of_ordered(entry);
    while (wake_locked(l, NULL, batch) && all) {
    }
}

void rsi_listener_end_locked(struct rsi_fd *entry, const void *site, struct rsi_fd_batch *batch)
{
    struct rsi_listener *l = of_ordered(entry);
    while (l->first != NULL)
        (void)claim_locked(l, l->first, -EBADF, site, batch);
    l->on_way = 0; /* they are told by the generation */
    rsi_store_relaxed(&entry->flags, (uint8_t)(entry->flags & ~RSI_FD_IS_ORDERED));
}

bool rsi_listener_has_waiters_locked(struct rsi_fd *entry)
{
    return of_ordered(entry)->first != NULL;
}

static bool is_current(const struct rsi_io_op *op)
{
    return op->ref.entry->generation == op->ref.generation;
}

static bool is_past(const struct rsi_io_op *op)
{
    return op->deadline_ns != ROUSE_FOREVER && op->deadline_ns <= rsi_now_ns();
}

static bool has_connection(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = POLLIN };
    struct timespec zero = { 0, 0 };
    return rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) != 0;
}

/* The caller is done, with a connection or an error: if it was on its way, the next one may have to be woken. */
static void settle(const struct rsi_io_op *op, struct rsi_listener *l, struct caller *c)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    uint32_t *guard = &op->ref.entry->guard;
    if (!c->is_on_way)
        return;
    c->is_on_way = false;
    rsi_guard_lock(guard);
    bool is_last = is_current(op) && --l->on_way == 0 && l->first != NULL;
    rsi_guard_unlock(guard);
    if (!is_last || !has_connection(op))
        return;
    rsi_guard_lock(guard);
    if (is_current(op) && l->on_way == 0)
        (void)wake_locked(l, op->site, &batch);
    rsi_guard_unlock(guard);
    rsi_fdtable_publish(&batch);
}

/* List the caller and sleep; the guard is held and is released. */
static int sleep_locked(const struct rsi_io_op *op, struct rsi_listener *l, struct caller *c)
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
        rsi_guard_unlock(guard);
    }
    return result;
}

/* Before the first try. Returns 0 when it is the caller's turn, or -errno. */
static int enter(const struct rsi_io_op *op, struct rsi_listener *l, struct caller *c)
{
    uint32_t *guard = &op->ref.entry->guard;
    rsi_guard_lock(guard);
    bool is_free = l->first == NULL && l->on_way == 0;
    if (rsi_likely(is_current(op)) && !is_free && !is_past(op))
        return sleep_locked(op, l, c);
    rsi_guard_unlock(guard);
    return 0;
}

/* Nothing was there, in a try that began after edge seen. Returns 0 to try again, or -errno. */
static int wait_event(const struct rsi_io_op *op, struct rsi_listener *l, struct caller *c,
                      uint32_t seen)
{
    struct rsi_fd *entry = op->ref.entry;
    uint8_t bit = 1u << RSI_FD_READ;
    for (;;) {
        int result = 0;
        rsi_guard_lock(&entry->guard);
        if (!is_current(op)) {
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

/* One try. Returns a descriptor or -errno; *seen: the edges before it. */
static long attempt(const struct rsi_io_op *op, uint32_t *seen)
{
    struct rsi_fd *entry = op->ref.entry;
    long result;
    /* Acquire: pairs with rsi_ready_event's release; the call must not seem to begin before it. */
    *seen = rsi_load_acquire(&entry->sides[RSI_FD_READ].edges);
    /* Closed since, and maybe given out again. Acquire: pairs with end_generation. */
    if (rsi_unlikely(rsi_load_acquire(&entry->generation) != op->ref.generation))
        return -EBADF;
    do {
        result = rsi_syscall4(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3]);
    } while (result == -EINTR || rsi_listener_is_dead(result));
    return result;
}

static void tell(const struct caller *c, enum rouse_verdict verdict)
{
    if (c->is_on_way && rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != 0))
        rsi_park_verdict(c->thread, verdict);
}

long rsi_listener_accept(struct rsi_io_op *op)
{
    struct rsi_listener *l = of_ordered(op->ref.entry);
    struct caller c = { .thread = rsi_self() };
    uint32_t seen;
    rsi_turn_spend(c.thread, TRY_COST);
    long result = enter(op, l, &c);
    while (result >= 0) {
        result = attempt(op, &seen);
        tell(&c, result == -EAGAIN ? ROUSE_VERDICT_LOST_RACE : ROUSE_VERDICT_USEFUL);
        if (result != -EAGAIN)
            break;
        result = wait_event(op, l, &c, seen);
    }
    settle(op, l, &c);
    return result;
}

static bool is_awaited_locked(const struct rsi_fd *entry)
{
    for (struct rsi_fd_waiter *w = entry->sides[RSI_FD_READ].first; w != NULL; w = w->next)
        if (w->kind == RSI_FD_TAKER)
            return true;
    return false;
}

/* Give fd's entry a queue, if it has none. Returns 0 or -errno. */
static int order_begin(int fd, const struct rsi_fd_ref *ref, struct rsi_listener *l)
{
    struct rsi_fd *entry = ref->entry;
    struct stat status;
    int result = (int)rsi_syscall2(SYS_fstat, fd, &status);
    if (result < 0)
        return result;
    rsi_guard_lock(&entry->guard);
    if (entry->generation != ref->generation) {
        result = -EBADF;
    } else if ((entry->flags & RSI_FD_IS_ORDERED) == 0) {
        result = is_awaited_locked(entry) ? -EBUSY : 0;
        if (result == 0) {
            l->inode = status.st_ino;
            l->random = (status.st_ino << 1 | 1) * UINT64_C(0x9e3779b97f4a7c15);
            l->order = ROUSE_ACCEPT_FIFO;
            rsi_store_relaxed(&entry->flags, entry->flags | RSI_FD_IS_ORDERED);
        }
    }
    rsi_guard_unlock(&entry->guard);
    return result;
}

void rsi_listener_reset(void)
{
    pool_guard = 0;
}

bool rsi_listener_child(struct rsi_fd *entry, int fd)
{
    struct rsi_listener *l = of_ordered(entry);
    struct stat status;
    l->first = l->last = NULL;
    l->count = l->on_way = 0;
    return rsi_syscall2(SYS_fstat, fd, &status) == 0 && status.st_ino == l->inode;
}

static int listener_of(int fd, struct rsi_fd_ref *ref, struct rsi_listener **l, const void *site)
{
    int listens = 0;
    socklen_t length = sizeof listens;
    int result = rsi_fdtable_find_socket(fd, ref, site);
    if (result < 0)
        return result;
    result = (int)rsi_syscall5(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
    if (result < 0 || !listens)
        return result < 0 ? result : -EINVAL;
    *l = make(ref->entry);
    return *l != NULL ? order_begin(fd, ref, *l) : -ENOMEM;
}

RSI_NOINLINE int rouse_listener_order(int fd, enum rouse_accept_order order)
{
    struct rsi_fd_ref ref;
    struct rsi_listener *l;
    if ((unsigned)order > ROUSE_ACCEPT_SCATTER)
        return -EINVAL;
    int result = listener_of(fd, &ref, &l, RSI_CALLER());
    if (result < 0)
        return result;
    rsi_guard_lock(&ref.entry->guard);
    if (ref.entry->generation == ref.generation)
        l->order = (uint8_t)order;
    else
        result = -EBADF;
    rsi_guard_unlock(&ref.entry->guard);
    return result;
}
