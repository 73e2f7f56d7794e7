/* SPDX-License-Identifier: MIT */
/*
 * listener.c - finds out which descriptors are listening sockets, and counts what became of their connections.
 *
 * A listener is identified by the kernel's cookie, which is unique until the machine restarts, and the same in all
 * processes that share the listener under any number. The kernel is asked once for each descriptor whose creation we
 * did not see. A descriptor from socket or accept is no listener until listen is called.
 */
#include "accept/listener.h"

#include "accept/order.h"
#include "process/guard.h"
#include "process/real.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#define FDS 65536u /* higher descriptors are not treated as listeners */
#define NONE 255u
#define KNOWN 64u /* per process; others are not treated as listeners */

/* 0: not asked yet; NONE; else the index in known, plus 1. Relaxed: any thread writes. */
static uint8_t of_fd[FDS];
static struct rpi_listener known[KNOWN];
static unsigned known_count; /* release: the entries before it are complete */
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

/* The address in its usual notation. */
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
        if (a.un.sun_path[0] == 0) /* an abstract name */
            a.un.sun_path[0] = '@';
        a.un.sun_path[sizeof a.un.sun_path - 1] = 0;
        rsi_format(l->name, sizeof l->name, "%s", a.un.sun_path);
    }
}

/*
 * The index of the listener plus 1, added if necessary. 0: no room. Signals are blocked because a handler may ask for
 * another.
 */
static unsigned place_of(int fd, uint64_t cookie)
{
    unsigned place = 0;
    sigset_t before;
    rpi_guard_enter(&guard, &before);
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
    rpi_guard_exit(&guard, &before);
    return place;
}

/* 0: the socket has none. */
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
    /* acquire: another thread may have added it; pairs with place_of */
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

/* Sample the length of the accept queue. */
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
    bool was_reported = self->reported == l, is_in = rpi_order_is_on() && rpi_order_is_in(self);
    bool is_ours = is_in && rpi_order_is_mine(self);
    self->reported = NULL;
    if (is_in)
        rpi_order_leave(self);
    if ((how != RPI_ACCEPT_NONE || was_reported) && rpi_thread_begin(self)) {
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

void rpi_listener_reported(const struct rpi_listener *l)
{
    struct rpi_thread *self = rpi_self;
    if (self || (self = rpi_thread_enter()))
        self->reported = l;
}

/*
 * A wait costs one switch. Each further switch is a wake-up by a connection that another thread took before this thread
 * ran.
 */
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
    self->reported = found;
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
