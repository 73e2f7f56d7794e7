/* SPDX-License-Identifier: MIT */
/*
 * server.c - accepts connections, lists them, and drains.
 *
 * Limits    At most max_connections threads. If a client comes at the limit, the connection is closed that has waited
 *           longest for its own client: between requests, or for the rest of one, and for a second at least. So clients that open connections and send nothing lock
 *           nobody out. Its reading side is shut, as in a drain: a request that has just arrived is still answered. If
 *           none waits, all are being answered, and new connections wait in the kernel's queue until one ends. The same
 *           applies if descriptors or memory run out: it tries again after a connection has ended or a little later.
 *           No client is turned away with an error.
 * Drain     The thread of server_run is cancelled. It accepts the connections that have already arrived, stops
 *           listening, and shuts the reading side of every connection. That wakes idle connections and, unlike a
 *           cancelled call, affects no others: an answer in progress is finished, requests that have arrived are
 *           still read, and then the connection's thread sees the end of input. No synchronization with the state
 *           of the connection is needed, since the kernel keeps the mark.
 *           Rejected: rouse_thread_cancel, which may interrupt the sending of an answer.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "serve.h"

#define RETRY_NS ((uint64_t)100 * 1000 * 1000)
/* A client has so much time to send its next request, however many others come. */
#define WAIT_LEAST_NS ((uint64_t)1000 * 1000 * 1000)
/* While a client waits and nobody may be closed, look again this often. */
#define LOOK_NS ((uint64_t)50 * 1000 * 1000)
#define LOG_GAP_NS ((uint64_t)60 * 1000 * 1000 * 1000)

static struct rouse_mutex lock = ROUSE_MUTEX_INIT_NAMED("connections");

/* draining is written under lock, so that the drain misses no connection that enters. */
bool server_draining(const struct server *server)
{
    return __atomic_load_n(&server->draining, __ATOMIC_RELAXED);
}

void server_enter(struct connection *c)
{
    rouse_mutex_lock(&lock);
    server_of(c)->accepted++;
    c->next = server_of(c)->connections;
    if (c->next)
        c->next->previous = c;
    server_of(c)->connections = c;
    if (server_draining(server_of(c)))
        rouse_shutdown(c->fd, SHUT_RD);
    rouse_mutex_unlock(&lock);
}

/*
 * Close the connection. It leaves the list under the lock first, so that shut_all never shuts a reused descriptor
 * number.
 */
void server_leave(struct connection *c)
{
    rouse_mutex_lock(&lock);
    for (unsigned i = server_of(c)->idlest.at; i < server_of(c)->idlest.count; i++)
        if (server_of(c)->idlest.from[i].connection == c)
            server_of(c)->idlest.from[i].connection = NULL;
    if (c->next)
        c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        server_of(c)->connections = c->next;
    server_of(c)->answers += c->answers;
    server_of(c)->errors += c->errors;
    rouse_mutex_unlock(&lock);

    rouse_close(c->fd);

    rouse_mutex_lock(&lock);
    server_of(c)->count--;
    rouse_cond_signal(&server_of(c)->ended);
    rouse_mutex_unlock(&lock);
}

/* Each connection's counts are written by its thread, and may be slightly stale. */
struct figures server_figures(struct server *server)
{
    struct figures figures;

    rouse_mutex_lock(&lock);
    figures = (struct figures){ 0, server->accepted, server->answers, server->errors };
    for (struct connection *c = server->connections; c; c = c->next) {
        figures.connections++;
        figures.answers += __atomic_load_n(&c->answers, __ATOMIC_RELAXED);
        figures.errors += __atomic_load_n(&c->errors, __ATOMIC_RELAXED);
    }
    rouse_mutex_unlock(&lock);
    return figures;
}

static void shut_all(struct server *server, int how)
{
    for (struct connection *c = server->connections; c; c = c->next)
        rouse_shutdown(c->fd, how);
}

/* Print at most one line per minute, however often it happens. */
static void log_seldom(const char *what, int error)
{
    static uint64_t last_ns;
    uint64_t now_ns = rouse_now_ns();

    if (last_ns && now_ns - last_ns < LOG_GAP_NS)
        return;
    last_ns = now_ns;
    fprintf(stderr, "rouse-serve: %s: %s; trying again\n", what, strerror(error));
}

/* Add a connection to the longest waits, which are sorted, if it is one of them. Under the lock. */
static void keep_if_longest(struct idlest *all, struct connection *c, uint64_t since_ns)
{
    unsigned i = all->count < IDLEST ? all->count : IDLEST - 1;

    if (all->count == IDLEST && all->from[i].since_ns <= since_ns)
        return;
    for (; i > 0 && all->from[i - 1].since_ns > since_ns; i--)
        all->from[i] = all->from[i - 1];
    all->from[i].connection = c;
    all->from[i].since_ns = since_ns;
    if (all->count < IDLEST)
        all->count++;
}

