/* SPDX-License-Identifier: MIT */
/*
 * echo_load.c - a load generator for echo servers. One thread per connection sends a message and reads the echo.
 *
 * usage: echo_load PORT [CONNECTIONS [SECONDS]]    (defaults: 100 connections, 3 s)
 *
 * Prints the round trips per second of all connections together. If nothing listens on PORT yet, it waits up to 5 s
 * for a server that is just starting. ROUSE_THREADS=kernel in the environment makes each thread a kernel thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rouse/rouse.h>

#define SECOND_NS UINT64_C(1000000000)
#define MESSAGE "hello, echo\n"
#define MESSAGE_BYTES (sizeof(MESSAGE) - 1)

static struct sockaddr_in server = { .sin_family = AF_INET };
static uint64_t end_ns;

struct client {
    struct rouse_thread *thread;
    uint64_t round_trips; /* written by its thread, read after the join */
    int error;            /* 0 or -errno */
};

static int round_trip(int fd)
{
    uint64_t deadline_ns = rouse_now_ns() + 5 * SECOND_NS;
    char echo[MESSAGE_BYTES];
    size_t have = 0;
    ssize_t n = rouse_write_until(fd, MESSAGE, MESSAGE_BYTES, deadline_ns);

    while (n > 0 && have < MESSAGE_BYTES) {
        n = rouse_read_until(fd, echo + have, MESSAGE_BYTES - have, deadline_ns);
        have += n > 0 ? (size_t)n : 0;
    }
    if (n <= 0)
        return n < 0 ? (int)n : -EPIPE;
    return memcmp(echo, MESSAGE, MESSAGE_BYTES) == 0 ? 0 : -EBADMSG;
}

/* Wait until the server listens: a script may start both programs at once. */
static int wait_for_server(void)
{
    uint64_t deadline_ns = rouse_now_ns() + 5 * SECOND_NS;

    for (;;) {
        int error, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
            return -errno;
        error = rouse_connect(fd, (struct sockaddr *)&server, sizeof(server));
        rouse_close(fd);
        if (error != -ECONNREFUSED || rouse_now_ns() > deadline_ns)
            return error;
        rouse_sleep_until(rouse_now_ns() + SECOND_NS / 50);
    }
}

static void *run(void *arg)
{
    struct client *client = arg;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        client->error = -errno;
        return NULL;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    client->error = rouse_connect(fd, (struct sockaddr *)&server, sizeof(server));
    while (client->error == 0 && rouse_now_ns() < end_ns) {
        client->error = round_trip(fd);
        client->round_trips += client->error == 0;
    }
    rouse_close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 100, started = 0;
    double seconds = argc > 3 ? atof(argv[3]) : 3;
    struct client *clients = calloc(count ? count : 1, sizeof(*clients));
    uint64_t round_trips = 0;
    int error;

    if (argc < 2 || !clients) {
        fprintf(stderr, "usage: echo_load PORT [CONNECTIONS [SECONDS]]\n");
        return 2;
    }
    server.sin_port = htons((unsigned short)atoi(argv[1]));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    error = wait_for_server();
    end_ns = rouse_now_ns() + (uint64_t)(seconds * 1e9);

    while (error == 0 && started < count) {
        error = rouse_thread_create(&clients[started].thread, NULL, run, &clients[started]);
        started += error == 0;
    }
    for (size_t i = 0; i < started; i++) {
        rouse_thread_join(clients[i].thread, NULL);
        round_trips += clients[i].round_trips;
        error = error ? error : clients[i].error;
    }
    free(clients);
    printf("%zu connections: %.0f round trips per second\n", started,
           (double)round_trips / seconds);
    if (error)
        fprintf(stderr, "echo_load: %s\n", strerror(-error));
    return error != 0;
}
