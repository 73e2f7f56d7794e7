/* SPDX-License-Identifier: MIT */
/*
 * read.c - accept, read, recv and their kin: calls that wait for input.
 *
 * Each call is first made without waiting. If that finds nothing and the descriptor blocks, it is made again as the
 * program asked. Where no such variant exists, a poll of the descriptor comes first. If another thread takes the input
 * between the two, the wait is not seen. On a non-blocking descriptor, finding nothing means that the wake-up before it
 * was useless.
 *
 * A call that does not wait would return too little on a socket that waits for more than one byte (SO_RCVLOWAT). There
 * only the program's own call is made, and it was a wait if the thread slept. The same holds for recvmmsg of several
 * messages: the first call would take those that have arrived, and the rest would need a second call.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "accept/descriptor.h"
#include "accept/order.h"
#include "os/os.h"
#include "process/real.h"
#include "record/wait.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room);
ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *buffer, size_t bytes, size_t room, int flags,
                       struct sockaddr *from, socklen_t *from_bytes);

#define NEVER_WAITS (MSG_DONTWAIT | MSG_OOB | MSG_ERRQUEUE)

enum call { ACCEPT, ACCEPT4, READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG };

/* most: the kernel reads it when a message has arrived, and writes back the remaining time. */
struct batch {
    struct mmsghdr *messages;
    struct timespec *most;
};

struct asked {
    enum call call;
    int fd, flags;
    void *buffer; /* READV, RECVMSG and RECVMMSG: the structure */
    size_t bytes; /* READV and RECVMMSG: the number of parts or messages */
    struct sockaddr *from;
    socklen_t *from_bytes;
};

static ssize_t receive(const struct asked *a, const struct batch *batch)
{
    return rpi_real.recvmmsg(a->fd, batch->messages, (unsigned)a->bytes, a->flags, batch->most);
}

static ssize_t call_real(const struct asked *a)
{
    switch (a->call) {
    case ACCEPT: return rpi_real.accept(a->fd, a->from, a->from_bytes);
    case ACCEPT4: return rpi_real.accept4(a->fd, a->from, a->from_bytes, a->flags);
    case READ: return rpi_real.read(a->fd, a->buffer, a->bytes);
    case READV: return rpi_real.readv(a->fd, a->buffer, (int)a->bytes);
    case RECV: return rpi_real.recv(a->fd, a->buffer, a->bytes, a->flags);
    case RECVFROM:
        return rpi_real.recvfrom(a->fd, a->buffer, a->bytes, a->flags, a->from, a->from_bytes);
    case RECVMSG: return rpi_real.recvmsg(a->fd, a->buffer, a->flags);
    default: return receive(a, a->buffer);
    }
}

/* Whether the call may go on waiting when a part of what it requests is there. */
static bool wants_more(const struct asked *a)
{
    if (a->call < READ || a->flags & NEVER_WAITS)
        return false;
    bool is_many = a->call == RECVMMSG && a->bytes > 1 && !(a->flags & MSG_WAITFORONE);
    return is_many || (rpi_fd_is_socket(a->fd) && rpi_fd_wants_more(a->fd));
}

static bool would_block(ssize_t result)
{
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

static enum rouse_verdict verdict_of(ssize_t result)
{
    return result >= 0           ? ROUSE_VERDICT_USEFUL
           : would_block(result) ? ROUSE_VERDICT_TIMEOUT /* by SO_RCVTIMEO */
                                 : ROUSE_VERDICT_CANCELLED;
}

/* The call has ended, with or without a wait. */
static ssize_t done(const struct asked *a, ssize_t result, bool is_woken)
{
    bool is_accept = a->call <= ACCEPT4;
    if (result >= 0)
        rpi_wait_count_call(is_accept ? ROUSE_WAIT_ACCEPT : ROUSE_WAIT_READ);
    else if (would_block(result))
        rpi_wait_found_nothing(a->fd);
    if (is_accept) {
        /* The connection inherits the options of its listener too. */
        rpi_descriptor_made((int)result, rpi_fd_class_of(a->fd));
        rpi_fd_set_client((int)result);
        if (result >= 0 || would_block(result))
            rpi_listener_accepted(a->fd, result < 0 ? RPI_ACCEPT_NONE
                                         : is_woken ? RPI_ACCEPT_WOKEN
                                                    : RPI_ACCEPT_AT_ONCE);
        else if (rpi_order_is_on() && rpi_self)
            rpi_order_leave(rpi_self);
    }
    return result;
}

/* Try without waiting, if such a call exists. True: *result is final. False: it would block. */
static bool try(const struct asked *a, ssize_t *result)
{
    struct asked now = *a;
    bool has_flags = a->call >= RECV, is_whole = has_flags && a->flags & MSG_WAITALL;
    if (has_flags && a->flags & NEVER_WAITS) {
        *result = call_real(a);
        return true;
    }
    if (!is_whole && (has_flags || (a->call == READ && a->bytes > 0 && rpi_fd_is_socket(a->fd)))) {
        now.call = a->call == READ ? RECV : a->call;
        now.flags |= MSG_DONTWAIT;
        *result = call_real(&now);
        /* No longer a socket: see record/fd_class.c. */
        if (*result < 0 && errno == ENOTSOCK && a->call == READ) {
            rpi_descriptor_made(a->fd, RPI_FD_UNKNOWN);
            *result = call_real(a);
            return true;
        }
        return !would_block(*result);
    }
    if (a->call == READ && a->bytes > 0 && rpi_fd_class_of(a->fd) == RPI_FD_PIPE) {
        struct iovec part = { a->buffer, a->bytes };
        *result = preadv2(a->fd, &part, 1, -1, RWF_NOWAIT);
        if (*result >= 0 || !rpi_fd_lacks_nowait(a->fd, errno))
            return !would_block(*result);
    }
    if (rpi_fd_is_ready(a->fd, POLLIN)) {
        *result = call_real(a);
        return true;
    }
    return false;
}

/* Whether accept would go on after any signal that the program handles. We do not know which signal has arrived. */
static bool goes_on_after_signals(void)
{
    struct sigaction action;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN && !(action.sa_flags & SA_RESTART))
            return false;
    return true;
}

