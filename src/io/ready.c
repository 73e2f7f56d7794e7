/* SPDX-License-Identifier: MIT */
/*
 * ready.c - try the call first; sleep only when it is known that nothing is there.
 *
 * The steps of a call, for a user thread:
 *   1  seen = edges. If spent == seen and the side is armed, another call has found it empty: go to 4
 *      (TCP streams only)
 *   2  make the call. Any result except EAGAIN ends it. A short result of a TCP stream: spent = seen
 *   3  EAGAIN: spent = seen
 *   4  under the guard: if closed, -EBADF. If not armed, arm it and repeat 4. If edges != seen, go to 1
 *   5  prepare, list, release the guard, commit. When woken: go to 1, but skip the spent test
 * The invariant in fdtable.h makes step 4 safe. Arming (EPOLL_CTL_ADD, MOD) immediately reports what is ready at that
 * time, so data that arrived between 2 and 4 is an event too.
 *
 * One edge wakes one thread, although several items may have arrived with it. A thread that was woken and took one
 * therefore passes the wake-up on if another thread waits, but asks the kernel first whether something is left, to
 * avoid spurious wake-ups. Threads that were not woken owe nothing: each edge has its own woken thread, which tries
 * after it. A thread sleeps only after it has itself found nothing since the last edge, so a waiting thread is listed
 * before the edge and is found.
 *
 * Kernel and foreign threads wait in ppoll, which is level-triggered: they need no arming and take no event. They are
 * listed so that a close reaches them, and edges skip them. A short read saves them the next call's EAGAIN too.
 *
 * A short result means nothing for AF_UNIX streams (reads stop at each message with descriptors), pipes (packets),
 * datagrams, peeks, and streams that had urgent data. A stream that has ended, by either side or by an error, is
 * always tried.
 *
 * SO_RCVLOWAT: events occur when that many bytes are there. Fewer bytes go to the first thread that tries.
 */
#include "io/ready.h"

#include "core/turn.h"
#include "io/accept/listener.h"
#include "io/accept/order.h"
#include "io/uring/multishot.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define TRY_COST 128u /* of a turn's 1,024 units: eight calls that do not block */

#define SLICE_FIRST_NS 50000u
#define SLICE_LAST_NS 5000000u

struct attempt {
    struct rouse_thread *self;
    uint32_t seen;     /* edges before the last call */
    uint64_t slice_ns; /* RSI_IO_SLICED: how long to sleep next */
    bool is_user;
    bool was_woken;
    bool has_waited;
};

static struct rsi_fd_side *side_of(const struct rsi_io_op *op)
{
    return &op->ref.entry->sides[op->side];
}

/*
 * Step 1: whether another call has found the side empty since the last edge, so that this one need not try. Only where
 * EAGAIN is then certain: with a length of 0, or arguments that the kernel refuses, most calls return at once whatever
 * is there.
 */
static bool is_spent(const struct rsi_io_op *op, const struct attempt *a)
{
    const struct rsi_fd *entry = op->ref.entry;
    const struct rsi_fd_side *side = side_of(op);
    if ((op->rules & (RSI_IO_SHORT_ENDS | RSI_IO_ONCE)) != RSI_IO_SHORT_ENDS || op->bytes == 0)
        return false;
    if (rsi_load_relaxed(&side->spent) != a->seen)
        return false;
    if ((rsi_load_relaxed(&entry->sticky) & (1u << op->side)) != 0)
        return false;
    return !a->is_user || (rsi_load_relaxed(&entry->armed) & (1u << op->side)) != 0;
}

/* Whether op takes its data from a multishot receive (multishot.h). Out-of-band data is not part of the stream. */
static bool is_multishot(const struct rsi_io_op *op)
{
    long flags = op->number == SYS_recvfrom ? op->arg[3] : op->arg[2];
    if (!rsi_multishot_is_on(op->ref.entry))
        return false;
    if (op->number == SYS_accept4)
        return true;
    return (op->number == SYS_recvfrom || op->number == SYS_recvmsg) &&
           (flags & (MSG_OOB | MSG_ERRQUEUE)) == 0 && op->bytes != 0;
}

