/* SPDX-License-Identifier: MIT */
/* set.c - sets and their members: made, changed, released. set.h has the protocol. */
#include "io/set.h"

#include "io/poll.h"
#include "io/ready.h"

#include <errno.h>
#include <stdlib.h>

#define SETS_MOST 65536u

/* Debts name a set by its index. pins: settlers that use it, so that it is not destroyed meanwhile. */
static struct {
    uint32_t guard;
    uint32_t pins;
    struct rouse_set *set;
} slots[SETS_MOST];

static uint32_t next_slot; /* where to look for a free one */

struct rouse_set *rsi_set_pin(uint32_t index)
{
    rsi_guard_lock(&slots[index].guard);
    struct rouse_set *set = slots[index].set;
    slots[index].pins += set != NULL;
    rsi_guard_unlock(&slots[index].guard);
    return set;
}

void rsi_set_unpin(uint32_t index)
{
    rsi_guard_lock(&slots[index].guard);
    slots[index].pins--;
    rsi_guard_unlock(&slots[index].guard);
}

void rsi_set_child(void)
{
    uint32_t used = rsi_load_relaxed(&next_slot);
    for (uint32_t i = 0; i < used && i < SETS_MOST; i++) {
        slots[i].guard = slots[i].pins = 0;
        slots[i].set = NULL;
    }
}

static bool slot_take(uint32_t index, struct rouse_set *set)
{
    rsi_guard_lock(&slots[index].guard);
    bool is_free = slots[index].set == NULL && slots[index].pins == 0;
    if (is_free)
        slots[index].set = set;
    rsi_guard_unlock(&slots[index].guard);
    return is_free;
}

int rouse_set_create(struct rouse_set **set)
{
    if (set == NULL)
        return -EINVAL;
    struct rouse_set *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->forks = rsi_fdtable_forks;
    for (uint32_t i = 0; i < SETS_MOST; i++) {
        s->index = rsi_fetch_add_relaxed(&next_slot, 1u) % SETS_MOST;
        if (slot_take(s->index, s)) {
            *set = s;
            return 0;
        }
    }
    free(s);
    return -EMFILE;
}

/* Out of the descriptor's lists. Under the entry's guard. */
static void unlist_locked(struct rsi_set_member *m)
{
    for (unsigned side = 0; side < 2; side++)
        rsi_fdtable_unlist_locked(&m->ref.entry->sides[side], &m->waiters[side]);
}

/* Into them, for what is asked. Under the entry's guard. */
static void list_locked(struct rsi_set_member *m)
{
    const uint32_t asked[2] = { m->events & RSI_FD_READ_EVENTS, m->events & RSI_FD_WRITE_EVENTS };
    for (unsigned side = 0; side < 2; side++) {
        m->waiters[side] = (struct rsi_fd_waiter){ .member = m,
                                                   .kind = RSI_FD_MEMBER,
                                                   .events = asked[side] | RSI_FD_END_EVENTS };
        if (asked[side] != 0 || (side == RSI_FD_READ && asked[RSI_FD_WRITE] == 0))
            rsi_fdtable_list_locked(&m->ref.entry->sides[side], &m->waiters[side]);
    }
}

/* m leaves the set. Under both guards. Its memory is left to who has TAKEN it, or is garbage. */
static void leave_locked(struct rsi_set_member *m)
{
    struct rouse_set *set = m->set;
    unlist_locked(m);
    *(m->all_prev != NULL ? &m->all_prev->all_next : &set->all) = m->all_next;
    if (m->all_next != NULL)
        m->all_next->all_prev = m->all_prev;
    rsi_set_detach_locked(m);
    m->is_gone = true;
    if (m->state != RSI_SET_TAKEN) {
        m->next = set->garbage;
        set->garbage = m;
    }
}

void rsi_set_close_locked(struct rsi_fd_waiter *waiter)
{
    struct rouse_set *set = waiter->member->set;
    rsi_guard_lock(&set->guard);
    leave_locked(waiter->member);
    rsi_guard_unlock(&set->guard);
}

