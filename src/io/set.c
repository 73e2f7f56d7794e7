/* SPDX-License-Identifier: MIT */
/* set.c - sets, their members, and the threads that wait for them. set.h has the protocol. */
#include "io/set.h"

#include "core/turn.h"
#include "io/poll.h"
#include "io/ready.h"

#include <errno.h>
#include <stdlib.h>

#define LOOK_COST 128u /* as in poll.c */
#define LOOK_MOST 64u  /* members per check */
#define SETS_MOST 65536u

/* Debts refer to a set by its index. pins: threads that settle a debt and keep the set from being destroyed. */
static struct {
    uint32_t guard;
    uint32_t pins;
    struct rouse_set *set;
} slots[SETS_MOST];

static uint32_t next_slot; /* where to search for a free slot */

/* The set with this index, or NULL. It is not destroyed before set_unpin. */
static struct rouse_set *set_pin(uint32_t index)
{
    rsi_guard_lock(&slots[index].guard);
    struct rouse_set *set = slots[index].set;
    slots[index].pins += set != NULL;
    rsi_guard_unlock(&slots[index].guard);
    return set;
}

static void set_unpin(uint32_t index)
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

static void list_add(struct rsi_set_list *list, struct rsi_set_member *m)
{
    m->next = NULL;
    m->prev = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = m;
    list->last = m;
}

static void list_remove(struct rsi_set_list *list, struct rsi_set_member *m)
{
    *(m->prev != NULL ? &m->prev->next : &list->first) = m->next;
    *(m->next != NULL ? &m->next->prev : &list->last) = m->prev;
}

static void sleeper_remove_locked(struct rouse_set *set, struct rsi_set_sleeper *s)
{
    *(s->prev != NULL ? &s->prev->next : &set->first) = s->next;
    *(s->next != NULL ? &s->next->prev : &set->last) = s->prev;
    s->is_listed = false;
}

static void sleeper_add_locked(struct rouse_set *set, struct rsi_set_sleeper *s)
{
    s->next = NULL;
    s->prev = set->last;
    *(set->last != NULL ? &set->last->next : &set->first) = s;
    set->last = s;
    s->is_listed = true;
}

/* Take m out of its state's list. Under the set's guard. */
static void detach_locked(struct rsi_set_member *m)
{
    if (m->state == RSI_SET_QUEUED)
        list_remove(&m->set->queue, m);
    else if (m->state == RSI_SET_HELD)
        list_remove(&m->holder->held, m);
}

/*
 * m, which is in no list, may be ready: give it to the thread that has slept longest, or queue it for the next thread
 * that waits. Under the set's guard.
 */
static void offer_locked(struct rsi_set_member *m, struct rsi_fd_batch *batch)
{
    struct rouse_set *set = m->set;
    struct rsi_set_sleeper *s;
    while ((s = set->first) != NULL) {
        sleeper_remove_locked(set, s);
        s->given = m; /* s reads it after it was woken, or under the guard */
        m->state = RSI_SET_TAKEN;
        m->has_event = false;
        if (rsi_fdtable_claim(s->thread, s->ticket, 0, NULL, batch))
            return;
        s->given = NULL;
    }
    m->state = RSI_SET_QUEUED;
    list_add(&set->queue, m);
}

void rsi_set_event_locked(struct rsi_fd_waiter *waiter, uint32_t events, struct rsi_fd_batch *batch)
{
    struct rsi_set_member *m = waiter->member;
    const struct rsi_fd_waiter *reads = &m->waiters[RSI_FD_READ];
    /* Report an event for both sides once, by the reading side. */
    if (waiter != reads && reads->is_listed && (reads->events & events) != 0)
        return;
    rsi_guard_lock(&m->set->guard);
    if (m->state == RSI_SET_TAKEN) {
        m->has_event = true;
    } else if (m->state != RSI_SET_QUEUED && !m->is_spent) {
        detach_locked(m);
        offer_locked(m, batch);
    }
    rsi_guard_unlock(&m->set->guard);
}

bool rsi_set_has_sleepers_locked(struct rsi_fd_waiter *waiter)
{
    struct rouse_set *set = waiter->member->set;
    rsi_guard_lock(&set->guard);
    bool found = set->first != NULL;
    rsi_guard_unlock(&set->guard);
    return found;
}

/*
 * The calling thread has checked m, which it has TAKEN. Returns true if m has left the set, and the caller must free
 * it.
 */
static bool looked_locked(struct rsi_set_member *m, bool is_ready, struct rsi_fd_batch *batch)
{
    if (m->is_gone)
        return true;
    m->was_ready = is_ready;
    if ((is_ready || m->has_event) && !m->is_spent)
        offer_locked(m, batch);
    else
        m->state = RSI_SET_IDLE;
    return false;
}