/* Sleep until self has the turn. Returns 0, or the error with which accept ends. */
static int sleep_for_turn(struct rpi_thread *self, const struct asked *a, uint64_t deadline_ns)
{
    struct pollfd listener = { a->fd, POLLIN, 0 };
    struct rpi_order_wait wait = { &listener, 1, NULL, 0, deadline_ns, NULL };
    while (!rpi_order_is_mine(self)) {
        int result = rpi_order_sleep(self, &wait);
        if (result == 0)
            return EAGAIN; /* as with SO_RCVTIMEO */
        if (result < 0 && (deadline_ns != UINT64_MAX || !goes_on_after_signals()))
            return EINTR;
    }
    return 0;
}

/* self has the turn. */
static ssize_t accept_until(const struct asked *a, uint64_t deadline_ns)
{
    struct pollfd entry = { a->fd, POLLIN, 0 };
    if (deadline_ns != UINT64_MAX) {
        uint64_t now_ns = rsi_now_ns();
        struct timespec rest = rsi_timespec(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
        int found = rpi_real.ppoll(&entry, 1, &rest, NULL);
        if (found == 0)
            errno = EAGAIN;
        if (found <= 0)
            return -1;
    }
    return call_real(a);
}

static void leave_order(void *self)
{
    rpi_order_leave(self);
}

/* accept on a blocking listener. False: not in turn. */
static bool accept_in_turn(const struct asked *a, const struct rpi_listener *l, const void *site,
                           ssize_t *result)
{
    struct rpi_wait wait;
    struct timeval most = { 0, 0 };
    socklen_t bytes = sizeof most;
    struct rpi_thread *self = rpi_self;
    int error = errno;
    if ((!self && !(self = rpi_thread_enter())) || !rpi_order_enter(self, l, false))
        return false;
    (void)getsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &most, &bytes);
    errno = error;
    if (rpi_order_is_mine(self) && rpi_fd_is_ready(a->fd, POLLIN)) {
        *result = done(a, call_real(a), false);
        rpi_order_leave(self);
        return true;
    }
    uint64_t ns = (uint64_t)most.tv_sec * 1000000000 + (uint64_t)most.tv_usec * 1000;
    uint64_t deadline_ns = ns ? rsi_now_ns() + ns : UINT64_MAX;
    if (!rpi_wait_begin_for(&wait, ROUSE_WAIT_ACCEPT, (const void *)(intptr_t)a->fd, site, true)) {
        rpi_order_leave(self);
        return false;
    }
    pthread_cleanup_push(leave_order, self);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    *result = -1;
    int failed = sleep_for_turn(self, a, deadline_ns);
    if (!failed && !rpi_listener_is(a->fd, l))
        failed = EBADF; /* it was closed, and the number may refer to another file now */
    errno = failed ? failed : error;
    if (!failed)
        *result = accept_until(a, deadline_ns);
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(*result), NULL);
    if (*result >= 0)
        *result = done(a, *result, true);
    rpi_order_leave(self);
    return true;
}

/* Whether to report no connection, because another thread has the turn. Once between two waits. */
static bool is_put_off(const struct rpi_listener *l)
{
    struct rpi_thread *self = rpi_self;
    if (!self || !self->place || self->is_put_off || rpi_order_is_in(self) || !self->order_row ||
        self->order_row->cookie != l->cookie || !rpi_order_is_anothers(self))
        return false;
    self->is_put_off = true;
    rsi_count(self->order_row->put_off, 1);
    return true;
}

