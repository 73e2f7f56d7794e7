/* SPDX-License-Identifier: MIT */
/*
 * poll.c - what poll, select, epoll_wait and their kin do, which polls.c has: one path for all of them, of which each
 * step knows them apart.
 *
 * Each is called without waiting first, and again only if that finds nothing: one system call more for each wait, and
 * what is recorded is a wait. Not so for one descriptor on which the thread has just found nothing, as servers do before
 * they wait: what comes in between is then a wait of no length.
 *
 * Whether a wake-up was of use is known when its thread next tries a descriptor (input.c): if that would block, another
 * has been faster.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "hooks/polls.h"

#include "accept/order.h"

#include "os/os.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define SET_BYTES (FD_SETSIZE / 8)
#define OTHERS_MOST 128 /* that a wait in turn can be for */
#define VAIN_MOST \
    100u /* looks at others that found nothing: something of theirs is not seen by poll */

enum { FOR_EVER = -1, WRONG = -2 }; /* times */

static int call_real(const struct rpi_poll *a)
{
    switch (a->call) {
    case RPI_POLL_POLL: return rpi_real.poll(a->entries, a->count, a->ms);
    case RPI_POLL_PPOLL: return rpi_real.ppoll(a->entries, a->count, a->timespec, a->mask);
    case RPI_POLL_SELECT:
        return rpi_real.select(a->fd, a->sets[0], a->sets[1], a->sets[2], a->timeval);
    case RPI_POLL_PSELECT:
        return rpi_real.pselect(a->fd, a->sets[0], a->sets[1], a->sets[2], a->timespec, a->mask);
    case RPI_POLL_EPOLL: return rpi_real.epoll_wait(a->fd, a->entries, (int)a->count, a->ms);
    case RPI_POLL_EPOLL_MASK:
        return rpi_real.epoll_pwait(a->fd, a->entries, (int)a->count, a->ms, a->mask);
    default: return rpi_real.epoll_pwait2(a->fd, a->entries, (int)a->count, a->timespec, a->mask);
    }
}

