/* SPDX-License-Identifier: MIT */
/*
 * idle_io.c - a program in which threads of both kinds wait for every sort of I/O, without a deadline
 * or with a distant one. The test checks that the program sleeps. It ends when its standard input
 * does.
 */
#include <rouse/rouse.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define FAR_NS UINT64_C(1000000000000)

enum what { READ, READ_UNTIL, WRITE, ACCEPT, CONNECT };

struct wait {
    enum what what;
    int fd;
};

static struct sockaddr_in full; /* a listener that accepts no connection */

static void *wait_for_it(void *arg)
{
    const struct wait *wait = arg;
    char bytes[8] = { 1 };
    switch (wait->what) {
    case READ: (void)rouse_read(wait->fd, bytes, 8); break;
    case READ_UNTIL: (void)rouse_read_until(wait->fd, bytes, 8, rouse_now_ns() + FAR_NS); break;
    case WRITE:
        while (rouse_write(wait->fd, bytes, 8) > 0)
            ;
        break;
    case ACCEPT: (void)rouse_accept(wait->fd, NULL, NULL); break;
    case CONNECT: (void)rouse_connect(wait->fd, (const struct sockaddr *)&full, sizeof full); break;
    }
    fprintf(stderr, "a wait ended: %d\n", (int)wait->what);
    abort();
}

static void start(enum what what, int fd)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    struct wait *wait = malloc(sizeof *wait);
    attr.detached = true;
    if (!wait || fd < 0)
        abort();
    *wait = (struct wait){ what, fd };
    if (rouse_thread_create(NULL, &attr, wait_for_it, wait) != 0)
        abort();
}

static int listener(int backlog, struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *address =
        (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    if (bind(fd, (struct sockaddr *)address, length) != 0 || listen(fd, backlog) != 0 ||
        getsockname(fd, (struct sockaddr *)address, &length) != 0)
        abort();
    return fd;
}

static void wait_for_connections(void)
{
    struct sockaddr_in unused;
    (void)listener(0, &full);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fd, (struct sockaddr *)&full, sizeof full);
    }
    start(CONNECT, socket(AF_INET, SOCK_STREAM, 0));
    start(ACCEPT, listener(4, &unused));
}

static void wait_for_bytes(void)
{
    int pipes[2], sockets[2];
    if (pipe(pipes) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        abort();
    for (int i = 0; i < 10; i++) {
        start(READ, pipes[0]);
        start(READ_UNTIL, sockets[0]);
    }
    if (pipe(pipes) != 0)
        abort();
    start(WRITE, pipes[1]);
    start(WRITE, sockets[0]);
    start(READ, eventfd(0, 0));
    start(READ, socket(AF_INET, SOCK_DGRAM, 0));
    start(READ, posix_openpt(O_RDWR | O_NOCTTY));
}

int main(void)
{
    char byte;
    wait_for_connections();
    wait_for_bytes();
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR)
        ;
    return 0;
}