static long call_plain(const struct rsi_io_op *op)
{
    if (rsi_unlikely(is_multishot(op)))
        return rsi_multishot_take(op);
    return rsi_syscall6(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3], op->arg[4],
                        op->arg[5]);
}

/* SIGPIPE goes to the calling kernel thread: block it, and consume it if it was raised. */
static long call_mute(const struct rsi_io_op *op)
{
    const uint64_t sigpipe = UINT64_C(1) << (SIGPIPE - 1);
    const struct timespec zero = { 0, 0 };
    uint64_t before = 0;
    rsi_syscall4(SYS_rt_sigprocmask, SIG_BLOCK, &sigpipe, &before, sizeof sigpipe);
    long result = call_plain(op);
    /* A call that moved a part before it failed raises it too. */
    if (result != (long)op->bytes && result != -EAGAIN && (before & sigpipe) == 0)
        rsi_syscall4(SYS_rt_sigtimedwait, &sigpipe, 0, &zero, sizeof sigpipe);
    rsi_syscall4(SYS_rt_sigprocmask, SIG_SETMASK, &before, 0, sizeof before);
    return result;
}

/*
 * The state of a connect that has begun: -EAGAIN: it goes on; another error: it has failed; 0: another call returns the
 * outcome. Not if shutdown(2) has ended it, since another call would begin a new attempt. Linux then leaves ECONNRESET,
 * which no failed attempt has. After any other error, the kernel expects another call, which does not connect.
 */
static long connect_state(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = POLLOUT };
    struct timespec zero = { 0, 0 };
    int error = 0;
    socklen_t bytes = sizeof error;
    if (rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) == 0)
        return -EAGAIN;
    if ((one.revents & POLLERR) == 0 ||
        rsi_syscall5(SYS_getsockopt, op->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        return 0;
    if (error != 0 && error != ECONNRESET)
        rsi_syscall3(SYS_connect, op->arg[0], op->arg[1], op->arg[2]);
    return -error;
}

static long call(const struct rsi_io_op *op, const struct attempt *a)
{
    if (rsi_unlikely(op->number == SYS_connect) && a->has_waited &&
        (op->rules & RSI_IO_KEEPS) == 0) {
        long state = connect_state(op);
        if (state != 0)
            return state;
    }
    for (;;) {
        long result = rsi_unlikely((op->rules & RSI_IO_MUTE) != 0) ? call_mute(op) : call_plain(op);
        if (result == -EINTR)
            continue;
        if (rsi_unlikely((op->rules & RSI_IO_PROBE) != 0))
            return result != 0 ? result : -EAGAIN;
        if (op->number != SYS_connect)
            return result;
        /* A second connect returns the outcome of the first. */
        bool goes_on = result == -EINPROGRESS || (result == -EALREADY && a->has_waited);
        return goes_on ? -EAGAIN : result;
    }
}

/* Record what the result implies about the queue. Returns true if nothing is left. */
static bool note(const struct rsi_io_op *op, const struct attempt *a, long result)
{
    struct rsi_fd_side *side = side_of(op);
    if ((op->rules & RSI_IO_KEEPS) != 0)
        return false;
    bool is_short = (op->rules & RSI_IO_SHORT_ENDS) != 0 && result > 0 &&
                    (size_t)result < op->bytes &&
                    (rsi_load_relaxed(&op->ref.entry->sticky) & RSI_FD_URGENT) == 0;
    if (is_short || result == -EAGAIN) {
        rsi_store_relaxed(&side->spent, a->seen);
        return true;
    }
    if (rsi_load_relaxed(&side->spent) == a->seen)
        rsi_store_relaxed(&side->spent, a->seen - 1);
    return false;
}

static short poll_events(const struct rsi_io_op *op)
{
    return op->side == RSI_FD_READ ? POLLIN | POLLRDHUP : POLLOUT;
}

static bool is_ready_now(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = poll_events(op) };
    struct timespec zero = { 0, 0 };
    if (is_multishot(op))
        return rsi_multishot_events(op->ref.entry, op->fd) != 0;
    return rsi_syscall5(SYS_ppoll, &one, 1, &zero, 0, 0) != 0;
}

