/* SPDX-License-Identifier: MIT */
/*
 * echo_server.c - an echo server: plain blocking calls, one thread per connection.
 *
 * usage: echo_server [PORT [IDLE_SECONDS]]    (defaults: port 7777, 30 s; port 0 is any free port)
 *
 * The server closes a connection that sends nothing, or does not read its answer, for IDLE_SECONDS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rouse/rouse.h>

#define SECOND_NS UINT64_C(1000000000)

static uint64_t idle_ns = 30 * SECOND_NS;

_Noreturn static void fail(const char *what, int error)
{
    fprintf(stderr, "echo_server: %s: %s\n", what, strerror(error));
    exit(1);
}

/* A write may be short: write the rest. One deadline covers all of it. */
static int write_all(int fd, const char *from, size_t bytes)
{
    uint64_t deadline_ns = rouse_now_ns() + idle_ns;

    while (bytes > 0) {
        ssize_t written = rouse_write_until(fd, from, bytes, deadline_ns);

        if (written < 0)
            return (int)written;
        from += written;
        bytes -= (size_t)written;
    }
    return 0;
}

/* One connection, on its own thread. */
static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char buffer[4096];
    ssize_t got;

    while ((got = rouse_read_until(fd, buffer, sizeof(buffer), rouse_now_ns() + idle_ns)) > 0)
        if (write_all(fd, buffer, (size_t)got) < 0)
            break;
    rouse_close(fd);
    return NULL;
}

static void *accept_all(void *arg)
{
    const struct rouse_thread_attr attr = { .detached = true, .name = "connection" };
    int fd, listen_fd = *(int *)arg;

    while ((fd = rouse_accept(listen_fd, NULL, NULL)) != -ECANCELED) {
        int error = fd < 0 ? fd : rouse_thread_create(NULL, &attr, serve, (void *)(intptr_t)fd);

        if (error == 0)
            continue;
        /* Out of descriptors or memory: connections that end free some. */
        fprintf(stderr, "echo_server: a connection must wait: %s\n", strerror(-error));
        if (fd >= 0)
            rouse_close(fd);
        rouse_sleep(SECOND_NS / 10);
    }
    return NULL;
}

static int listen_at(unsigned short port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t length = sizeof(address);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        fail("cannot listen", errno);
    printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    int port = argc > 1 ? atoi(argv[1]) : 7777, listen_fd, error;
    struct rouse_thread *acceptor;

    if (argc > 2)
        idle_ns = strtoull(argv[2], NULL, 10) * SECOND_NS;
    listen_fd = listen_at((unsigned short)port);
    /* main() could accept too, but it runs on a kernel thread. A user thread hands connections over faster. */
    error = rouse_thread_create(&acceptor, NULL, accept_all, &listen_fd);
    if (error == 0)
        error = rouse_thread_join(acceptor, NULL);
    fail("cannot go on", -error);
}
