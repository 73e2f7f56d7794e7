/* SPDX-License-Identifier: MIT */
/*
 * poll.c - poll, select, epoll_wait and their kin on one path, and epoll_ctl.
 *
 * Each call is first made without waiting, and made again as the program asked only if it found nothing. That costs one
 * more system call per wait, and only real waits are recorded. A poll of the one descriptor on which the thread has
 * just found nothing to read is not tried first, since servers do this before every wait. If data arrives in between, a
 * wait of no length is recorded.
 *
 * Whether a wake-up was useful is known when its thread next tries a descriptor (read.c): if that would block, another
 * thread was faster.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "accept/epoll_member.h"
#include "accept/order.h"
#include "os/os.h"
#include "process/readable.h"
#include "process/real.h"
#include "record/fd_class.h"
#include "record/wait.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define SET_BYTES (FD_SETSIZE / 8)
#define OTHERS_MOST 128 /* other descriptors that a wait in turn can include */
/* After so many checks of the others that found nothing, they must have an event that poll does not show. */
#define USELESS_MOST 100u

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t bytes);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask,
                size_t bytes);

enum call { POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_MASK, EPOLL_TIMESPEC };

/* One call of any of these functions. */
struct asked {
    enum call call;
    int fd; /* the epoll set, or select's number of descriptors */
    void *entries;
    nfds_t count; /* of entries */
    fd_set *sets[3];
    struct timeval *timeval;
    const struct timespec *timespec;
    int ms;
    const sigset_t *mask;
};

enum { FOR_EVER = -1, WRONG = -2 }; /* times */

static int call_real(const struct asked *a)
{
    switch (a->call) {
    case POLL: return rpi_real.poll(a->entries, a->count, a->ms);
    case PPOLL: return rpi_real.ppoll(a->entries, a->count, a->timespec, a->mask);
    case SELECT: return rpi_real.select(a->fd, a->sets[0], a->sets[1], a->sets[2], a->timeval);
    case PSELECT:
        return rpi_real.pselect(a->fd, a->sets[0], a->sets[1], a->sets[2], a->timespec, a->mask);
    case EPOLL: return rpi_real.epoll_wait(a->fd, a->entries, (int)a->count, a->ms);
    case EPOLL_MASK: return rpi_real.epoll_pwait(a->fd, a->entries, (int)a->count, a->ms, a->mask);
    default: return rpi_real.epoll_pwait2(a->fd, a->entries, (int)a->count, a->timespec, a->mask);
    }
}

/* How long it may wait, in ns. FOR_EVER: no limit. WRONG: the kernel rejects the time. */
static int64_t time_of(const struct asked *a)
{
    const struct timeval *t = a->timeval;
    const struct timespec *s = a->timespec;
    if (a->call == POLL || a->call == EPOLL || a->call == EPOLL_MASK)
        return a->ms < 0 ? FOR_EVER : (int64_t)a->ms * 1000000;
    if (!t && !s)
        return FOR_EVER;
    int64_t seconds = t ? t->tv_sec : s->tv_sec, part = t ? t->tv_usec : s->tv_nsec;
    if (seconds < 0 || part < 0 || (s && part > 999999999))
        return WRONG;
    if (seconds > INT32_MAX || part > INT64_MAX / 2000)
        return FOR_EVER;
    return seconds * 1000000000 + part * (t ? 1000 : 1);
}

/* The same call without waiting. If select finds nothing, its sets are restored. */
static int look(const struct asked *a)
{
    static const struct timespec never;
    struct timeval none = { 0, 0 };
    struct asked now = *a;
    char saved[3][SET_BYTES];
    size_t bytes = a->call == SELECT || a->call == PSELECT ? ((size_t)a->fd + 63) / 64 * 8 : 0;
    now.ms = 0;
    now.timeval = &none;
    now.timespec = &never;
    for (int i = 0; i < 3; i++)
        if (bytes && a->sets[i])
            memcpy(saved[i], a->sets[i], bytes);
    int result = call_real(&now);
    for (int i = 0; i < 3; i++)
        if (bytes && a->sets[i] && result == 0)
            memcpy(a->sets[i], saved[i], bytes);
    return result;
}

/* Whether the call names no descriptor, and so is a sleep. */
static bool is_sleep(const struct asked *a)
{
    return a->call <= PPOLL     ? a->count == 0
           : a->call <= PSELECT ? !a->sets[0] && !a->sets[1] && !a->sets[2]
                                : false;
}

