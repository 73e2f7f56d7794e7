/* SPDX-License-Identifier: MIT */
/*
 * turns.c - a round robin over the processes that share a listener.
 *
 * Problem: a connection must wake only the process whose turn it is, and a process that dies or stops during its
 * turn must not stop the others.
 *
 * Shared state, made before the fork: one word, turn (a growing number, and the slot whose turn it is), an owner for
 * each slot, and for each slot an epoll set (its gate). A process watches its own gate in its own epoll set. The
 * listener is in the gate of the process whose turn it is, so the kernel notifies only that process. A process that
 * has taken a connection passes the turn:
 *   P1 remove the listener from its gate   P2 swap turn   P3 add the listener to the next gate
 * This is two system calls per connection. If a connection already waits, P3 notifies the next process at once.
 *
 * The watch below catches a process that dies between P2 and P3. P3 may also be late: the next process may have seen
 * turn, taken a connection and passed the turn before the listener arrives in its gate. It then gets one spurious
 * wake-up and cleans up: C1 removes the listener, C2 reads turn again, and if the turn is its own it adds the
 * listener again. C1 precedes C2 here and P2 precedes P3 there, so either C2 sees the swap or P3 follows C1.
 * Adding a descriptor that is already in the gate announces nothing, so it is removed first.
 *
 * The watch: a turn that is not taken for 100 ms passes on. Each process that waits out of turn watches the others.
 * While turns move it checks every 100 ms that they still do (a timerfd). If nothing has arrived meanwhile it
 * watches the listener for the next connection instead (EPOLLEXCLUSIVE: the kernel notifies one of the watching
 * processes that waits, and forgets dead ones) and checks 100 ms after that. So an idle process makes no system
 * calls. A connection after idle time wakes one process besides the one whose turn it is. At other times watching
 * costs each process ten checks per second. A process that finds the same turn and a connection 100 ms
 * after it first found them marks the slot as missed and passes the turn on. A missed slot gets no turn until its
 * process finds the mark, when it next asks, and removes it.
 *
 * Slots: owner is 0 or process id << 32 | mark. A new process takes a free slot, one whose process has died, or one
 * that missed its turn. A leaving process clears its owner and then checks whether it has the turn. A passing process
 * swaps turn and then checks whether the new owner is still there. One of the two sees the other and passes on.
 *
 * Rejected: a lock in shared memory (it must be broken when its holder dies or stops); an eventfd per process,
 * written by the process that passes the turn (each turn wakes a process that has nothing to accept yet); pidfds
 * (they report a death, but not a stop). preload/accept/order.c solves the same problem for threads of unrelated
 * programs, with queues and futexes: docs/decisions.md says why the two are not one.
 */
#include "io/accept/turns.h"

#include "io/ready.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#define OVERDUE_NS UINT64_C(100000000)
#define NOBODY UINT16_MAX
#define MISSED UINT64_C(1)

struct slot {
    uint64_t owner;
    char pad[RSI_CACHE_LINE - sizeof(uint64_t)];
};

struct shared {
    uint64_t turn; /* number << 16 | slot; swapped seq_cst by all */
    char pad[RSI_CACHE_LINE - sizeof(uint64_t)];
    struct slot slots[];
};

enum watch { WATCH_OFF, WATCH_TIMER, WATCH_LISTENER };

/* This process's part, under the entry's arming lock. */
struct rsi_turns {
    struct shared *shared;
    uint64_t owner; /* the value in our slot */
    uint64_t data;
    uint64_t seen_turn; /* turn at the last check */
    /* When the connection that was there at the last check is overdue. 0: there was none. */
    uint64_t overdue_ns;
    unsigned count; /* slots */
    int slot;       /* ours, or -1 */
    int timer_fd;   /* or -1 */
    uint8_t watch;  /* enum watch */
    int gates[RSI_TURNS_MOST];
};

static size_t shared_bytes(unsigned count)
{
    return sizeof(struct shared) + count * sizeof(struct slot);
}

static unsigned slot_of(uint64_t turn)
{
    return (unsigned)(turn & NOBODY);
}

static uint64_t owner_of(const struct rsi_turns *t, unsigned slot)
{
    return rsi_load_seq_cst(&t->shared->slots[slot].owner);
}

static uint64_t turn_now(const struct rsi_turns *t)
{
    return rsi_load_seq_cst(&t->shared->turn);
}

void rsi_turns_drop(struct rsi_turns *t)
{
    for (unsigned i = 0; i < t->count; i++)
        if (t->gates[i] >= 0)
            rsi_syscall1(SYS_close, t->gates[i]);
    if (t->timer_fd >= 0)
        rsi_syscall1(SYS_close, t->timer_fd);
    if (t->shared != NULL)
        rsi_unmap(t->shared, shared_bytes(t->count));
    rsi_unmap(t, sizeof *t);
}

