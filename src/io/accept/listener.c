/* SPDX-License-Identifier: MIT */
/*
 * listener.c - listeners with an order: created by the first call that gives them one, shared among processes.
 *
 * The state of such a listener does not fit into its entry. A hash table maps the entry's address to it. Its chains
 * only grow: each number that was ever such a listener keeps its struct, and reuses it.
 */
#include "io/accept/listener.h"

#include "io/accept/gates.h"
#include "io/ready.h"
#include "turns/turns.h"

#include <rouse/io.h>

#include <sys/epoll.h>
#include <sys/stat.h>

#define BUCKETS 256u

static struct rsi_listener *buckets[BUCKETS];
static uint32_t pool_guard;
static struct rsi_listener *pool, *pool_end; /* under pool_guard */

static struct rsi_listener **bucket_of(const struct rsi_fd *entry)
{
    return &buckets[(uintptr_t)entry / sizeof *entry % BUCKETS];
}

struct rsi_listener *rsi_listener_of(const struct rsi_fd *entry)
{
    /* Acquire: pairs with make's release. */
    struct rsi_listener *l = rsi_load_acquire(bucket_of(entry));
    while (l->entry != entry)
        l = l->chain;
    return l;
}

/* Find or create the listener of entry. Returns NULL if there is no memory. */
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
        rsi_store_release(bucket_of(entry), l); /* pairs with rsi_listener_of's acquire */
    }
    rsi_guard_unlock(&pool_guard);
    return l;
}

static bool is_awaited_locked(const struct rsi_fd *entry)
{
    for (struct rsi_fd_waiter *w = entry->sides[RSI_FD_READ].first; w != NULL; w = w->next)
        if (w->kind == RSI_FD_TAKER)
            return true;
    return false;
}

/* Give fd's entry a queue if it has none. Returns 0 or -errno. */
static int order_begin(int fd, const struct rsi_fd_ref *ref, struct rsi_listener *l)
{
    struct rsi_fd *entry = ref->entry;
    struct stat status = { 0 };
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
            l->is_exclusive = false;
            l->gates = NULL;
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
    struct rsi_listener *l = rsi_listener_of(entry);
    struct stat status = { 0 };
    l->first = l->last = NULL;
    l->count = l->on_way = 0;
    bool is_same = rsi_syscall2(SYS_fstat, fd, &status) == 0 && status.st_ino == l->inode;
    if (l->gates != NULL)
        rsi_gates_child(l->gates);
    return is_same;
}

bool rsi_listener_arms(const struct rsi_io_op *op, uint8_t armed, struct epoll_event *event)
{
    const struct rsi_listener *l = rsi_listener_of(op->ref.entry);
    if (l->gates == NULL && !l->is_exclusive)
        return false;
    event->events = EPOLLIN | EPOLLET | (l->gates == NULL ? EPOLLEXCLUSIVE : 0);
    if ((armed & (1u << RSI_FD_WRITE)) != 0)
        event->events |= EPOLLOUT;
    return true;
}

int rsi_listener_fd(const struct rsi_io_op *op)
{
    const struct rsi_listener *l = rsi_listener_of(op->ref.entry);
    return l->gates != NULL ? rsi_gates_fd(l->gates) : op->fd;
}

void rsi_listener_look(const struct rsi_io_op *op)
{
    struct rsi_fd *entry = op->ref.entry;
    rsi_guard_lock(&entry->arming);
    if (rsi_listener_is_current(op) && (rsi_load_relaxed(&entry->flags) & RSI_FD_IS_ORDERED) != 0) {
        struct rsi_gates *gates = rsi_listener_of(entry)->gates;
        if (gates != NULL)
            rsi_gates_look(gates, op->fd);
    }
    rsi_guard_unlock(&entry->arming);
}

struct rsi_gates *rsi_listener_leave(int fd)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    struct rsi_gates *gates = NULL;
    if (entry == NULL || (rsi_load_relaxed(&entry->flags) & RSI_FD_IS_ORDERED) == 0)
        return NULL;
    struct rsi_listener *l = rsi_listener_of(entry);
    rsi_guard_lock(&entry->arming);
    if ((rsi_load_relaxed(&entry->flags) & RSI_FD_IS_ORDERED) != 0 && l->gates != NULL) {
        gates = l->gates;
        rsi_gates_leave(gates, fd);
        rsi_store_relaxed(&l->gates, NULL);
    }
    rsi_guard_unlock(&entry->arming);
    return gates;
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

/* Share a listener among processes, in turn or exclusively. Allowed once, and before any thread waits. */
static int share(const struct rsi_fd_ref *ref, struct rsi_listener *l, int fd,
                 struct rsi_gates *gates)
{
    struct rsi_fd *entry = ref->entry;
    int result = 0;
    rsi_guard_lock(&entry->arming);
    rsi_guard_lock(&entry->guard);
    bool was_armed = entry->armed != 0;
    if (entry->generation != ref->generation)
        result = -EBADF;
    else if (l->gates != NULL || l->is_exclusive || l->first != NULL || l->on_way != 0 ||
             (entry->flags & RSI_FD_IS_MULTISHOT) != 0)
        result = -EBUSY;
    if (result == 0) {
        l->is_exclusive = gates == NULL;
        rsi_store_relaxed(&l->gates, gates);
        rsi_store_relaxed(&entry->armed, 0);
    }
    rsi_guard_unlock(&entry->guard);
    if (result == 0 && was_armed)
        (void)rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0); /* it was armed as a plain descriptor */
    rsi_guard_unlock(&entry->arming);
    return result;
}

RSI_NOINLINE int rouse_listener_exclusive(int fd)
{
    struct rsi_fd_ref ref;
    struct rsi_listener *l;
    int result = listener_of(fd, &ref, &l, RSI_CALLER());
    return result < 0 ? result : share(&ref, l, fd, NULL);
}

RSI_NOINLINE int rouse_listener_turns(int fd, unsigned processes)
{
    struct rsi_fd_ref ref;
    struct rsi_listener *l;
    struct rsi_gates *gates;
    if (processes == 0 || processes > RSI_TURNS_PLACES_MOST)
        return -EINVAL;
    int result = listener_of(fd, &ref, &l, RSI_CALLER());
    if (result < 0)
        return result;
    result = rsi_gates_make(processes, &gates);
    if (result < 0)
        return result;
    result = share(&ref, l, fd, gates);
    if (result < 0)
        rsi_gates_drop(gates);
    return result;
}