/* Whether the call passes memory that we would read before the kernel does, and that cannot be read. */
static bool is_out_of_reach(const struct asked *a)
{
    const struct rpi_thread *self = rpi_self;
    bool is_read_first = rpi_order_is_on() || (a->count == 1 && self && self->dry_fd >= 0);
    if (a->call <= PPOLL)
        return is_read_first && a->count &&
               !rpi_is_readable(a->entries, a->count * sizeof(struct pollfd));
    for (int i = 0; a->call <= PSELECT && a->fd > 0 && a->fd <= FD_SETSIZE && i < 3; i++)
        if (a->sets[i] && !rpi_is_readable(a->sets[i], ((size_t)a->fd + 63) / 64 * 8))
            return true;
    return false;
}

/*
 * Whether the call waits to read from the one descriptor on which this thread has just found nothing, so that a try
 * would fail too.
 */
static bool is_dry(const struct asked *a)
{
    const struct pollfd *entry = a->entries;
    return a->call <= PPOLL && a->count == 1 && rpi_self && rpi_self->dry_fd >= 0 &&
           (entry->events & (POLLIN | POLLOUT)) == POLLIN && rpi_self->dry_fd == entry->fd;
}

/*
 * A listener that the call waits for or, once it has ended (result > 0), that has a connection. -1: no known one. A
 * listener that was shut down has no connection.
 */
static int listener_in(const struct asked *a, int result)
{
    const struct pollfd *entry = a->entries;
    const struct epoll_event *event = a->entries;
    bool has_ended = result > 0;
    uint64_t data;
    if (a->call <= PPOLL) {
        for (nfds_t i = 0; i < a->count; i++)
            if ((has_ended ? entry[i].revents : entry[i].events) & POLLIN &&
                !(has_ended && entry[i].revents & POLLHUP) && rpi_listener_of(entry[i].fd))
                return entry[i].fd;
    } else if (a->call <= PSELECT) {
        for (int fd = 0; a->sets[0] && fd < a->fd; fd++)
            if (FD_ISSET(fd, a->sets[0]) && rpi_listener_of(fd))
                return fd;
    } else {
        int fd = rpi_epoll_member_of(a->fd, &data);
        bool is_it = !has_ended;
        for (int i = 0; fd >= 0 && i < result && !is_it; i++)
            is_it = event[i].data.u64 == data && !(event[i].events & (uint32_t)EPOLLHUP);
        return is_it ? fd : -1;
    }
    return -1;
}

/* Whether the call waits to read from clients and from nobody else: to connect, or to send what comes next. */
static bool is_for_clients(const struct asked *a)
{
    const struct pollfd *entry = a->entries;
    if (a->call >= EPOLL)
        return rpi_fd_is_for_clients(a->fd);
    nfds_t count = a->call <= PPOLL ? a->count : (nfds_t)a->fd, clients = 0;
    for (nfds_t i = 0; i < count; i++) {
        int fd = a->call <= PPOLL ? entry[i].fd : (int)i;
        bool is_read, is_written;
        if (a->call <= PPOLL) {
            is_read = fd >= 0 && entry[i].events & POLLIN;
            is_written = fd >= 0 && entry[i].events & POLLOUT;
        } else {
            is_read = a->sets[0] && FD_ISSET(fd, a->sets[0]);
            is_written = a->sets[1] && FD_ISSET(fd, a->sets[1]);
        }
        if (is_written ||
            (is_read && rpi_fd_is_socket(fd) && !rpi_fd_is_for_clients(fd) && !rpi_listener_of(fd)))
            return false;
        clients += is_read && (rpi_fd_is_for_clients(fd) || rpi_listener_of(fd));
    }
    return clients != 0;
}

/* The call found something without a sleep. */
static int found_now(const struct asked *a, int result)
{
    const struct rpi_listener *l = result > 0 ? rpi_listener_of(listener_in(a, result)) : NULL;
    if (l)
        rpi_listener_reported(l);
    return result;
}

/* A wait in turn for a listener and perhaps for other descriptors. */
struct turn {
    const struct asked *asked;
    struct rpi_thread *self;
    const struct rpi_listener *listener;
    int fd;
    int set; /* epoll's, which contains the listener only while we have the turn; -1: none */
    bool is_edge, has_slept;
    unsigned sleeps;
    uint64_t switches;          /* before it slept */
    struct rpi_order_wait wait; /* for these two: */
    struct pollfd others[OTHERS_MOST + 1], listeners[OTHERS_MOST];
};