static void sweep(struct rouse_set *set)
{
    rsi_guard_lock(&set->guard);
    struct rsi_set_member *m = set->garbage, *next;
    set->garbage = NULL;
    rsi_guard_unlock(&set->guard);
    for (; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
}

/* Under the entry's guard. */
static struct rsi_set_member *find_locked(const struct rouse_set *set, const struct rsi_fd *entry)
{
    for (unsigned side = 0; side < 2; side++)
        for (struct rsi_fd_waiter *w = entry->sides[side].first; w != NULL; w = w->next)
            if (w->kind == RSI_FD_MEMBER && w->member->set == set)
                return w->member;
    return NULL;
}

int rsi_set_arm(const struct rsi_set_member *m)
{
    struct rsi_io_op op = { .ref = m->ref, .fd = m->fd };
    uint32_t events = rsi_load_relaxed(&m->events);
    uint8_t bits = (events & RSI_FD_WRITE_EVENTS) != 0 ? 1u << RSI_FD_WRITE : 0;
    if ((events & RSI_FD_READ_EVENTS) != 0 || bits == 0)
        bits |= 1u << RSI_FD_READ;
    if (rsi_likely((rsi_load_relaxed(&m->ref.entry->armed) & bits) == bits))
        return 0;
    return rsi_epoll_arm(&op, bits);
}

/*
 * m is listed and TAKEN by the caller: have its events counted, and look, for what came before that is no
 * event. An error: it leaves the set.
 */
static int begin(struct rsi_set_member *m)
{
    struct rsi_fd *entry = m->ref.entry;
    struct rsi_fd_batch batch = { NULL, NULL };
    struct pollfd one = { .fd = m->fd, .events = (short)m->events };
    int result = rsi_set_arm(m);
    if (result == 0)
        (void)rsi_poll_look(&one, 1);
    rsi_guard_lock(&entry->guard);
    rsi_guard_lock(&m->set->guard);
    if (m->is_gone && entry->generation != m->ref.generation)
        result = -EBADF;
    else if (result < 0 && !m->is_gone)
        leave_locked(m);
    bool is_free = rsi_set_looked_locked(m, one.revents != 0, &batch);
    rsi_guard_unlock(&m->set->guard);
    rsi_guard_unlock(&entry->guard);
    rsi_fdtable_publish(&batch);
    if (is_free)
        free(m);
    return result;
}

static int check(const struct rouse_set *set, unsigned flags)
{
    if (set->forks != rsi_fdtable_forks)
        return -EBADF;
    return (flags & ~(ROUSE_SET_EDGE | ROUSE_SET_ONESHOT)) != 0 ? -EINVAL : 0;
}

static void ask_locked(struct rsi_set_member *m, short events, unsigned flags, uint64_t data)
{
    rsi_store_relaxed(&m->events, (uint16_t)events | RSI_FD_END_EVENTS);
    m->flags = flags;
    m->data = data;
    m->is_spent = m->was_ready = false;
}

/* Returns 0 and the descriptor's entry, locked, or -errno. */
static int entry_lock(int fd, struct rsi_fd_ref *ref)
{
    for (;;) {
        int result = fd < 0 ? -EBADF : rsi_fdtable_ref(fd, ref);
        if (result < 0)
            return result;
        rsi_guard_lock(&ref->entry->guard);
        if (ref->entry->generation == ref->generation)
            return 0;
        rsi_guard_unlock(&ref->entry->guard);
    }
}

int rouse_set_add(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data)
{
    struct rsi_fd_ref ref;
    int result = check(set, flags);
    if (result < 0)
        return result;
    sweep(set);
    struct rsi_set_member *m = calloc(1, sizeof *m);
    if (m == NULL)
        return -ENOMEM;
    result = entry_lock(fd, &ref);
    if (result == 0 && find_locked(set, ref.entry) != NULL) {
        rsi_guard_unlock(&ref.entry->guard);
        result = -EEXIST;
    }
    if (result < 0) {
        free(m);
        return result;
    }
    m->set = set;
    m->ref = ref;
    m->fd = fd;
    m->state = RSI_SET_TAKEN;
    ask_locked(m, events, flags, data);
    rsi_guard_lock(&set->guard);
    m->all_next = set->all;
    if (set->all != NULL)
        set->all->all_prev = m;
    set->all = m;
    rsi_guard_unlock(&set->guard);
    list_locked(m);
    rsi_guard_unlock(&ref.entry->guard);
    return begin(m);
}

int rouse_set_modify(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data)
{
    struct rsi_fd_ref ref;
    int result = check(set, flags);
    result = result == 0 ? entry_lock(fd, &ref) : result;
    if (result < 0)
        return result;
    struct rsi_set_member *m = find_locked(set, ref.entry);
    if (m == NULL) {
        rsi_guard_unlock(&ref.entry->guard);
        return -ENOENT;
    }
    rsi_guard_lock(&set->guard);
    bool is_taken = m->state == RSI_SET_TAKEN;
    rsi_set_detach_locked(m);
    m->state = RSI_SET_TAKEN;
    m->has_event = is_taken; /* who has it looks again */
    ask_locked(m, events, flags, data);
    unlist_locked(m);
    list_locked(m);
    struct rsi_set_member copy = *m;
    rsi_guard_unlock(&set->guard);
    rsi_guard_unlock(&ref.entry->guard);
    return is_taken ? rsi_set_arm(&copy) : begin(m);
}

int rouse_set_remove(struct rouse_set *set, int fd)
{
    struct rsi_fd_ref ref;
    int result = check(set, 0);
    result = result == 0 ? entry_lock(fd, &ref) : result;
    if (result < 0)
        return result;
    struct rsi_set_member *m = find_locked(set, ref.entry);
    if (m != NULL) {
        rsi_guard_lock(&set->guard);
        leave_locked(m);
        rsi_guard_unlock(&set->guard);
    }
    rsi_guard_unlock(&ref.entry->guard);
    sweep(set);
    return m != NULL ? 0 : -ENOENT;
}

static void remove_all(struct rouse_set *set)
{
    for (;;) {
        rsi_guard_lock(&set->guard);
        struct rsi_set_member *m = set->all;
        rsi_guard_unlock(&set->guard);
        if (m == NULL)
            return;
        /* A close may be faster, and makes it garbage, which is kept till the end. */
        rsi_guard_lock(&m->ref.entry->guard);
        rsi_guard_lock(&set->guard);
        if (!m->is_gone)
            leave_locked(m);
        rsi_guard_unlock(&set->guard);
        rsi_guard_unlock(&m->ref.entry->guard);
    }
}

RSI_NOINLINE void rouse_set_destroy(struct rouse_set *set)
{
    uint32_t index = set->index;
    char call[160];
    /* In a child its members are as the parent's threads had them when it forked: nobody's to touch. */
    if (set->forks != rsi_fdtable_forks)
        return;
    rsi_guard_lock(&set->guard);
    bool is_awaited = set->first != NULL;
    rsi_guard_unlock(&set->guard);
    if (is_awaited) {
        rsi_obs_site_format(RSI_CALLER(), call, sizeof call);
        rsi_fatal("set %p is destroyed while threads wait for it, called from %s", (void *)set,
                  call);
    }
    for (;;) {
        rsi_guard_lock(&slots[index].guard);
        slots[index].set = NULL;
        bool is_pinned = slots[index].pins != 0;
        rsi_guard_unlock(&slots[index].guard);
        if (!is_pinned)
            break;
        rouse_thread_yield();
    }
    remove_all(set);
    sweep(set);
    for (struct rsi_set_holder *h = set->holders, *next; h != NULL; h = next) {
        next = h->next;
        free(h);
    }
    free(set);
}
