/* SPDX-License-Identifier: MIT */
/*
 * gates.c - a round robin over the processes that share a listener: only the process whose turn it is is notified.
 *
 * src/turns/ decides whose turn it is. Here the turn is delivered by the kernel, without a system call that only wakes:
 * the processes share, from before the fork, one epoll set per place (its gate), and each process watches its own gate
 * in its own epoll set. The listener is in the gate of the process whose turn it is, so the kernel notifies only that
 * process. A process that has taken a connection passes the turn:
 *   P1 remove the listener from its gate   P2 swap turn   P3 add the listener to the next gate
 * This is two system calls per connection. If a connection already waits, P3 notifies the next process at once.
 *
 * The watch below catches a process that dies between P2 and P3. P3 may also be late: the next process may have seen
 * turn, taken a connection and passed the turn before the listener arrives in its gate. It then gets one spurious
 * wake-up and cleans up: C1 removes the listener, C2 reads turn again, and if the turn is its own it adds the
 * listener again. C1 precedes C2 here and P2 precedes P3 there, so either C2 sees the swap or P3 follows C1.
 * Adding a descriptor that is already in the gate announces nothing, so it is removed first.
 *
 * The watch: while turns move, each process that waits out of turn checks every 100 ms that they still do (a timerfd).
 * If nothing has arrived meanwhile it watches the listener for the next connection instead (EPOLLEXCLUSIVE: the kernel
 * notifies one of the watching processes that waits, and forgets dead ones) and checks 100 ms after that. So an idle
 * process makes no system calls. A connection after idle time wakes one process besides the one whose turn it is. At
 * other times watching costs each process ten checks per second.
 *
 * Rejected: an eventfd per process, written by the process that passes the turn (each turn wakes a process that has
 * nothing to accept yet).
 */
#include "io/accept/gates.h"

#include "io/ready.h"
#include "turns/turns.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

struct place {
    uint64_t owner;
    char pad[RSI_CACHE_LINE - sizeof(uint64_t)];
};

struct shared {
    uint64_t turn;
    char pad[RSI_CACHE_LINE - sizeof(uint64_t)];
    struct place places[];
};

enum watch { WATCH_OFF, WATCH_TIMER, WATCH_LISTENER };

/* This process's part, under the entry's arming lock. */
struct rsi_gates {
    struct shared *shared;
    struct rsi_turns_places places;
    struct rsi_turns_watch watched;
    uint64_t owner; /* the value in our place */
    uint64_t data;
    unsigned place; /* ours, or 0 */
    int timer_fd;   /* or -1 */
    uint8_t watch;  /* enum watch */
    int gates[RSI_TURNS_PLACES_MOST];
};

static size_t shared_bytes(unsigned count)
{
    return sizeof(struct shared) + count * sizeof(struct place);
}

static uint64_t turn_now(const struct rsi_gates *t)
{
    return rsi_load_seq_cst(&t->shared->turn);
}

void rsi_gates_drop(struct rsi_gates *t)
{
    for (unsigned i = 0; i < t->places.count; i++)
        if (t->gates[i] >= 0)
            rsi_syscall1(SYS_close, t->gates[i]);
    if (t->timer_fd >= 0)
        rsi_syscall1(SYS_close, t->timer_fd);
    if (t->shared != NULL)
        rsi_unmap(t->shared, shared_bytes(t->places.count));
    rsi_unmap(t, sizeof *t);
}

int rsi_gates_make(unsigned processes, struct rsi_gates **gates)
{
    struct rsi_gates *t = rsi_map(sizeof *t);
    if (t == NULL)
        return -ENOMEM;
    t->timer_fd = -1;
    long result = rsi_syscall6(SYS_mmap, 0, (long)shared_bytes(processes), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result >= 0 || result < -4095) {
        t->shared = (void *)result; /* NOLINT(performance-no-int-to-ptr): an address */
        result = 0;
    }
    t->places = (struct rsi_turns_places){
        .first = t->shared != NULL ? t->shared->places : NULL,
        .stride = sizeof(struct place),
        .count = processes,
    };
    for (unsigned i = 0; i < processes; i++) {
        t->gates[i] = result < 0 ? -1 : (int)rsi_syscall1(SYS_epoll_create1, EPOLL_CLOEXEC);
        result = result < 0 ? result : t->gates[i] < 0 ? t->gates[i] : 0;
    }
    if (result < 0)
        rsi_gates_drop(t);
    else
        *gates = t;
    return (int)result;
}

