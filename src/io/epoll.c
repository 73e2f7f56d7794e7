/* SPDX-License-Identifier: MIT */
/*
 * epoll.c - the epoll set: the registered descriptors, and the poller that core calls.
 *
 * A descriptor is added by the first call that must wait for it, edge-triggered, for the side that waits. The other
 * side is added when it is first waited for. Reading stays on. Writing stays on for TCP, which reports room only after
 * a call that found none. For other types the kernel reports room after every item that leaves (AF_UNIX: at every read
 * by the peer), so the first such event that no thread waits for switches writing off. close(2) removes a descriptor
 * from the set. If a copy of it lives on in another process, events of the old generation may still arrive and are
 * ignored: an explicit removal would cost a system call per close.
 *
 * The first wait makes the set and registers the poller with core. A program without I/O has neither.
 */
#include "io/accept/listener.h"
#include "io/accept/order.h"
#include "io/ready.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#define EVENTS 256
#define INTERRUPT_DATA UINT64_MAX

static struct {
    /* Of the one poll under way. Too large for a thread's stack. */
    struct epoll_event events[EVENTS];

    uint32_t guard; /* held while the set is made */
    int epoll_fd;   /* plus 1. 0: no set yet. Written by release in make_set, read by acquire */
    int event_fd;   /* written before epoll_fd */
    uint32_t interrupted; /* 1 while an interrupt is pending: others need not write */
    uint32_t lacks_pwait2;
} set;

/* Without this descriptor, wake-ups would be lost: better no program than one that hangs. */
static _Noreturn RSI_COLD void lost(int fd, const char *what, long error)
{
    rsi_fatal(
        "descriptor %d is no longer our %s (%s); do not close descriptors that the program did not open",
        fd, what, strerror((int)-error));
}

static void interrupt(void)
{
    const uint64_t one = 1;
    int event_fd = rsi_load_relaxed(&set.event_fd);
    long result;
    /*
     * Release: the poll that takes the 1 sees what the caller did before. Acquire: a caller that finds the 1 knows that
     * such a poll is still to come. Pairs with take_interrupt.
     */
    if (rsi_exchange_acq_rel(&set.interrupted, 1) != 0)
        return;
    /* Linux never ends such a write with -EINTR, but an emulator may, and the wake-up would be lost. */
    do {
        result = rsi_syscall3(SYS_write, event_fd, &one, sizeof one);
    } while (result == -EINTR);
    if (rsi_unlikely(result < 0 && result != -EAGAIN))
        lost(event_fd, "eventfd", result);
}

