/* SPDX-License-Identifier: MIT */
/*
 * listener.c - which descriptors are listeners, and what became of their connections.
 *
 * A listener is known by the kernel's cookie, which is its own for as long as the machine is up: the same in all
 * processes that share it, whatever its number is there. The kernel is asked once for each descriptor that the program
 * got by a call that we do not see; one that socket or accept made is none until listen is called.
 */
#include "accept/order.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>

#define FDS 65536u /* those above are no listeners to us */
#define NONE 255u
#define KNOWN 64u /* in a process; those beyond are none to us */

static uint8_t
    of_fd[FDS]; /* 0: not asked; NONE; else the place in known, from 1 on. Relaxed: any thread */
static struct rpi_listener known[KNOWN];
static unsigned known_count; /* release: those before it are there */
static uint32_t guard;

void rpi_listener_ask_anew(int fd)
{
    if (fd >= 0 && (unsigned)fd < FDS && rsi_load_relaxed(&of_fd[fd]))
        rsi_store_relaxed(&of_fd[fd], (uint8_t)0);
}

void rpi_listener_is_none(int fd)
{
    if (fd >= 0 && (unsigned)fd < FDS && rsi_load_relaxed(&of_fd[fd]) != NONE)
        rsi_store_relaxed(&of_fd[fd], (uint8_t)NONE);
}

static int option(int fd, int level, int name)
{
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, level, name, &value, &bytes) == 0 ? value : -1;
}

union address {
    struct sockaddr_storage any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_un un;
};

/* As people write it. */
static void name_put(int fd, struct rpi_listener *l)
{
    char text[INET6_ADDRSTRLEN] = "";
    union address a = { .any = { 0 } };
    socklen_t bytes = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &bytes) != 0)
        return;
    if (a.any.ss_family == AF_INET && inet_ntop(AF_INET, &a.in.sin_addr, text, sizeof text)) {
        rsi_format(l->name, sizeof l->name, "%s:%u", text, ntohs(a.in.sin_port));
    } else if (a.any.ss_family == AF_INET6 &&
               inet_ntop(AF_INET6, &a.in6.sin6_addr, text, sizeof text)) {
        rsi_format(l->name, sizeof l->name, "[%s]:%u", text, ntohs(a.in6.sin6_port));
    } else if (a.any.ss_family == AF_UNIX && bytes > offsetof(struct sockaddr_un, sun_path) + 1) {
        if (a.un.sun_path[0] == 0) /* abstract */
            a.un.sun_path[0] = '@';
        a.un.sun_path[sizeof a.un.sun_path - 1] = 0;
        rsi_format(l->name, sizeof l->name, "%s", a.un.sun_path);
    }
}

/* Its place from 1 on, made if need be; 0: no room. Signals are blocked: a handler may ask for another. */
static unsigned place_of(int fd, uint64_t cookie)
{
    unsigned place = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    rsi_guard_lock(&guard);
    for (unsigned i = 0; i < known_count && !place; i++)
        place = known[i].cookie == cookie ? i + 1 : 0;
    if (!place && known_count < KNOWN) {
        struct rpi_listener *l = &known[known_count];
        l->cookie = cookie;
        l->is_tcp = option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
        name_put(fd, l);
        place = known_count + 1;
        rsi_store_release(&known_count, place); /* pairs with rpi_listener_of */
    }
    rsi_guard_unlock(&guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return place;
}

/* 0: it has none. */
static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t bytes = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

bool rpi_listener_is(int fd, const struct rpi_listener *l)
{
    int error = errno;
    if (rpi_recording_is_confined())
        return true;
    uint64_t cookie = cookie_of(fd);
    errno = error;
    return cookie == l->cookie;
}

static RSI_COLD unsigned ask(int fd)
{
    int error = errno;
    uint64_t cookie = option(fd, SOL_SOCKET, SO_ACCEPTCONN) > 0 ? cookie_of(fd) : 0;
    unsigned place = cookie ? place_of(fd, cookie) : 0;
    errno = error;
    rsi_store_relaxed(&of_fd[fd], (uint8_t)(place ? place : NONE));
    return place;
}

const struct rpi_listener *rpi_listener_of(int fd)
{
    if (fd < 0 || (unsigned)fd >= FDS || rpi_self_is_vforked() || rpi_recording_is_confined())
        return NULL;
    unsigned place = rsi_load_relaxed(&of_fd[fd]);
    if (place == 0)
        place = ask(fd);
    /* acquire: another thread may have made it; pairs with place_of */
    return place && place != NONE && place <= rsi_load_acquire(&known_count) ? &known[place - 1]
                                                                             : NULL;
}

struct rsi_store_listener *rpi_listener_row(struct rpi_thread *self, const struct rpi_listener *l)
{
    struct rsi_store_chunk *chunk = self->writer->listeners;
    if (!chunk)
        chunk = self->writer->listeners = rsi_file_chunk(
            RSI_STORE_LISTENERS, sizeof(struct rsi_store_listener), 1, self->writer->index);
    if (!chunk)
        return NULL;
    for (uint32_t i = 0; i < chunk->used; i++) {
        struct rsi_store_listener *row = rsi_chunk_entry(chunk, i);
        if (row->cookie == l->cookie)
            return row;
    }
    struct rsi_store_listener *row = rsi_chunk_next(chunk);
    if (!row)
        return NULL;
    row->cookie = l->cookie;
    row->is_tcp = l->is_tcp;
    for (size_t i = 0; i < sizeof row->name; i++)
        row->name[i] = l->name[i];
    rsi_chunk_add(chunk);
    return row;
}

/* What is still in its queue. */
static void sample(int fd, struct rsi_store_listener *row)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_unacked) + sizeof info.tcpi_unacked)
        return;
    rsi_count(row->samples, 1);
    rsi_count(row->backlog, info.tcpi_unacked);
    rsi_count_most(row->backlog_most, info.tcpi_unacked);
}