static int gate_of(const struct rsi_gates *t, unsigned place)
{
    return t->gates[place - 1];
}

static void gate_close(const struct rsi_gates *t, unsigned place, int fd)
{
    rsi_syscall4(SYS_epoll_ctl, gate_of(t, place), EPOLL_CTL_DEL, fd, NULL);
}

/* If this fails (memory), the watch passes the turn on. */
static void gate_open(const struct rsi_gates *t, unsigned place, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };
    while (rsi_syscall4(SYS_epoll_ctl, gate_of(t, place), EPOLL_CTL_ADD, fd, &event) == -EEXIST)
        gate_close(t, place, fd);
}

/* The argument of the functions in rules. */
struct giver {
    struct rsi_gates *gates;
    int fd;
};

/* Round robin. The place that has the turn is considered last. */
static unsigned next_after(const struct rsi_gates *t, uint64_t turn)
{
    unsigned count = t->places.count, at = rsi_turn_place(turn) + count - 1;
    for (unsigned i = 1; i <= count; i++) {
        unsigned place = (at + i) % count + 1;
        if (rsi_turns_may_have(rsi_turns_owner(&t->places, place)))
            return place;
    }
    return 0;
}

static unsigned choose(void *user, uint64_t turn, uint64_t *ticket)
{
    const struct giver *giver = user;
    (void)ticket; /* a new owner of the place watches the same gate */
    return next_after(giver->gates, turn);
}

static bool is_there(void *user, unsigned place, uint64_t ticket)
{
    const struct giver *giver = user;
    (void)ticket;
    return rsi_turns_owner(&giver->gates->places, place) != 0;
}

static void notify(void *user, unsigned place)
{
    const struct giver *giver = user;
    gate_open(giver->gates, place, giver->fd);
}

static const struct rsi_turns_rules rules = { choose, is_there, notify };

/* Give the turn on, if it has not changed. */
static void give(struct rsi_gates *t, uint64_t turn, int fd)
{
    struct giver giver = { t, fd };
    (void)rsi_turns_give(&t->shared->turn, turn, &rules, &giver);
}

static bool has_connection(int fd)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    struct timespec zero = { 0, 0 };
    return rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) > 0;
}

static uint64_t watch_data(const struct rsi_gates *t)
{
    return t->data | RSI_EPOLL_WATCH;
}