int rsi_turns_make(unsigned processes, struct rsi_turns **turns)
{
    struct rsi_turns *t = rsi_map(sizeof *t);
    if (t == NULL)
        return -ENOMEM;
    t->slot = t->timer_fd = -1;
    t->count = processes;
    long result = rsi_syscall6(SYS_mmap, 0, (long)shared_bytes(processes), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result >= 0 || result < -4095) {
        t->shared = (void *)result; /* NOLINT(performance-no-int-to-ptr): an address */
        t->shared->turn = NOBODY;
        result = 0;
    }
    for (unsigned i = 0; i < processes; i++) {
        t->gates[i] = result < 0 ? -1 : (int)rsi_syscall1(SYS_epoll_create1, EPOLL_CLOEXEC);
        result = result < 0 ? result : t->gates[i] < 0 ? t->gates[i] : 0;
    }
    if (result < 0)
        rsi_turns_drop(t);
    else
        *turns = t;
    return (int)result;
}

static void gate_close(const struct rsi_turns *t, unsigned slot, int fd)
{
    rsi_syscall4(SYS_epoll_ctl, t->gates[slot], EPOLL_CTL_DEL, fd, NULL);
}

/* If this fails (memory), the watch passes the turn on. */
static void gate_open(const struct rsi_turns *t, unsigned slot, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };
    while (rsi_syscall4(SYS_epoll_ctl, t->gates[slot], EPOLL_CTL_ADD, fd, &event) == -EEXIST)
        gate_close(t, slot, fd);
}

/* The next slot that may get the turn. slot itself is considered last. */
static unsigned next_after(const struct rsi_turns *t, unsigned slot)
{
    for (unsigned i = 1; i <= t->count; i++) {
        unsigned next = (slot + i) % t->count;
        uint64_t owner = owner_of(t, next);
        if (owner != 0 && (owner & MISSED) == 0)
            return next;
    }
    return NOBODY;
}

/* Swap turn, if it has not changed, and open the gate. Returns false if another process was faster. */
static bool move(struct rsi_turns *t, uint64_t turn, unsigned to, int fd)
{
    for (;;) {
        uint64_t next = (((turn >> 16) + 1) << 16) | to;
        if (!rsi_cas_seq_cst(&t->shared->turn, &turn, next))
            return false;
        if (to == NOBODY)
            return true;
        if (owner_of(t, to) != 0) {
            gate_open(t, to, fd);
            return true;
        }
        turn = next; /* that process has just left */
        to = next_after(t, to);
    }
}

static bool has_connection(int fd)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    struct timespec zero = { 0, 0 };
    return rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) > 0;
}

static uint64_t watch_data(const struct rsi_turns *t)
{
    return t->data | RSI_EPOLL_WATCH;
}