/* What --accept does first. True: the call is complete, and its result is in *result. */
static bool in_order(const struct asked *a, const void *site, ssize_t *result)
{
    struct rpi_wait wait;
    const struct rpi_listener *l = rpi_listener_of(a->fd);
    uint64_t delay_ns = l ? rpi_order_delay_ns() : 0;
    if (delay_ns && rpi_wait_begin(&wait, ROUSE_WAIT_SLEEP, NULL, site)) {
        struct timespec delay = rsi_timespec(delay_ns);
        pthread_cleanup_push(rpi_wait_cancelled, &wait);
        (void)rpi_real.clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, NULL);
        pthread_cleanup_pop(0);
        rpi_wait_end(&wait, ROUSE_VERDICT_TIMEOUT, NULL);
        rpi_listener_delayed(l, wait.since);
    }
    if (!l || !rpi_order_is_on())
        return false;
    if (!rpi_fd_is_nonblock(a->fd))
        return accept_in_turn(a, l, site, result);
    if (!is_put_off(l))
        return false;
    errno = EAGAIN;
    *result = -1;
    return true;
}

static ssize_t wait_for(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    ssize_t result;
    if (rpi_recording_is_confined())
        return call_real(a);
    int error = errno;
    if (a->call <= ACCEPT4 && in_order(a, site, &result))
        return result;
    if (a->call <= READV && a->call >= READ && rpi_fd_class_of(a->fd) == RPI_FD_FILE)
        return call_real(a);
    bool is_only = wants_more(a);
    if (!is_only && try(a, &result)) {
        if (result >= 0)
            errno = error;
        return done(a, result, false);
    }
    errno = error;
    bool is_accept = a->call <= ACCEPT4;
    if (rpi_fd_is_nonblock(a->fd) ||
        !rpi_wait_begin_for(&wait, is_accept ? ROUSE_WAIT_ACCEPT : ROUSE_WAIT_READ,
                            (const void *)(intptr_t)a->fd, site,
                            is_accept || rpi_fd_is_for_clients(a->fd)))
        return done(a, call_real(a), false);
    uint64_t before = is_only ? rpi_thread_switches() : 0;
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    error = errno;
    bool has_slept = !is_only || (rpi_wait_goes_on(&wait) && rpi_thread_switches() != before);
    errno = error;
    rpi_wait_end(&wait, has_slept ? verdict_of(result) : ROUSE_VERDICT_NONE, NULL);
    return result >= 0 ? done(a, result, true) : result;
}

RPI_EXPORT RSI_NOINLINE int accept(int fd, struct sockaddr *from, socklen_t *bytes)
{
    rpi_real_find();
    struct asked a = { .call = ACCEPT, .fd = fd, .from = from, .from_bytes = bytes };
    return (int)wait_for(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int accept4(int fd, struct sockaddr *from, socklen_t *bytes, int flags)
{
    rpi_real_find();
    struct asked a = { ACCEPT4, fd, flags, NULL, 0, from, bytes };
    return (int)wait_for(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t read(int fd, void *buffer, size_t bytes)
{
    rpi_real_find();
    return wait_for(&(struct asked){ READ, fd, 0, buffer, bytes, NULL, NULL }, RSI_CALLER());
}

/* Programs compiled with _FORTIFY_SOURCE call these. room is the size of the buffer. */
RPI_EXPORT RSI_NOINLINE ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room)
{
    rpi_real_find();
    if (bytes > room)
        __chk_fail();
    return wait_for(&(struct asked){ READ, fd, 0, buffer, bytes, NULL, NULL }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room,
                                           int flags)
{
    rpi_real_find();
    if (bytes > room)
        __chk_fail();
    return wait_for(&(struct asked){ RECV, fd, flags, buffer, bytes, NULL, NULL }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t __recvfrom_chk(int fd, void *buffer, size_t bytes, size_t room,
                                               int flags, struct sockaddr *from,
                                               socklen_t *from_bytes)
{
    rpi_real_find();
    if (bytes > room)
        __chk_fail();
    struct asked a = { RECVFROM, fd, flags, buffer, bytes, from, from_bytes };
    return wait_for(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t readv(int fd, const struct iovec *parts, int count)
{
    rpi_real_find();
    struct asked a = { READV, fd, 0, (void *)(uintptr_t)parts, (size_t)count, NULL, NULL };
    return wait_for(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
    rpi_real_find();
    return wait_for(&(struct asked){ RECV, fd, flags, buffer, bytes, NULL, NULL }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t recvfrom(int fd, void *buffer, size_t bytes, int flags,
                                         struct sockaddr *from, socklen_t *from_bytes)
{
    rpi_real_find();
    struct asked a = { RECVFROM, fd, flags, buffer, bytes, from, from_bytes };
    return wait_for(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    rpi_real_find();
    return wait_for(&(struct asked){ RECVMSG, fd, flags, message, 0, NULL, NULL }, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags,
                                     struct timespec *most)
{
    rpi_real_find();
    struct batch batch = { messages, most };
    struct asked a = { RECVMMSG, fd, flags, &batch, count, NULL, NULL };
    return (int)wait_for(&a, RSI_CALLER());
}