/* For how many ns it may wait; FOR_EVER; WRONG: the kernel refuses it, whatever there is. */
static int64_t time_of(const struct rpi_poll *a)
{
    const struct timeval *t = a->timeval;
    const struct timespec *s = a->timespec;
    if (a->call == RPI_POLL_POLL || a->call == RPI_POLL_EPOLL || a->call == RPI_POLL_EPOLL_MASK)
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

/* The same at once; what select has written to its sets is undone if it has found nothing. */
static int look(const struct rpi_poll *a)
{
    static const struct timespec never;
    struct timeval none = { 0, 0 };
    struct rpi_poll now = *a;
    char saved[3][SET_BYTES];
    size_t bytes = a->call == RPI_POLL_SELECT || a->call == RPI_POLL_PSELECT
                       ? ((size_t)a->fd + 63) / 64 * 8
                       : 0;
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

/* Nothing to look at: a sleep. */
static bool is_sleep(const struct rpi_poll *a)
{
    return a->call <= RPI_POLL_PPOLL     ? a->count == 0
           : a->call <= RPI_POLL_PSELECT ? !a->sets[0] && !a->sets[1] && !a->sets[2]
                                         : false;
}

/* What is read here before the kernel has, which may find that it cannot be. */
static bool is_out_of_reach(const struct rpi_poll *a)
{
    const struct rpi_thread *self = rpi_self;
    bool is_read_first = rpi_order_is_on() || (a->count == 1 && self && self->dry_fd >= 0);
    if (a->call <= RPI_POLL_PPOLL)
        return is_read_first && a->count &&
               !rpi_is_readable(a->entries, a->count * sizeof(struct pollfd));
    for (int i = 0; a->call <= RPI_POLL_PSELECT && a->fd > 0 && a->fd <= FD_SETSIZE && i < 3; i++)
        if (a->sets[i] && !rpi_is_readable(a->sets[i], ((size_t)a->fd + 63) / 64 * 8))
            return true;
    return false;
}

/* To read from one descriptor, on which this thread has just found nothing: a look would find nothing as well. */
static bool is_dry(const struct rpi_poll *a)
{
    const struct pollfd *entry = a->entries;
    return a->call <= RPI_POLL_PPOLL && a->count == 1 && rpi_self && rpi_self->dry_fd >= 0 &&
           (entry->events & (POLLIN | POLLOUT)) == POLLIN && rpi_self->dry_fd == entry->fd;
}

/*
 * A listener among what the call looks at for reading, or, if it has ended, has found a connection of; -1: none that is
 * known. One that was shut down has none.
 */
static int listener_in(const struct rpi_poll *a, int result)
{
    const struct pollfd *entry = a->entries;
    const struct epoll_event *event = a->entries;
    bool has_ended = result > 0;
    uint64_t data;
    if (a->call <= RPI_POLL_PPOLL) {
        for (nfds_t i = 0; i < a->count; i++)
            if ((has_ended ? entry[i].revents : entry[i].events) & POLLIN &&
                !(has_ended && entry[i].revents & POLLHUP) && rpi_listener_of(entry[i].fd))
                return entry[i].fd;
    } else if (a->call <= RPI_POLL_PSELECT) {
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

/* Something was found without a sleep. */
static int found_now(const struct rpi_poll *a, int result)
{
    const struct rpi_listener *l = result > 0 ? rpi_listener_of(listener_in(a, result)) : NULL;
    if (l)
        rpi_listener_told(l);
    return result;
}

/* A wait for a listener, and maybe for others, in turn. */
struct turn {
    const struct rpi_poll *asked;
    struct rpi_thread *self;
    const struct rpi_listener *listener;
    int fd, set; /* set: epoll's, where the listener is only while the turn is ours; -1: none */
    bool is_edge, has_slept;
    unsigned sleeps;
    uint64_t switches;          /* before it slept */
    struct rpi_order_wait wait; /* for these: */
    struct pollfd others[OTHERS_MOST + 1], listeners[OTHERS_MOST];
};

/* The listeners, and what else is waited for. False: it is more than there is room for. */
static bool others_put(struct turn *t)
{
    const struct rpi_poll *a = t->asked;
    const struct pollfd *entry = a->entries;
    nfds_t count = a->call <= RPI_POLL_PPOLL ? a->count : (nfds_t)a->fd, others = 0, listeners = 0;
    bool is_any = false;
    for (nfds_t i = 0; i < count; i++) {
        struct pollfd other = { -1, 0, 0 };
        if (a->call <= RPI_POLL_PPOLL) {
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
    const struct rpi_poll *a = t->asked;
    struct pollfd *entry = a->entries;
    if (a->call >= RPI_POLL_EPOLL)
        return look(a);
    if (t->wait.count == 0)
        return 0;
    if (a->call <= RPI_POLL_PPOLL) {
        int result = rpi_real.poll(t->others, t->wait.count, 0);
        for (nfds_t i = 0; i < t->wait.count && result > 0; i++)
            entry[i].revents = t->others[i].revents;
        return result;
    }
    fd_set sets[3];
    struct rpi_poll now = *a;
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

/* As the program has it, for the time that is left. */
static int call_for_rest(const struct turn *t)
{
    struct rpi_poll rest = *t->asked;
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
    for (unsigned vain = 0;;) {
        bool is_mine = rpi_order_is_mine(t->self);
        if (is_mine || vain == VAIN_MOST) {
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
        vain++;
    }
}

static void turn_cancelled(void *turn)
{
    struct turn *t = turn;
    rpi_epoll_member_end(t->set, t->fd);
    rpi_order_leave(t->self);
}

/* Who was told of a connection keeps the turn until it has accepted. */
static int turn_end(struct turn *t, int result)
{
    const struct rpi_poll *a = t->asked;
    int error = errno;
    rpi_epoll_member_end(t->set, t->fd);
    const struct rpi_listener *l = result > 0 ? rpi_listener_of(listener_in(a, result)) : NULL;
    if (!l)
        rpi_order_leave(t->self);
    bool is_in_vain = result == 0 || (result < 0 && error == EINTR);
    for (nfds_t i = 0; a->call <= RPI_POLL_PPOLL && i < a->count && is_in_vain; i++)
        ((struct pollfd *)a->entries)[i].revents = 0; /* as the kernel */
    for (int i = 0; i < 3 && result == 0; i++)
        if (a->sets[i])
            memset(a->sets[i], 0, ((size_t)a->fd + 63) / 64 * 8);
    if (t->has_slept)
        rpi_listener_waited(t->listener, t->switches + t->sleeps, l);
    else if (l)
        rpi_listener_told(l);
    if (a->call == RPI_POLL_SELECT && a->timeval &&
        t->wait.deadline_ns != UINT64_MAX) { /* as the kernel */
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
    if (t->asked->call < RPI_POLL_EPOLL)
        return others_put(t);
    t->listeners[0] = (struct pollfd){ t->fd, POLLIN, 0 };
    t->others[0] = (struct pollfd){ t->asked->fd, POLLIN, 0 };
    t->wait.listener_count = t->wait.count = 1;
    t->set = t->asked->fd;
    return rpi_epoll_member_begin(t->self->tid, t->set, t->fd, &t->is_edge);
}

/* From the queue's entry to the result. False: it is not waited for in turn. */
static bool turn_wait(struct turn *t, enum rouse_wait_kind kind, const void *object,
                      const void *site, int *result)
{
    struct rpi_wait wait;
    const struct rpi_poll *a = t->asked;
    if (!rpi_order_enter(t->self, t->listener, t->wait.count != 0 || a->mask))
        return false;
    int64_t time_ns = time_of(a);
    t->wait.deadline_ns = time_ns == FOR_EVER ? UINT64_MAX : rsi_now_ns() + (uint64_t)time_ns;
    if (t->is_edge || !rpi_order_is_mine(t->self))
        rpi_epoll_member_move(t->set, t->fd, true);
    if (rpi_order_is_mine(t->self)) /* of what is there it is told anew */
        rpi_epoll_member_move(t->set, t->fd, false);
    *result = rpi_order_is_mine(t->self) ? look(a) : look_at_others(t);
    if (*result != 0)
        return true;
    if (!rpi_wait_begin(&wait, kind, object, site))
        return false;
    t->has_slept = true;
    t->switches = rpi_thread_switches();
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    *result = sleep_in_turn(t);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, rpi_wait_verdict(*result > 0 ? 0 : *result == 0 ? ETIMEDOUT : errno), NULL);
    return true;
}

/* False: it is not waited for in turn. Even a look may be where its thread ends, if that is cancelled already. */
static bool wait_in_turn(const struct rpi_poll *a, int fd, enum rouse_wait_kind kind,
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

int rpi_poll_wait(const struct rpi_poll *a, const void *site)
{
    struct rpi_wait wait;
    int result, fd;
    bool is_set = a->call >= RPI_POLL_EPOLL, sleeps = is_sleep(a);
    bool is_huge = !is_set && a->call >= RPI_POLL_SELECT && (a->fd < 0 || a->fd > FD_SETSIZE);
    if (rpi_recording_is_confined())
        return call_real(a);
    int64_t time_ns = time_of(a);
    if (time_ns == 0 || time_ns == WRONG)
        return found_now(a, call_real(a));
    if (is_out_of_reach(a))
        return call_real(a);
    uintptr_t object = sleeps                      ? 0
                       : a->call <= RPI_POLL_PPOLL ? (uintptr_t)a->count
                                                   : (uintptr_t)a->fd;
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
    if (!rpi_wait_begin(&wait, kind, (const void *)object, site))
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