/* Split the descriptors into listeners and others. False: there are more than we have room for. */
static bool others_put(struct turn *t)
{
    const struct asked *a = t->asked;
    const struct pollfd *entry = a->entries;
    nfds_t count = a->call <= PPOLL ? a->count : (nfds_t)a->fd, others = 0, listeners = 0;
    bool is_any = false;
    for (nfds_t i = 0; i < count; i++) {
        struct pollfd other = { -1, 0, 0 };
        if (a->call <= PPOLL) {
            other = entry[i];
        } else {
            for (int set = 0; set < 3; set++)
                if (a->sets[set] && FD_ISSET((int)i, a->sets[set]))
                    other.events |= set == 0 ? POLLIN : set == 1 ? POLLOUT : POLLPRI;
            if (!other.events)
                continue;
            other.fd = (int)i;
        }
        if (others == OTHERS_MOST)
            return false;
        if (other.events & POLLIN && rpi_listener_of(other.fd)) {
            t->listeners[listeners++] = (struct pollfd){ other.fd, POLLIN, 0 };
            other.fd = -1;
        }
        is_any |= other.fd >= 0;
        t->others[others++] = other;
    }
    t->wait.listener_count = listeners;
    t->wait.count = is_any ? others : 0;
    return true;
}

/* As look, without the listeners. */
static int look_at_others(struct turn *t)
{
    const struct asked *a = t->asked;
    struct pollfd *entry = a->entries;
    if (a->call >= EPOLL)
        return look(a);
    if (t->wait.count == 0)
        return 0;
    if (a->call <= PPOLL) {
        int result = rpi_real.poll(t->others, t->wait.count, 0);
        for (nfds_t i = 0; i < t->wait.count && result > 0; i++)
            entry[i].revents = t->others[i].revents;
        return result;
    }
    fd_set sets[3];
    struct asked now = *a;
    for (int i = 0; i < 3; i++)
        if (a->sets[i]) {
            sets[i] = *a->sets[i];
            now.sets[i] = &sets[i];
        }
    for (int fd = 0; a->sets[0] && fd < a->fd; fd++)
        if (FD_ISSET(fd, &sets[0]) && rpi_listener_of(fd))
            FD_CLR(fd, &sets[0]);
    int result = look(&now);
    for (int i = 0; i < 3 && result > 0; i++)
        if (a->sets[i])
            memcpy(a->sets[i], &sets[i], ((size_t)a->fd + 63) / 64 * 8);
    return result;
}

/* The program's call, for the time that remains. */
static int call_for_rest(const struct turn *t)
{
    struct asked rest = *t->asked;
    if (t->wait.deadline_ns == UINT64_MAX)
        return call_real(&rest);
    uint64_t now_ns = rsi_now_ns();
    uint64_t ns = t->wait.deadline_ns > now_ns ? t->wait.deadline_ns - now_ns : 0;
    struct timespec s = rsi_timespec(ns);
    struct timeval v = { s.tv_sec, s.tv_nsec / 1000 };
    rest.ms = (int)((ns + 999999) / 1000000);
    rest.timespec = &s;
    rest.timeval = &v;
    return call_real(&rest);
}

static int sleep_in_turn(struct turn *t)
{
    for (unsigned useless = 0;;) {
        bool is_mine = rpi_order_is_mine(t->self);
        if (is_mine || useless == USELESS_MOST) {
            if (!is_mine)
                rpi_order_leave(t->self);
            rpi_epoll_member_move(t->set, t->fd, false);
            return call_for_rest(t);
        }
        int result = rpi_order_sleep(t->self, &t->wait);
        if (result <= 0) {
            errno = EINTR;
            return result < 0 ? -1 : 0;
        }
        t->sleeps++;
        if (t->wait.count == 0 || rpi_order_is_mine(t->self))
            continue;
        result = look_at_others(t);
        if (result != 0)
            return result;
        useless++;
    }
}

static void turn_cancelled(void *turn)
{
    struct turn *t = turn;
    rpi_epoll_member_end(t->set, t->fd);
    rpi_order_leave(t->self);
}