/*
 * Whether EAGAIN may be wrong. At the urgent mark the kernel returns EAGAIN, whatever lies behind the mark, if a signal
 * happens to be pending, and no further event would follow.
 */
static bool is_doubtful(const struct rsi_io_op *op)
{
    if (op->side != RSI_FD_READ || (op->rules & (RSI_IO_KEEPS | RSI_IO_ONCE)) != 0)
        return false;
    bool is_urgent = (rsi_load_relaxed(&op->ref.entry->sticky) & RSI_FD_URGENT) != 0;
    return is_urgent && is_ready_now(op);
}

/* The caller was woken and is served: wake the next waiting thread if something is left. */
static RSI_NOINLINE void pass_on(const struct rsi_io_op *op)
{
    struct rsi_fd *entry = op->ref.entry;
    struct rsi_fd_side *side = side_of(op);
    uint32_t seen = rsi_load_acquire(&side->edges); /* as in rsi_ready_run */
    if (!is_ready_now(op)) {
        rsi_store_relaxed(&side->spent, seen);
        return;
    }
    struct rsi_fd_batch batch = { NULL, NULL };
    rsi_guard_lock(&entry->guard);
    if (entry->generation == op->ref.generation)
        rsi_fdtable_pass_on_locked(side, RSI_FD_ANY_EVENT, op->site, &batch);
    rsi_guard_unlock(&entry->guard);
    rsi_fdtable_publish(&batch);
}

/* Unlist the waiter, unless its waker has done so. Only a waker that won the claim is certain to have. */
static int unlist(const struct rsi_io_op *op, struct rsi_fd_waiter *waiter, int result,
                  bool is_claimed)
{
    if (!is_claimed) {
        rsi_guard_lock(&op->ref.entry->guard);
        rsi_fdtable_unlist_locked(side_of(op), waiter);
        rsi_guard_unlock(&op->ref.entry->guard);
    }
    return result;
}

enum sleep_mode {
    SLEEP_TO_EVENT, /* the poller wakes it */
    SLEEP_IN_PPOLL, /* a kernel thread, which watches the descriptor itself */
    SLEEP_SLICE,    /* only the deadline and a close wake it */
};

/* List the caller and sleep. The guard is held on entry and released. */
static int sleep_locked(const struct rsi_io_op *op, const struct attempt *a, uint64_t deadline_ns,
                        enum sleep_mode mode)
{
    struct pollfd pollfd = { .fd = op->fd, .events = poll_events(op) };
    struct rsi_fd_waiter waiter = { .thread = a->self,
                                    .kind = mode == SLEEP_TO_EVENT ? RSI_FD_TAKER : RSI_FD_WATCHER,
                                    .events = RSI_FD_ANY_EVENT };
    uint32_t *guard = &op->ref.entry->guard;
    waiter.ticket = rsi_park_prepare(a->self, (enum rouse_wait_kind)op->kind,
                                     (const void *)(intptr_t)op->fd, op->site, deadline_ns,
                                     RSI_PARK_CANCELLABLE);
    rsi_fdtable_list_locked(side_of(op), &waiter);
    rsi_guard_unlock(guard);
    int result;
    if (mode == SLEEP_IN_PPOLL)
        result = rsi_park_commit_ppoll(a->self, waiter.ticket, &pollfd, 1);
    else
        result = rsi_park_commit(a->self, waiter.ticket);
    bool is_claimed = mode != SLEEP_IN_PPOLL && result != -ETIMEDOUT && result != -ECANCELED;
    if (result == 0 && (pollfd.revents & POLLNVAL) != 0)
        result = -EBADF;
    return unlist(op, &waiter, result, is_claimed);
}