static void watch_by_timer(struct rsi_turns *t, int fd, uint64_t ns)
{
    struct itimerspec in = { .it_value = rsi_timespec(ns) };
    if (t->watch == WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
    rsi_syscall4(SYS_timerfd_settime, t->timer_fd, 0, &in, NULL);
    t->watch = WATCH_TIMER;
}

static void watch_by_listener(struct rsi_turns *t, int fd)
{
    if (t->watch != WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, watch_data(t));
    t->watch = WATCH_LISTENER;
}

static void watch_begin(struct rsi_turns *t, int fd)
{
    if (t->watch != WATCH_OFF)
        return;
    t->seen_turn = turn_now(t);
    t->overdue_ns = 0;
    watch_by_timer(t, fd, OVERDUE_NS);
}

/* A turn was not taken in time: mark its slot as missed and pass the turn on. */
static void take_over(struct rsi_turns *t, uint64_t turn, int fd)
{
    unsigned slot = slot_of(turn);
    if (slot != NOBODY) {
        uint64_t owner = owner_of(t, slot);
        if (owner != 0)
            rsi_cas_seq_cst(&t->shared->slots[slot].owner, &owner, owner | MISSED);
    }
    /* Its gate stays open: when its process runs again, the next connection notifies it, and it asks. */
    move(t, turn, next_after(t, slot == NOBODY ? 0 : slot), fd);
}

/* Whether our slot is still ours. *was_missed: it had missed a turn. */
static bool keep_slot(struct rsi_turns *t, bool *was_missed)
{
    if (t->slot < 0)
        return false;
    uint64_t owner = owner_of(t, (unsigned)t->slot), missed = t->owner | MISSED;
    if (owner == t->owner)
        return true;
    *was_missed = true;
    if (owner == missed && rsi_cas_seq_cst(&t->shared->slots[t->slot].owner, &missed, t->owner))
        return true;
    rsi_epoll_control(EPOLL_CTL_DEL, t->gates[t->slot], 0, 0);
    t->slot = -1;
    return false;
}

void rsi_turns_look(struct rsi_turns *t, int fd)
{
    uint64_t turn = turn_now(t), now_ns = rsi_now_ns(), missed = t->owner | MISSED;
    /* This process runs again, and may be the only one left. */
    if (t->slot >= 0)
        rsi_cas_seq_cst(&t->shared->slots[t->slot].owner, &missed, t->owner);
    bool is_same = turn == t->seen_turn;
    t->seen_turn = turn;
    if (t->slot < 0 || slot_of(turn) == (unsigned)t->slot) {
        if (t->watch == WATCH_LISTENER)
            rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
        t->watch = WATCH_OFF; /* until we pass the turn */
    } else if (!has_connection(fd)) {
        t->overdue_ns = 0;
        if (is_same)
            watch_by_listener(t, fd);
        else
            watch_by_timer(t, fd, OVERDUE_NS);
    } else if (!is_same || t->overdue_ns == 0) {
        t->overdue_ns = now_ns + OVERDUE_NS;
        watch_by_timer(t, fd, OVERDUE_NS);
    } else if (now_ns < t->overdue_ns) {
        watch_by_timer(t, fd, t->overdue_ns - now_ns);
    } else {
        t->overdue_ns = 0;
        take_over(t, turn, fd);
        watch_by_timer(t, fd, OVERDUE_NS);
    }
}

/* Take the slot if its process no longer takes turns. */
static bool take_slot(struct rsi_turns *t, unsigned slot, bool is_missed_enough)
{
    uint64_t owner = owner_of(t, slot);
    bool is_free = owner == 0 || (is_missed_enough && (owner & MISSED) != 0) ||
                   rsi_syscall2(SYS_kill, (long)(owner >> 32), 0) == -ESRCH;
    if (!is_free || !rsi_cas_seq_cst(&t->shared->slots[slot].owner, &owner, t->owner))
        return false;
    t->slot = (int)slot;
    return true;
}

static int join(struct rsi_turns *t)
{
    t->owner = (uint64_t)rsi_syscall0(SYS_getpid) << 32 | 2;
    for (unsigned attempt = 0; attempt < 2; attempt++)
        for (unsigned slot = 0; slot < t->count; slot++)
            if (take_slot(t, slot, attempt == 1))
                return 0;
    return -EUSERS;
}

static int timer_make(struct rsi_turns *t)
{
    if (t->timer_fd >= 0)
        return 0;
    long fd = rsi_syscall2(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
        return (int)fd;
    t->timer_fd = (int)fd;
    int result = rsi_epoll_control(EPOLL_CTL_ADD, t->timer_fd, EPOLLIN | EPOLLET, watch_data(t));
    if (result < 0) {
        rsi_syscall1(SYS_close, fd);
        t->timer_fd = -1;
    }
    return result;
}

int rsi_turns_ask(struct rsi_turns *t, int fd, uint64_t data, bool was_woken, bool *is_new)
{
    bool is_doubtful = was_woken;
    t->data = data;
    if (rsi_unlikely(!keep_slot(t, &is_doubtful))) {
        int result = timer_make(t);
        result = result < 0 ? result : join(t);
        if (result < 0)
            return result;
        is_doubtful = *is_new = true;
    }
    uint64_t turn = turn_now(t);
    unsigned slot = (unsigned)t->slot;
    if (slot_of(turn) != slot && is_doubtful) {
        gate_close(t, slot, fd); /* C1 */
        turn = turn_now(t);      /* C2 */
        if (slot_of(turn) == slot)
            gate_open(t, slot, fd);
        else if (slot_of(turn) == NOBODY || owner_of(t, slot_of(turn)) == 0)
            move(t, turn, slot, fd);
        turn = turn_now(t);
    } else if (*is_new) {
        gate_open(t, slot, fd);
    }
    if (slot_of(turn) == slot)
        return 1;
    watch_begin(t, fd);
    return 0;
}

bool rsi_turns_is_mine(const struct rsi_turns *t)
{
    return t->slot >= 0 && slot_of(turn_now(t)) == (unsigned)t->slot;
}

void rsi_turns_pass(struct rsi_turns *t, int fd)
{
    if (!rsi_turns_is_mine(t))
        return;
    uint64_t turn = turn_now(t);
    unsigned slot = (unsigned)t->slot, next = next_after(t, slot);
    if (next == slot || next == NOBODY || slot_of(turn) != slot)
        return;
    gate_close(t, slot, fd);
    move(t, turn, next, fd);
    watch_begin(t, fd);
}

void rsi_turns_leave(struct rsi_turns *t, int fd)
{
    if (t->slot < 0)
        return;
    unsigned slot = (unsigned)t->slot;
    uint64_t owner = t->owner, missed = t->owner | MISSED;
    if (!rsi_cas_seq_cst(&t->shared->slots[slot].owner, &owner, 0))
        rsi_cas_seq_cst(&t->shared->slots[slot].owner, &missed, 0);
    gate_close(t, slot, fd);
    uint64_t turn = turn_now(t);
    if (slot_of(turn) == slot)
        move(t, turn, next_after(t, slot), fd);
    if (t->watch == WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
    rsi_epoll_control(EPOLL_CTL_DEL, t->gates[slot], 0, 0);
    t->watch = WATCH_OFF;
    t->slot = -1;
}

int rsi_turns_fd(const struct rsi_turns *t)
{
    return t->gates[t->slot];
}

void rsi_turns_child(struct rsi_turns *t)
{
    if (t->timer_fd >= 0)
        rsi_syscall1(SYS_close, t->timer_fd);
    t->timer_fd = t->slot = -1;
    t->watch = WATCH_OFF;
}