/* A thread that was shown a connection keeps the turn until it has accepted. */
static int turn_end(struct turn *t, int result)
{
    const struct asked *a = t->asked;
    int error = errno;
    rpi_epoll_member_end(t->set, t->fd);
    const struct rpi_listener *l = result > 0 ? rpi_listener_of(listener_in(a, result)) : NULL;
    if (!l)
        rpi_order_leave(t->self);
    bool has_found_nothing = result == 0 || (result < 0 && error == EINTR);
    for (nfds_t i = 0; a->call <= PPOLL && i < a->count && has_found_nothing; i++)
        ((struct pollfd *)a->entries)[i].revents = 0; /* the kernel does so too */
    for (int i = 0; i < 3 && result == 0; i++)
        if (a->sets[i])
            memset(a->sets[i], 0, ((size_t)a->fd + 63) / 64 * 8);
    if (t->has_slept)
        rpi_listener_waited(t->listener, t->switches + t->sleeps, l);
    else if (l)
        rpi_listener_reported(l);
    /* As the kernel does, leave the remaining time. */
    if (a->call == SELECT && a->timeval && t->wait.deadline_ns != UINT64_MAX) {
        uint64_t now_ns = rsi_now_ns();
        struct timespec left =
            rsi_timespec(t->wait.deadline_ns > now_ns ? t->wait.deadline_ns - now_ns : 0);
        *a->timeval = (struct timeval){ left.tv_sec, left.tv_nsec / 1000 };
    }
    errno = error;
    return result;
}

static bool turn_begin(struct turn *t)
{
    if (t->asked->call < EPOLL)
        return others_put(t);
    t->listeners[0] = (struct pollfd){ t->fd, POLLIN, 0 };
    t->others[0] = (struct pollfd){ t->asked->fd, POLLIN, 0 };
    t->wait.listener_count = t->wait.count = 1;
    t->set = t->asked->fd;
    return rpi_epoll_member_begin(t->self->tid, t->set, t->fd, &t->is_edge);
}

/* Enter the queue and wait. False: the wait cannot be in turn. */
static bool turn_wait(struct turn *t, enum rouse_wait_kind kind, const void *object,
                      const void *site, int *result)
{
    struct rpi_wait wait;
    const struct asked *a = t->asked;
    if (!rpi_order_enter(t->self, t->listener, t->wait.count != 0 || a->mask))
        return false;
    int64_t time_ns = time_of(a);
    t->wait.deadline_ns = time_ns == FOR_EVER ? UINT64_MAX : rsi_now_ns() + (uint64_t)time_ns;
    if (t->is_edge || !rpi_order_is_mine(t->self))
        rpi_epoll_member_move(t->set, t->fd, true);
    if (rpi_order_is_mine(t->self)) /* so that it reports a present connection again */
        rpi_epoll_member_move(t->set, t->fd, false);
    *result = rpi_order_is_mine(t->self) ? look(a) : look_at_others(t);
    if (*result != 0)
        return true;
    if (!rpi_wait_begin_for(&wait, kind, object, site, is_for_clients(a)))
        return false;
    t->has_slept = true;
    t->switches = rpi_thread_switches();
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    *result = sleep_in_turn(t);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(*result > 0 ? 0 : *result == 0 ? ETIMEDOUT : errno), NULL);
    return true;
}

/* False: the wait cannot be in turn. A thread that is already cancelled may end even in the call that does not wait. */
static bool wait_in_turn(const struct asked *a, int fd, enum rouse_wait_kind kind,
                         const void *object, const void *site, int *result)
{
    bool is_waited;
    struct rpi_thread *self = rpi_self;
    struct turn t = { .asked = a, .fd = fd, .set = -1, .listener = rpi_listener_of(fd) };
    t.wait =
        (struct rpi_order_wait){ .listeners = t.listeners, .others = t.others, .mask = a->mask };
    if (!self && !(self = rpi_thread_enter()))
        return false;
    t.self = self;
    if (!turn_begin(&t))
        return false;
    pthread_cleanup_push(turn_cancelled, &t);
    is_waited = turn_wait(&t, kind, object, site, result);
    pthread_cleanup_pop(!is_waited);
    if (is_waited)
        turn_end(&t, *result);
    return is_waited;
}