/* No event will announce a change: sleep for a short time, which doubles up to a limit. */
static int wait_slice(const struct rsi_io_op *op, struct attempt *a)
{
    struct rsi_fd *entry = op->ref.entry;
    rsi_guard_lock(&entry->guard);
    if (entry->generation != op->ref.generation) {
        rsi_guard_unlock(&entry->guard);
        return -EBADF;
    }
    uint64_t now_ns = rsi_now_ns(), until_ns = now_ns + a->slice_ns;
    if (op->deadline_ns < until_ns)
        until_ns = op->deadline_ns;
    a->slice_ns = a->slice_ns * 2 < SLICE_LAST_NS ? a->slice_ns * 2 : SLICE_LAST_NS;
    int result = sleep_locked(op, a, until_ns, SLEEP_SLICE);
    return result == -ETIMEDOUT && until_ns < op->deadline_ns ? 0 : result;
}

/* Whether the deadline has passed, so that no event is needed, except to report a pending cancel. */
static bool is_past(const struct rsi_io_op *op)
{
    return op->deadline_ns != ROUSE_FOREVER && op->deadline_ns <= rsi_now_ns() &&
           !rouse_thread_cancel_pending();
}

/* Steps 4 and 5. Returns 0 when the call is to be tried again, or -errno. */
static int wait_event(const struct rsi_io_op *op, struct attempt *a)
{
    struct rsi_fd *entry = op->ref.entry;
    uint8_t bit = (uint8_t)(1u << op->side);
    for (;;) {
        rsi_guard_lock(&entry->guard);
        if (entry->generation != op->ref.generation) {
            rsi_guard_unlock(&entry->guard);
            return -EBADF;
        }
        if (!a->is_user && (entry->flags & RSI_FD_IS_MULTISHOT) == 0)
            return sleep_locked(op, a, op->deadline_ns, SLEEP_IN_PPOLL);
        if (rsi_order_takes_over(op)) {
            rsi_guard_unlock(&entry->guard);
            return -ERESTART;
        }
        if (rsi_likely((entry->armed & bit) != 0)) {
            if (side_of(op)->edges == a->seen)
                break;
            rsi_guard_unlock(&entry->guard);
            return 0;
        }
        rsi_guard_unlock(&entry->guard);
        if (is_past(op))
            return -ETIMEDOUT;
        int result = rsi_backend()->arm(op);
        if (result < 0)
            return result;
    }
    int result = sleep_locked(op, a, op->deadline_ns, SLEEP_TO_EVENT);
    if (result >= 0)
        a->was_woken = true;
    return result;
}

static long finish(const struct rsi_io_op *op, const struct attempt *a, long result, bool is_empty)
{
    rsi_poll_served(a->self, op->fd, is_empty);
    if (a->was_woken) {
        if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != 0))
            rsi_park_verdict(a->self, ROUSE_VERDICT_USEFUL);
        /* Relaxed: those that count were listed before the edge that woke the caller. */
        if (!is_empty && rsi_load_relaxed(&side_of(op)->first) != NULL)
            pass_on(op);
    }
    return result;
}

/* Whether this is the last attempt even if it finds nothing. */
static bool is_last(const struct rsi_io_op *op)
{
    return (op->rules & RSI_IO_ONCE) != 0 || op->deadline_ns <= rsi_now_coarse_ns();
}