/*
 * Shut the reading side of the connection that has waited longest for its client, if it has waited long enough. Under
 * the lock.
 *
 * The others of the last look have waited longer than all that have begun to wait since. One that does not wait any
 * more, or again, is passed over.
 */
static void shut_idlest(struct server *server)
{
    struct idlest *all = &server->idlest;
    uint64_t now_ns = rouse_now_ns();

    for (bool looked = false;; looked = true) {
        for (; all->at < all->count; all->at++) {
            struct connection *c = all->from[all->at].connection;
            uint64_t since_ns = all->from[all->at].since_ns;

            if (!c || __atomic_load_n(&c->waits_since_ns, __ATOMIC_RELAXED) != since_ns)
                continue;
            if (now_ns < since_ns + WAIT_LEAST_NS)
                return;
            all->at++;
            __atomic_store_n(&c->is_shut, true, __ATOMIC_RELAXED); /* before its thread wakes */
            limits_count(c, CAUSE_FULL);
            rouse_shutdown(c->fd, SHUT_RD);
            return;
        }
        if (looked)
            return;
        all->at = all->count = 0;
        for (struct connection *c = server->connections; c; c = c->next) {
            uint64_t since_ns = __atomic_load_n(&c->waits_since_ns, __ATOMIC_RELAXED);

            if (since_ns && !c->is_shut)
                keep_if_longest(all, c, since_ns);
        }
    }
}

static bool full(void *server)
{
    const struct server *s = server;

    return s->count >= s->max_connections;
}

static bool occupied(void *server)
{
    return ((const struct server *)server)->count > 0;
}

/*
 * Wait until there is room for one more connection, and count it. If there is none, wait for a client that wants it,
 * and make room. Returns 0, -ECANCELED or -ETIMEDOUT.
 */
static int reserve_connection(struct server *server, int listen_fd, uint64_t deadline_ns)
{
    struct pollfd client = { listen_fd, POLLIN, 0 };
    int result = 0;

    rouse_mutex_lock(&lock);
    while (result == 0 && full(server)) {
        rouse_mutex_unlock(&lock);
        result = rouse_poll_until(&client, 1, deadline_ns);
        rouse_mutex_lock(&lock);
        if (result > 0) {
            shut_idlest(server);
            result = rouse_cond_wait_while_until(&server->ended, &lock, full, server,
                                                 rouse_now_ns() + LOOK_NS);
            if (result == -ETIMEDOUT)
                result = 0;
        } else if (result == 0) {
            result = -ETIMEDOUT;
        }
    }
    if (result == 0)
        server->count++;
    rouse_mutex_unlock(&lock);
    return result;
}

/*
 * Give the reserved place back. After a failure, wait until something may have changed. Returns 0 to continue, or
 * the negative error if the server should stop.
 */
static int back_off(struct server *server, const char *what, int error, uint64_t deadline_ns)
{
    bool ends = error == -ECANCELED || deadline_ns != ROUSE_FOREVER;
    int result = error;

    if (!ends)
        log_seldom(what, -error);
    rouse_mutex_lock(&lock);
    server->count--;
    if (!ends)
        result = rouse_cond_wait_until(&server->ended, &lock, rouse_now_ns() + RETRY_NS);
    rouse_mutex_unlock(&lock);
    return ends || result == -ECANCELED ? result : 0;
}

/*
 * Accept a connection and start its thread. Returns 0, or a negative number if it is time to stop: the thread was
 * cancelled or, with a deadline, nothing more can be accepted.
 */
static int accept_one(struct server *server, int listen_fd, uint64_t deadline_ns)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    int fd, result = reserve_connection(server, listen_fd, deadline_ns);

    if (result < 0)
        return result;
    fd = rouse_accept_until(listen_fd, NULL, NULL, deadline_ns);
    if (fd < 0)
        return back_off(server, "cannot accept a connection", fd, deadline_ns);
    attr.kind = settings.kind;
    attr.detached = true;
    /*
     * No name: it would be the same for all, and take 64 bytes each. The outermost frame of the backtrace shows as
     * much.
     */
    result =
        rouse_thread_create(NULL, &attr, connection_run, connection_arg(fd, server == &metrics));
    if (result < 0) {
        rouse_close(fd);
        return back_off(server, "cannot start a thread for a connection", result, deadline_ns);
    }
    return 0;
}

unsigned server_run(struct server *server, int listen_fd)
{
    uint64_t deadline_ns;
    unsigned left;

    while (accept_one(server, listen_fd, ROUSE_FOREVER) == 0)
        ;
    /* Connections that arrived before the signal are served too. */
    while (accept_one(server, listen_fd, 0) == 0)
        ;
    rouse_close(listen_fd);

    deadline_ns = rouse_now_ns() + settings.drain_ns;
    rouse_mutex_lock(&lock);
    __atomic_store_n(&server->draining, true, __ATOMIC_RELAXED);
    shut_all(server, SHUT_RD);
    rouse_cond_wait_while_until(&server->ended, &lock, occupied, server, deadline_ns);
    left = server->count;
    rouse_mutex_unlock(&lock);
    return left;
}