void rpi_listener_accepted(int fd, enum rpi_accept how)
{
    struct rpi_thread *self = rpi_self;
    int error = errno;
    const struct rpi_listener *l = rpi_listener_of(fd);
    if (!l || (!self && !(self = rpi_thread_enter())))
        return;
    bool is_told = self->told == l, is_in = rpi_order_is_on() && rpi_order_is_in(self);
    bool is_ours = is_in && rpi_order_is_mine(self);
    self->told = NULL;
    if (is_in)
        rpi_order_leave(self);
    if ((how != RPI_ACCEPT_NONE || is_told) && rpi_thread_begin(self)) {
        struct rsi_store_listener *row = rpi_listener_row(self, l);
        if (row && how == RPI_ACCEPT_NONE) {
            rsi_count(row->lost, 1);
        } else if (row) {
            uint64_t now = rsi_tsc();
            rsi_count(row->accepted, 1);
            if (rsi_load_relaxed(&row->first_tsc) == 0)
                rsi_store_relaxed(&row->first_tsc, now);
            rsi_store_relaxed(&row->last_tsc, now);
            rsi_count(row->woken, how == RPI_ACCEPT_WOKEN);
            rsi_count(row->ordered, is_ours);
            if (l->is_tcp)
                sample(fd, row);
        }
        self->is_busy = false;
    }
    errno = error;
}

void rpi_listener_told(const struct rpi_listener *l)
{
    struct rpi_thread *self = rpi_self;
    if (self || (self = rpi_thread_enter()))
        self->told = l;
}

uint64_t rpi_thread_switches(void)
{
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? (uint64_t)used.ru_nvcsw : 0;
}

/* A wait takes one switch; each other is a wake-up by a connection that somebody else had taken before the thread ran. */
void rpi_listener_waited(const struct rpi_listener *l, uint64_t switches,
                         const struct rpi_listener *found)
{
    struct rpi_thread *self = rpi_self;
    int error = errno;
    if (rpi_recording_is_confined())
        return;
    uint64_t more = rpi_thread_switches() - switches;
    if (!self)
        return;
    self->told = found;
    if (rpi_thread_begin(self)) {
        struct rsi_store_listener *row = rpi_listener_row(self, found ? found : l);
        if (row) {
            rsi_count(row->woken, found != NULL);
            rsi_count(row->in_vain, more > 1 ? more - 1 : 0);
        }
        self->is_busy = false;
    }
    errno = error;
}

void rpi_listener_delayed(const struct rpi_listener *l, uint64_t since_tsc)
{
    struct rpi_thread *self = rpi_self;
    if (!self || !rpi_thread_begin(self))
        return;
    struct rsi_store_listener *row = rpi_listener_row(self, l);
    if (row) {
        rsi_count(row->delays, 1);
        rsi_count(row->delay_ticks, rsi_tsc() - since_tsc);
    }
    self->is_busy = false;
}

void rpi_listener_child(void)
{
    guard = 0;
}

RPI_EXPORT RSI_NOINLINE int listen(int fd, int most)
{
    rpi_real_find();
    int result = rpi_real.listen(fd, most);
    rpi_listener_ask_anew(fd);
    return result;
}
