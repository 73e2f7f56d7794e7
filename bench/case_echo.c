/* SPDX-License-Identifier: MIT */
/*
 * case_echo.c - T connections with one thread at each end and messages of --bytes. An operation is a round trip.
 *
 * The main thread makes the connections: unix socket pairs, or TCP over loopback with --socket tcp.
 */
#include "team.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct connection {
    int client, server;
    struct bench_thread thread; /* serves */
    struct bench_run *run;
    char *buffers; /* the client's, then the server's */
};

struct state {
    struct bench_team team;
    struct connection *connections;
    unsigned made, serving;
    char *buffers;
    _Atomic uint64_t errors;
};

static int listener_make(struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)address, sizeof *address) != 0 ||
        listen(fd, 128) != 0 || getsockname(fd, (struct sockaddr *)address, &length) != 0) {
        int error = -errno;
        if (fd >= 0)
            close(fd);
        return error;
    }
    return fd;
}

static int connect_tcp(int listener, const struct sockaddr_in *address, struct connection *c)
{
    const int on = 1;
    c->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->client < 0)
        return -errno;
    if (connect(c->client, (const struct sockaddr *)address, sizeof *address) != 0 ||
        (c->server = accept(listener, NULL, NULL)) < 0) {
        int error = -errno;
        close(c->client);
        return error;
    }
    setsockopt(c->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return 0;
}

static int connect_unix(struct connection *c)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return -errno;
    c->client = fds[0];
    c->server = fds[1];
    return 0;
}

static int connect_all(struct bench_run *run, struct state *s)
{
    struct sockaddr_in address;
    int error = 0;
    int listener = run->options.tcp ? listener_make(&address) : -1;

    if (run->options.tcp && listener < 0)
        return bench_fail(run, listener, "listening on 127.0.0.1");
    for (; s->made < run->threads && error == 0; s->made += error == 0) {
        struct connection *c = &s->connections[s->made];
        c->run = run;
        c->buffers = s->buffers + (size_t)s->made * 2 * run->options.bytes;
        error = run->options.tcp ? connect_tcp(listener, &address, c) : connect_unix(c);
    }
    if (listener >= 0)
        close(listener);
    return error ? bench_fail(run, error, "making a connection") : 0;
}

static long receive_all(int fd, char *buffer, size_t bytes)
{
    size_t got = 0;
    while (got < bytes) {
        long n = bench_recv(fd, buffer + got, bytes - got);
        if (n <= 0)
            return n < 0 ? n : -ECONNRESET;
        got += (size_t)n;
    }
    return 0;
}

static long send_all(int fd, const char *buffer, size_t bytes)
{
    size_t sent = 0;
    while (sent < bytes) {
        long n = bench_send(fd, buffer + sent, bytes - sent);
        if (n < 0)
            return n;
        sent += (size_t)n;
    }
    return 0;
}

static void *serve(void *arg)
{
    struct connection *c = arg;
    char *buffer = c->buffers + c->run->options.bytes;

    for (;;) {
        long n = bench_recv(c->server, buffer, c->run->options.bytes);
        if (n <= 0 || send_all(c->server, buffer, (size_t)n) != 0)
            return NULL;
    }
}

static void talk(struct bench_member *member, uint64_t ops)
{
    struct bench_run *run = member->team->run;
    struct state *s = run->state;
    struct connection *c = &s->connections[member->index];

    for (uint64_t i = 0; i < ops; i++) {
        bench_count_some(run, i, ops);
        if (send_all(c->client, c->buffers, run->options.bytes) != 0 ||
            receive_all(c->client, c->buffers, run->options.bytes) != 0)
            atomic_fetch_add_explicit(&s->errors, 1, memory_order_relaxed);
    }
}

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->connections = calloc(run->threads, sizeof *s->connections);
    s->buffers = calloc((size_t)run->threads * 2, run->options.bytes);
    if (!s->connections || !s->buffers)
        return -ENOMEM;
    int error = bench_team_prepare(&s->team, run, run->threads);
    s->team.body = talk;
    return error ? error : connect_all(run, s);
}

/* Half-closing the client's end makes the serving thread read the end of the stream. */
static void end(struct bench_run *run)
{
    struct state *s = run->state;
    bench_team_end(&s->team);
    for (unsigned i = 0; i < s->serving; i++)
        raw6(SYS_shutdown, s->connections[i].client, SHUT_WR, 0, 0, 0, 0);
    for (unsigned i = 0; i < s->serving; i++)
        bench_thread_join(&s->connections[i].thread);
    s->serving = 0;
}

static int begin(struct bench_run *run)
{
    struct state *s = run->state;
    int error = bench_team_begin(&s->team);
    if (error)
        return error;
    for (unsigned i = 0; i < run->threads; i++) {
        struct connection *c = &s->connections[i];
        error = bench_thread_create(run, &c->thread, serve, c);
        if (error) {
            end(run);
            return bench_fail(run, error, "creating a thread");
        }
        s->serving++;
    }
    return 0;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;
    const uint64_t each = (ops + run->threads - 1) / run->threads;

    bench_team_round(&s->team, each);
    run->sample_ops = each * run->threads;
    return atomic_load_explicit(&s->errors, memory_order_relaxed)
               ? bench_fail(run, -EIO, "a round trip")
               : 0;
}

static void report(struct bench_run *run)
{
    bench_figure(run, "bytes", run->options.bytes);
    bench_figure(run, "round_trips_per_s",
                 (double)run->total_ops * 1e9 / (double)run->total.wall_ns);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;
    for (unsigned i = 0; i < s->made; i++) {
        close(s->connections[i].client);
        close(s->connections[i].server);
    }
    bench_team_release(&s->team);
    free(s->connections);
    free(s->buffers);
    free(s);
}

const struct bench_case BENCH_NAME(case_echo) = {
    .name = "echo",
    .summary = "T connections with a thread at each end; round trips of --bytes",
    .threads = 10,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