/* Remove m from its descriptor's lists. Under the entry's guard. */
static void unlist_locked(struct rsi_set_member *m)
{
    for (unsigned side = 0; side < 2; side++)
        rsi_fdtable_unlist_locked(&m->ref.entry->sides[side], &m->waiters[side]);
}

/* Add m to its descriptor's lists for the requested events. Under the entry's guard. */
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

/* m leaves the set. Under both guards. The thread that has TAKEN it frees it. Otherwise it becomes garbage. */
static void leave_locked(struct rsi_set_member *m)
{
    struct rouse_set *set = m->set;
    unlist_locked(m);
    *(m->all_prev != NULL ? &m->all_prev->all_next : &set->all) = m->all_next;
    if (m->all_next != NULL)
        m->all_next->all_prev = m->all_prev;
    detach_locked(m);
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

/* Arm m's events if they are not armed. Called by the thread that has it TAKEN. Returns 0 or -errno. */
static int member_arm(const struct rsi_set_member *m)
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
 * m is listed and TAKEN by the caller: arm its events and check it, since data that arrived before raises no event. On
 * an error m leaves the set.
 */
static int begin(struct rsi_set_member *m)
{
    struct rsi_fd *entry = m->ref.entry;
    struct rsi_fd_batch batch = { NULL, NULL };
    struct pollfd one = { .fd = m->fd, .events = (short)m->events };
    int result = member_arm(m);
    if (result == 0)
        (void)rsi_poll_look(&one, 1);
    rsi_guard_lock(&entry->guard);
    rsi_guard_lock(&m->set->guard);
    if (m->is_gone && entry->generation != m->ref.generation)
        result = -EBADF;
    else if (result < 0 && !m->is_gone)
        leave_locked(m);
    bool is_free = looked_locked(m, one.revents != 0, &batch);
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

/* Find and lock the entry of fd. Returns 0 or -errno. */
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
    detach_locked(m);
    m->state = RSI_SET_TAKEN;
    m->has_event = is_taken; /* the thread that has it TAKEN checks again */
    ask_locked(m, events, flags, data);
    unlist_locked(m);
    list_locked(m);
    struct rsi_set_member copy = *m;
    rsi_guard_unlock(&set->guard);
    rsi_guard_unlock(&ref.entry->guard);
    return is_taken ? member_arm(&copy) : begin(m);
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
        /* A close may be faster and makes m garbage, which is kept until the end. */
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
    /* In a child its members may be in any state that the parent's threads had left them in: do not touch them. */
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

struct look {
    struct pollfd fds[LOOK_MOST];
    struct rsi_set_member *members[LOOK_MOST];
    uint32_t count;
};

/* Take QUEUED members until look holds most. */
static void take_locked(struct rouse_set *set, struct look *look, uint32_t most)
{
    struct rsi_set_member *m;
    while (look->count < most && (m = set->queue.first) != NULL) {
        list_remove(&set->queue, m);
        m->state = RSI_SET_TAKEN;
        m->has_event = false;
        look->members[look->count++] = m;
    }
}

/*
 * Ask the kernel about the members in look. No other thread frees a TAKEN member, but its events may change. A ring
 * that has stopped receiving for a descriptor leaves it unarmed and notifies its members by an event, so arm it here.
 */
static void look_at(struct look *look)
{
    for (uint32_t i = 0; i < look->count; i++) {
        const struct rsi_set_member *m = look->members[i];
        (void)member_arm(m);
        look->fds[i] =
            (struct pollfd){ .fd = m->fd, .events = (short)rsi_load_relaxed(&m->events) };
    }
    if (rsi_likely(rsi_poll_look(look->fds, look->count) >= 0))
        return;
    /* For many at once the kernel may lack memory, or reach a limit: ask one by one. */
    for (uint32_t i = 0; i < look->count; i++)
        (void)rsi_poll_look(&look->fds[i], 1);
}

/* The requested events may have changed since the kernel filled in revents. */
static bool is_ready(const struct rsi_set_member *m, short revents)
{
    return ((uint16_t)revents & m->events) != 0 && !m->is_spent;
}

static struct rsi_set_holder *holder_of_locked(const struct rouse_set *set,
                                               const struct rouse_thread *thread)
{
    struct rsi_set_holder *h = set->holders;
    while (h != NULL && h->thread != thread)
        h = h->next;
    return h;
}

/*
 * A wait that does not sleep cannot rely on events that are yet to be counted: it checks every member that was not
 * ready at the last check.
 */
static void queue_all_locked(struct rouse_set *set)
{
    for (struct rsi_set_member *m = set->all; m != NULL; m = m->all_next)
        if (m->state == RSI_SET_IDLE && !m->is_spent && !m->was_ready) {
            m->state = RSI_SET_QUEUED;
            list_add(&set->queue, m);
        }
}

/* Held members may still be ready: queue them. */
static void recall_locked(struct rouse_set *set, struct rsi_set_holder *h)
{
    struct rsi_set_member *m;
    while ((m = h->held.first) != NULL) {
        list_remove(&h->held, m);
        m->state = RSI_SET_QUEUED;
        list_add(&set->queue, m);
    }
}

/* While members are QUEUED and threads sleep: check the members and wake one thread per ready member. */
static void distribute(struct rouse_set *set)
{
    struct look look;
    for (;;) {
        struct rsi_fd_batch batch = { NULL, NULL };
        look.count = 0;
        rsi_guard_lock(&set->guard);
        if (set->first != NULL)
            take_locked(set, &look, LOOK_MOST);
        rsi_guard_unlock(&set->guard);
        if (look.count == 0)
            return;
        look_at(&look);
        rsi_guard_lock(&set->guard);
        for (uint32_t i = 0; i < look.count; i++)
            if (!looked_locked(look.members[i], is_ready(look.members[i], look.fds[i].revents),
                               &batch))
                look.members[i] = NULL;
        rsi_guard_unlock(&set->guard);
        rsi_fdtable_publish(&batch);
        for (uint32_t i = 0; i < look.count; i++)
            free(look.members[i]);
    }
}

void rsi_set_settle(uint32_t index)
{
    struct rouse_set *set = set_pin(index);
    if (set == NULL)
        return;
    rsi_guard_lock(&set->guard);
    struct rsi_set_holder *h = holder_of_locked(set, rsi_self());
    if (h != NULL) {
        recall_locked(set, h);
        h->thread = NULL;
    }
    rsi_guard_unlock(&set->guard);
    distribute(set);
    set_unpin(index);
}

struct set_call {
    struct rouse_set *set;
    struct rouse_thread *self;
    struct rouse_set_event *events;
    uint32_t most;
    uint64_t deadline_ns;
    const void *site;
    struct rsi_set_holder *holder;
    struct look look;
};

/* Report m, which is ready, to the caller. Under the set's guard. */
static void report_locked(const struct set_call *call, struct rsi_set_member *m, short revents,
                          struct rouse_set_event *event, struct rsi_fd_batch *batch)
{
    *event = (struct rouse_set_event){ .data = m->data,
                                       .fd = m->fd,
                                       .events = (short)((uint16_t)revents & m->events) };
    m->was_ready = true;
    if ((m->flags & ROUSE_SET_ONESHOT) != 0) {
        m->is_spent = true;
        m->state = RSI_SET_IDLE;
    } else if (m->has_event) {
        offer_locked(
            m, batch); /* a new event: for the next thread, or for the caller when it waits again */
    } else if ((m->flags & ROUSE_SET_EDGE) != 0) {
        m->state = RSI_SET_IDLE;
    } else {
        m->state = RSI_SET_HELD;
        m->holder = call->holder;
        list_add(&call->holder->held, m);
    }
}

/* Report ready members and put back the rest. Returns how many were reported. */
static uint32_t report(struct set_call *call, bool *has_more)
{
    struct rouse_set *set = call->set;
    struct look *look = &call->look;
    struct rsi_fd_batch batch = { NULL, NULL };
    uint32_t reported = 0;
    rsi_guard_lock(&set->guard);
    for (uint32_t i = 0; i < look->count; i++) {
        struct rsi_set_member *m = look->members[i];
        look->members[i] = NULL;
        if (!m->is_gone && is_ready(m, look->fds[i].revents))
            report_locked(call, m, look->fds[i].revents, &call->events[reported++], &batch);
        else if (looked_locked(m, false, &batch))
            look->members[i] = m;
    }
    *has_more = set->queue.first != NULL && set->first != NULL;
    rsi_guard_unlock(&set->guard);
    rsi_fdtable_publish(&batch);
    for (uint32_t i = 0; i < look->count; i++)
        free(look->members[i]);
    look->count = 0;
    return reported;
}

/* Sleep until a member is given. Returns 0 (also if a member is already queued) or -errno. */
static int sleep_once(struct set_call *call)
{
    struct rouse_set *set = call->set;
    struct rsi_set_sleeper s = { .thread = call->self };
    int result = 0;
    s.ticket = rsi_park_prepare(call->self, ROUSE_WAIT_SET, set, call->site, call->deadline_ns,
                                RSI_PARK_CANCELLABLE);
    rsi_test_delay();
    rsi_guard_lock(&set->guard);
    bool is_good = set->queue.first == NULL;
    if (is_good)
        sleeper_add_locked(set, &s);
    rsi_guard_unlock(&set->guard);
    if (is_good || !rsi_park_abandon(call->self, s.ticket))
        result = rsi_park_commit(call->self, s.ticket);
    if (!is_good)
        return result;
    /* The thread that gave a member may still hold the guard. */
    rsi_guard_lock(&set->guard);
    if (s.is_listed)
        sleeper_remove_locked(set, &s);
    if (s.given != NULL)
        call->look.members[call->look.count++] = s.given;
    rsi_guard_unlock(&set->guard);
    return result;
}

static bool is_over(const struct set_call *call)
{
    bool is_past = call->deadline_ns == 0 ||
                   (call->deadline_ns != ROUSE_FOREVER && call->deadline_ns <= rsi_now_ns());
    return is_past && !rouse_thread_cancel_pending();
}

static long wait_for_members(struct set_call *call)
{
    struct rouse_set *set = call->set;
    bool was_woken = false, is_last = false, has_more;
    rsi_guard_lock(&set->guard);
    recall_locked(set, call->holder);
    if (is_over(call))
        queue_all_locked(set);
    rsi_guard_unlock(&set->guard);
    for (;;) {
        rsi_guard_lock(&set->guard);
        take_locked(set, &call->look, call->most);
        rsi_guard_unlock(&set->guard);
        if (call->look.count != 0) {
            look_at(&call->look);
            uint32_t reported = report(call, &has_more);
            if (has_more)
                distribute(set);
            if (reported != 0)
                return reported;
            if (was_woken)
                rsi_park_verdict(call->self, ROUSE_VERDICT_LOST_RACE);
            was_woken = false;
            continue;
        }
        if (is_last || is_over(call))
            return -ETIMEDOUT;
        int result = sleep_once(call);
        was_woken = call->look.count != 0;
        is_last = result == -ETIMEDOUT;
        if (result < 0 && !is_last)
            return result;
    }
}

/* Reserve a holder for self during the call, so that reported members can be HELD. */
static struct rsi_set_holder *holder_begin(struct rouse_set *set, struct rouse_thread *self)
{
    struct rsi_set_holder *h;
    rsi_guard_lock(&set->guard);
    h = holder_of_locked(set, self);
    if (h == NULL && (h = holder_of_locked(set, NULL)) != NULL)
        h->thread = self;
    rsi_guard_unlock(&set->guard);
    if (h != NULL || (h = calloc(1, sizeof *h)) == NULL)
        return h;
    h->thread = self;
    rsi_guard_lock(&set->guard);
    h->next = set->holders;
    set->holders = h;
    rsi_guard_unlock(&set->guard);
    return h;
}

static int do_wait(struct rouse_set *set, struct rouse_set_event *events, unsigned count,
                   uint64_t deadline_ns, const void *site)
{
    struct set_call call = { .set = set,
                             .self = rsi_self(),
                             .events = events,
                             .most = count < LOOK_MOST ? count : LOOK_MOST,
                             .deadline_ns = deadline_ns,
                             .site = site };
    if (count == 0)
        return -EINVAL;
    if (set->forks != rsi_fdtable_forks)
        return -EBADF;
    rsi_poll_turn_away(call.self, set->index);
    rsi_turn_spend(call.self, LOOK_COST);
    call.holder = holder_begin(set, call.self);
    if (call.holder == NULL)
        return -ENOMEM;
    long result = wait_for_members(&call);
    rsi_account_call(ROUSE_WAIT_SET, result);
    rsi_guard_lock(&set->guard);
    bool owes = call.holder->held.first != NULL;
    if (!owes)
        call.holder->thread = NULL;
    rsi_guard_unlock(&set->guard);
    /* If other threads take over the held members before this, the debt is empty and harmless. */
    if (owes)
        rsi_poll_owe_set(call.self, set->index);
    return (int)result;
}

RSI_NOINLINE int rouse_set_wait(struct rouse_set *set, struct rouse_set_event *events,
                                unsigned count)
{
    return do_wait(set, events, count, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE int rouse_set_wait_until(struct rouse_set *set, struct rouse_set_event *events,
                                      unsigned count, uint64_t deadline_ns)
{
    return do_wait(set, events, count, deadline_ns, RSI_CALLER());
}