static void watch_by_timer(struct rsi_gates *t, int fd, uint64_t ns)
{
    struct itimerspec in = { .it_value = rsi_timespec(ns) };
    if (t->watch == WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
    rsi_syscall4(SYS_timerfd_settime, t->timer_fd, 0, &in, NULL);
    t->watch = WATCH_TIMER;
}

static void watch_by_listener(struct rsi_gates *t, int fd)
{
    if (t->watch != WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, watch_data(t));
    t->watch = WATCH_LISTENER;
}

static void watch_begin(struct rsi_gates *t, int fd)
{
    if (t->watch != WATCH_OFF)
        return;
    t->watched = (struct rsi_turns_watch){ .turn = turn_now(t) };
    watch_by_timer(t, fd, RSI_TURNS_OVERDUE_NS);
}

/* A turn was not used in time: mark its place as missed and give the turn on. */
static void take_over(struct rsi_gates *t, uint64_t turn, int fd)
{
    /* The gate stays open: when the process runs again, the next connection notifies it, and it asks. */
    if (rsi_turn_place(turn) != 0)
        rsi_turns_mark(&t->places, rsi_turn_place(turn));
    give(t, turn, fd);
}

/* Whether our place is still ours. *was_missed: it had missed a turn. */
static bool keep_place(struct rsi_gates *t, bool *was_missed)
{
    if (t->place == 0)
        return false;
    if (rsi_turns_owner(&t->places, t->place) == t->owner)
        return true;
    *was_missed = true;
    if (rsi_turns_unmark(&t->places, t->place, t->owner))
        return true;
    rsi_epoll_control(EPOLL_CTL_DEL, gate_of(t, t->place), 0, 0);
    t->place = 0;
    return false;
}

void rsi_gates_look(struct rsi_gates *t, int fd)
{
    /* This process runs again, and may be the only one left. */
    if (t->place != 0)
        (void)rsi_turns_unmark(&t->places, t->place, t->owner);
    uint64_t turn = turn_now(t);
    if (t->place == 0 || rsi_turn_place(turn) == t->place) {
        if (t->watch == WATCH_LISTENER)
            rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
        t->watch = WATCH_OFF; /* until we pass the turn */
        return;
    }
    bool is_same = turn == t->watched.turn, is_waiting = has_connection(fd);
    uint64_t in_ns = rsi_turns_check(&t->watched, turn, is_waiting, rsi_now_ns());
    if (in_ns == 0)
        take_over(t, turn, fd);
    if (is_same && !is_waiting)
        watch_by_listener(t, fd);
    else
        watch_by_timer(t, fd, in_ns != 0 ? in_ns : RSI_TURNS_OVERDUE_NS);
}

static int join(struct rsi_gates *t)
{
    t->owner = rsi_turns_owner_make((unsigned)rsi_syscall0(SYS_getpid));
    t->place = rsi_turns_place_take(&t->places, t->owner, true);
    return t->place != 0 ? 0 : -EUSERS;
}

static int timer_make(struct rsi_gates *t)
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

int rsi_gates_ask(struct rsi_gates *t, int fd, uint64_t data, bool was_woken, bool *is_new)
{
    bool is_doubtful = was_woken;
    t->data = data;
    if (rsi_unlikely(!keep_place(t, &is_doubtful))) {
        int result = timer_make(t);
        result = result < 0 ? result : join(t);
        if (result < 0)
            return result;
        is_doubtful = *is_new = true;
    }
    uint64_t turn = turn_now(t);
    unsigned place = t->place;
    if (rsi_turn_place(turn) != place && is_doubtful) {
        gate_close(t, place, fd); /* C1 */
        turn = turn_now(t);       /* C2 */
        unsigned other = rsi_turn_place(turn);
        bool is_free = other == 0 || rsi_turns_owner(&t->places, other) == 0;
        if (other == place || (is_free && rsi_turns_take(&t->shared->turn, turn, place)))
            gate_open(t, place, fd);
        turn = turn_now(t);
    } else if (*is_new) {
        gate_open(t, place, fd);
    }
    if (rsi_turn_place(turn) == place)
        return 1;
    watch_begin(t, fd);
    return 0;
}

bool rsi_gates_is_mine(const struct rsi_gates *t)
{
    return t->place != 0 && rsi_turn_place(turn_now(t)) == t->place;
}

void rsi_gates_pass(struct rsi_gates *t, int fd)
{
    uint64_t turn = turn_now(t);
    if (t->place == 0 || rsi_turn_place(turn) != t->place)
        return;
    unsigned next = next_after(t, turn);
    if (next == t->place || next == 0)
        return;
    gate_close(t, t->place, fd);
    give(t, turn, fd);
    watch_begin(t, fd);
}

void rsi_gates_leave(struct rsi_gates *t, int fd)
{
    if (t->place == 0)
        return;
    unsigned place = t->place;
    rsi_turns_place_leave(&t->places, place, t->owner); /* L1 */
    gate_close(t, place, fd);
    uint64_t turn = turn_now(t); /* L2 */
    if (rsi_turn_place(turn) == place)
        give(t, turn, fd);
    if (t->watch == WATCH_LISTENER)
        rsi_epoll_control(EPOLL_CTL_DEL, fd, 0, 0);
    rsi_epoll_control(EPOLL_CTL_DEL, gate_of(t, place), 0, 0);
    t->watch = WATCH_OFF;
    t->place = 0;
}

int rsi_gates_fd(const struct rsi_gates *t)
{
    return gate_of(t, t->place);
}

void rsi_gates_child(struct rsi_gates *t)
{
    if (t->timer_fd >= 0)
        rsi_syscall1(SYS_close, t->timer_fd);
    t->timer_fd = -1;
    t->place = 0;
    t->watch = WATCH_OFF;
}