static int wait_for(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    int result, fd;
    bool is_set = a->call >= EPOLL, sleeps = is_sleep(a);
    bool is_huge = !is_set && a->call >= SELECT && (a->fd < 0 || a->fd > FD_SETSIZE);
    if (rpi_recording_is_confined())
        return call_real(a);
    int64_t time_ns = time_of(a);
    if (time_ns == 0 || time_ns == WRONG)
        return found_now(a, call_real(a));
    if (is_out_of_reach(a))
        return call_real(a);
    uintptr_t object = sleeps ? 0 : a->call <= PPOLL ? (uintptr_t)a->count : (uintptr_t)a->fd;
    enum rouse_wait_kind kind = sleeps   ? ROUSE_WAIT_SLEEP
                                : is_set ? ROUSE_WAIT_SET
                                         : ROUSE_WAIT_POLL;
    if (rpi_order_is_on() && !sleeps && !is_huge && (fd = listener_in(a, 0)) >= 0) {
        if (wait_in_turn(a, fd, kind, (const void *)object, site, &result))
            return result;
        rpi_order_refuse();
    }
    if (!sleeps && !is_huge && !is_dry(a) && (result = look(a)) != 0)
        return found_now(a, result);
    if (!rpi_wait_begin_for(&wait, kind, (const void *)object, site,
                            !sleeps && !is_huge && is_for_clients(a)))
        return call_real(a);
    const struct rpi_listener *l = sleeps || is_huge ? NULL : rpi_listener_of(listener_in(a, 0));
    uint64_t switches = l ? rpi_thread_switches() : 0;
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(result > 0 ? 0 : result == 0 ? ETIMEDOUT : errno), NULL);
    if (l)
        rpi_listener_waited(l, switches,
                            result > 0 ? rpi_listener_of(listener_in(a, result)) : NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int poll(struct pollfd *fds, nfds_t count, int ms)
{
    rpi_real_find();
    return wait_for(&(struct asked){ .call = POLL, .entries = fds, .count = count, .ms = ms },
                    RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time,
                                  const sigset_t *mask)
{
    rpi_real_find();
    return wait_for(
        &(struct asked){
            .call = PPOLL, .entries = fds, .count = count, .timespec = time, .mask = mask },
        RSI_CALLER());
}

/* Programs compiled with _FORTIFY_SOURCE call these. bytes is the size of the buffer. */
RPI_EXPORT RSI_NOINLINE int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t bytes)
{
    rpi_real_find();
    if (bytes / sizeof *fds < count)
        __chk_fail();
    return wait_for(&(struct asked){ .call = POLL, .entries = fds, .count = count, .ms = ms },
                    RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int __ppoll_chk(struct pollfd *fds, nfds_t count,
                                        const struct timespec *time, const sigset_t *mask,
                                        size_t bytes)
{
    rpi_real_find();
    if (bytes / sizeof *fds < count)
        __chk_fail();
    return wait_for(
        &(struct asked){
            .call = PPOLL, .entries = fds, .count = count, .timespec = time, .mask = mask },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int select(int count, fd_set *reads, fd_set *writes, fd_set *excepts,
                                   struct timeval *time)
{
    rpi_real_find();
    return wait_for(
        &(struct asked){
            .call = SELECT, .fd = count, .sets = { reads, writes, excepts }, .timeval = time },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int pselect(int count, fd_set *reads, fd_set *writes, fd_set *excepts,
                                    const struct timespec *time, const sigset_t *mask)
{
    rpi_real_find();
    return wait_for(&(struct asked){ .call = PSELECT,
                                     .fd = count,
                                     .sets = { reads, writes, excepts },
                                     .timespec = time,
                                     .mask = mask },
                    RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    rpi_real_find();
    return wait_for(
        &(struct asked){
            .call = EPOLL, .fd = fd, .entries = events, .count = (nfds_t)most, .ms = ms },
        RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_pwait(int fd, struct epoll_event *events, int most, int ms,
                                        const sigset_t *mask)
{
    rpi_real_find();
    return wait_for(&(struct asked){ .call = EPOLL_MASK,
                                     .fd = fd,
                                     .entries = events,
                                     .count = (nfds_t)most,
                                     .ms = ms,
                                     .mask = mask },
                    RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_pwait2(int fd, struct epoll_event *events, int most,
                                         const struct timespec *time, const sigset_t *mask)
{
    rpi_real_find();
    return wait_for(&(struct asked){ .call = EPOLL_TIMESPEC,
                                     .fd = fd,
                                     .entries = events,
                                     .count = (nfds_t)most,
                                     .timespec = time,
                                     .mask = mask },
                    RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
    rpi_real_find();
    bool is_listener = rpi_listener_of(fd) != NULL;
    int result = is_listener ? rpi_epoll_member_control(set, what, fd, event)
                             : rpi_real.epoll_ctl(set, what, fd, event);
    if (result == 0 && what == EPOLL_CTL_ADD)
        rpi_fd_set_member(set, fd, is_listener);
    return result;
}