/* Make the call once. Returns true if *result is final. */
static bool attempt_once(const struct rsi_io_op *op, struct attempt *a, long *result)
{
    /* Acquire: pairs with rsi_ready_event's release; the call must not seem to begin before it. */
    a->seen = rsi_load_acquire(&side_of(op)->edges);
    /* Closed meanwhile, and perhaps reused. Acquire: pairs with end_generation. */
    if (rsi_unlikely(rsi_load_acquire(&op->ref.entry->generation) != op->ref.generation)) {
        *result = -EBADF;
        return true;
    }
    do {
        *result = call(op, a);
    } while (*result == -EAGAIN && rsi_unlikely(is_doubtful(op)));
    if (*result == -EAGAIN && is_multishot(op) && is_last(op)) {
        rsi_multishot_refresh(op);
        *result = call(op, a);
    }
    bool is_empty = note(op, a, *result);
    if (*result != -EAGAIN || (op->rules & RSI_IO_ONCE) != 0) {
        *result = finish(op, a, *result, is_empty);
        return true;
    }
    if (a->was_woken && rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != 0))
        rsi_park_verdict(a->self, ROUSE_VERDICT_LOST_RACE);
    return false;
}

long rsi_ready_run(struct rsi_io_op *op)
{
    struct attempt a = { .self = rsi_self(), .slice_ns = SLICE_FIRST_NS };
    long result = -EAGAIN;
    bool was_tried = false; /* a call tries at least once before it returns -ETIMEDOUT */
    a.is_user = rsi_is_user(a.self);
    a.seen = rsi_load_acquire(&side_of(op)->edges);
    if (!is_spent(op, &a)) {
        rsi_turn_spend(a.self, TRY_COST);
        if (attempt_once(op, &a, &result))
            return result;
        was_tried = true;
    }
    for (;;) {
        int waited = (op->rules & RSI_IO_SLICED) != 0 ? wait_slice(op, &a) : wait_event(op, &a);
        a.has_waited = true;
        if (waited < 0 && (waited != -ETIMEDOUT || was_tried))
            return waited;
        if (attempt_once(op, &a, &result))
            return result;
        if (waited < 0)
            return waited;
        was_tried = true;
    }
}

uint8_t rsi_ready_event_locked(struct rsi_fd *entry, uint32_t epoll_mask,
                               struct rsi_fd_batch *batch)
{
    bool has_ended = (epoll_mask & (EPOLLHUP | EPOLLERR)) != 0;
    bool read_ended = has_ended || (epoll_mask & EPOLLRDHUP) != 0;
    struct rsi_fd_side *reads = &entry->sides[RSI_FD_READ], *writes = &entry->sides[RSI_FD_WRITE];
    uint8_t idle = 0;
    uint8_t sticky = entry->sticky;
    sticky |= read_ended ? RSI_FD_READ_ENDED : 0;
    sticky |= has_ended ? RSI_FD_WRITE_ENDED : 0;
    sticky |= (epoll_mask & EPOLLPRI) != 0 ? RSI_FD_URGENT : 0;
    if (sticky != entry->sticky)
        rsi_store_relaxed(&entry->sticky, sticky);
    if (read_ended || (epoll_mask & RSI_FD_READ_EVENTS) != 0) {
        /* Release: sticky before it; pairs with attempt_once's acquire. */
        rsi_store_release(&reads->edges, reads->edges + 1);
        rsi_fdtable_event_locked(reads, epoll_mask, read_ended, batch);
        if (rsi_unlikely((entry->flags & RSI_FD_IS_ORDERED) != 0) &&
            rsi_order_event_locked(entry, read_ended, batch) && reads->first == NULL)
            idle |= 1u << RSI_FD_READ;
    }
    if (has_ended || (epoll_mask & RSI_FD_WRITE_EVENTS) != 0) {
        if (!has_ended && writes->first == NULL && entry->type != RSI_FD_TCP)
            idle |= 1u << RSI_FD_WRITE;
        rsi_store_release(&writes->edges, writes->edges + 1);
        rsi_fdtable_event_locked(writes, epoll_mask, has_ended, batch);
    }
    return idle;
}

uint8_t rsi_ready_event(struct rsi_fd *entry, uint32_t generation, uint32_t epoll_mask,
                        struct rsi_fd_batch *batch)
{
    rsi_guard_lock(&entry->guard);
    uint8_t idle =
        entry->generation == generation ? rsi_ready_event_locked(entry, epoll_mask, batch) : 0;
    rsi_guard_unlock(&entry->guard);
    return idle;
}