/* Make the set. Returns its descriptor or -errno. */
static int make_set(void)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = INTERRUPT_DATA };
    long epoll_fd = rsi_syscall1(SYS_epoll_create1, EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        return (int)epoll_fd;
    long event_fd = rsi_syscall2(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
    long result = event_fd;
    if (event_fd >= 0)
        result = rsi_syscall4(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_ADD, event_fd, &event);
    if (result < 0) {
        rsi_syscall1(SYS_close, epoll_fd);
        if (event_fd >= 0)
            rsi_syscall1(SYS_close, event_fd);
        return (int)result;
    }
    rsi_store_relaxed(&set.event_fd, (int)event_fd);
    rsi_store_release(&set.epoll_fd, (int)epoll_fd + 1);
    return (int)epoll_fd;
}

int rsi_epoll_fd(void)
{
    return rsi_load_acquire(&set.epoll_fd) - 1; /* pairs with make_set */
}

RSI_COLD int rsi_epoll_start(void)
{
    rsi_guard_lock(&set.guard);
    int epoll_fd = set.epoll_fd - 1;
    if (epoll_fd < 0)
        epoll_fd = make_set();
    rsi_guard_unlock(&set.guard);
    return epoll_fd;
}

static struct epoll_event interest(const struct rsi_io_op *op, uint8_t armed)
{
    struct epoll_event event = { .events = EPOLLET };
    if ((armed & (1u << RSI_FD_READ)) != 0)
        event.events |= RSI_FD_READ_EVENTS;
    if ((armed & (1u << RSI_FD_WRITE)) != 0)
        event.events |= RSI_FD_WRITE_EVENTS;
    event.data.u64 = (uint64_t)op->ref.generation << 32 | (unsigned)op->fd;
    return event;
}

/* A listener that is registered by another event or descriptor, neither of which EPOLL_CTL_MOD can change. */
static long control_listener(int epoll_fd, const struct rsi_io_op *op, uint8_t after,
                             struct epoll_event *event)
{
    int fd = rsi_listener_fd(op);
    long result = 0;
    while (after != 0 &&
           (result = rsi_syscall4(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_ADD, fd, event)) == -EEXIST)
        rsi_syscall4(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    if (after == 0)
        rsi_syscall4(SYS_epoll_ctl, epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    return result;
}

/* Add or modify. If a close of the number was not seen, our state is wrong, and the other operation is right. */
static long control(int epoll_fd, const struct rsi_io_op *op, uint8_t before, uint8_t after)
{
    struct epoll_event event = interest(op, after);
    if (rsi_unlikely((rsi_load_relaxed(&op->ref.entry->flags) & RSI_FD_IS_ORDERED) != 0) &&
        rsi_listener_arms(op, after, &event))
        return control_listener(epoll_fd, op, after, &event);
    int first = before != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    long result = rsi_syscall4(SYS_epoll_ctl, epoll_fd, first, op->fd, &event);
    if (result == -ENOENT || result == -EEXIST)
        result = rsi_syscall4(SYS_epoll_ctl, epoll_fd,
                              result == -ENOENT ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, op->fd, &event);
    return result;
}

static bool is_awaited_locked(struct rsi_fd *entry, uint8_t bits)
{
    for (unsigned side = 0; side < 2; side++)
        if ((bits & (1u << side)) != 0 && entry->sides[side].first != NULL)
            return true;
    return (bits & (1u << RSI_FD_READ)) != 0 && rsi_order_has_waiters_locked(entry);
}

/* Change armed to (armed | add) & ~drop, unless the descriptor was closed. Arming is held. */
static int rearm(int epoll_fd, const struct rsi_io_op *op, uint8_t add, uint8_t drop)
{
    struct rsi_fd *entry = op->ref.entry;
    rsi_guard_lock(&entry->guard);
    uint8_t before = entry->armed, after = (uint8_t)((before | add) & ~drop);
    bool is_closed = entry->generation != op->ref.generation;
    bool is_idle = drop == 0 || !is_awaited_locked(entry, drop);
    /* The set does not report a side that a ring receives. */
    uint8_t elsewhere = (entry->flags & RSI_FD_IS_MULTISHOT) != 0 ? 1u << RSI_FD_READ : 0;
    /* Clear dropped bits first: a thread that comes now waits for arming to set them again. */
    if (!is_closed && is_idle && drop != 0)
        rsi_store_relaxed(&entry->armed, after);
    rsi_guard_unlock(&entry->guard);
    if (is_closed)
        return -EBADF;
    if (!is_idle || before == after)
        return 0;
    long result = control(epoll_fd, op, before & (uint8_t)~elsewhere, after & (uint8_t)~elsewhere);
    if (result < 0 || add == 0)
        return (int)result;
    rsi_guard_lock(&entry->guard);
    rsi_store_relaxed(&entry->armed, entry->armed | add);
    rsi_guard_unlock(&entry->guard);
    return 0;
}

/* The set's descriptor, or -errno. */
static int epoll_fd_of(void)
{
    int epoll_fd = rsi_load_acquire(&set.epoll_fd) - 1; /* pairs with make_set */
    if (rsi_unlikely(epoll_fd < 0)) {
        epoll_fd = rsi_epoll_start();
        if (epoll_fd >= 0)
            rsi_poller_register(rsi_backend()->poller);
    }
    return epoll_fd;
}

int rsi_epoll_control(int operation, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = { .events = events, .data.u64 = data };
    int epoll_fd = epoll_fd_of();
    return epoll_fd < 0 ? epoll_fd
                        : (int)rsi_syscall4(SYS_epoll_ctl, epoll_fd, operation, fd, (long)&event);
}

int rsi_epoll_arm(const struct rsi_io_op *op, uint8_t bits)
{
    int epoll_fd = epoll_fd_of();
    if (rsi_unlikely(epoll_fd < 0))
        return epoll_fd;
    rsi_guard_lock(&op->ref.entry->arming);
    int result = rearm(epoll_fd, op, bits, 0);
    rsi_guard_unlock(&op->ref.entry->arming);
    return result;
}

void rsi_epoll_disarm(const struct rsi_io_op *op, uint8_t bits)
{
    rsi_guard_lock(&op->ref.entry->arming);
    (void)rearm(epoll_fd_of(), op, 0, bits);
    rsi_guard_unlock(&op->ref.entry->arming);
}

/* The time until deadline_ns, as a time-out. NULL for no limit. */
static struct timespec *time_left(uint64_t deadline_ns, struct timespec *left)
{
    if (deadline_ns == UINT64_MAX)
        return NULL;
    uint64_t now_ns = deadline_ns != 0 ? rsi_now_ns() : 0;
    *left = rsi_timespec(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    return left;
}

static long wait_for_events(int epoll_fd, uint64_t deadline_ns)
{
    struct timespec buffer, *left = time_left(deadline_ns, &buffer);
    int timeout_ms = -1;
    if (deadline_ns != 0 && left != NULL && !rsi_load_relaxed(&set.lacks_pwait2)) {
        long result =
            rsi_syscall6(SYS_epoll_pwait2, epoll_fd, (long)set.events, EVENTS, (long)left, 0, 0);
        if (result != -ENOSYS)
            return result;
        rsi_store_relaxed(&set.lacks_pwait2, 1);
    }
    if (left != NULL) {
        /* Rounded up: an early return would be a spurious wake-up. */
        uint64_t ms = (uint64_t)left->tv_sec * 1000 + (uint64_t)(left->tv_nsec + 999999) / 1000000;
        timeout_ms = ms < INT_MAX ? (int)ms : INT_MAX;
    }
    return rsi_syscall6(SYS_epoll_pwait, epoll_fd, (long)set.events, EVENTS, timeout_ms, 0, 0);
}

static void handle(const struct epoll_event *event, struct rsi_fd_batch *batch)
{
    struct rsi_io_op op = { .fd = (int)(event->data.u64 & INT32_MAX) };
    uint8_t idle = 0;
    op.ref.entry = rsi_fdtable_peek(op.fd);
    op.ref.generation = (uint32_t)(event->data.u64 >> 32);
    if (op.ref.entry == NULL)
        return;
    if (rsi_unlikely((event->data.u64 & RSI_EPOLL_WATCH) != 0))
        rsi_listener_look(&op);
    else
        idle = rsi_ready_event(op.ref.entry, op.ref.generation, event->events, batch);
    if (rsi_unlikely(idle != 0))
        rsi_epoll_disarm(&op, idle);
}

/* Only a poll that may block takes the interrupt, which is meant for the polling worker that sleeps. */
static void take_interrupt(void)
{
    uint64_t count;
    rsi_syscall3(SYS_read, rsi_load_relaxed(&set.event_fd), &count, sizeof count);
    /* After the read: an interrupt in between finds the 1, and this poll ends anyway. */
    rsi_exchange_acq_rel(&set.interrupted, 0);
}

static void poll_events(uint64_t deadline_ns)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    int epoll_fd = rsi_load_acquire(&set.epoll_fd) - 1; /* pairs with make_set */
    long count;
    do {
        count = wait_for_events(epoll_fd, deadline_ns);
    } while (count == -EINTR && deadline_ns != 0);
    if (rsi_unlikely(count < 0 && count != -EINTR))
        lost(epoll_fd, "epoll set", count);
    for (long i = 0; i < count; i++) {
        if (rsi_likely(set.events[i].data.u64 != INTERRUPT_DATA))
            handle(&set.events[i], &batch);
        else if (deadline_ns != 0)
            take_interrupt();
    }
    rsi_fdtable_publish(&batch);
}

static void child(void)
{
    rsi_fdtable_child();
    if (set.epoll_fd != 0) {
        rsi_syscall1(SYS_close, set.epoll_fd - 1);
        rsi_syscall1(SYS_close, set.event_fd);
    }
    set.epoll_fd = 0;
    set.guard = 0;
    rsi_backend_child();
    set.interrupted = 0;
}

static int arm(const struct rsi_io_op *op)
{
    return rsi_epoll_arm(op, (uint8_t)(1u << op->side));
}

const struct rsi_poller rsi_epoll_poller = {
    .poll = poll_events,
    .interrupt = interrupt,
    .has_waiters = rsi_fdtable_has_waiters,
    .child = child,
};

const struct rsi_io_backend rsi_epoll_backend = {
    .name = "epoll",
    .run = rsi_ready_run,
    .arm = arm,
    .poller = &rsi_epoll_poller,
};
