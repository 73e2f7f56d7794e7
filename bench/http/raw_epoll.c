/* SPDX-License-Identifier: MIT */
/*
 * raw_epoll.c - a minimal HTTP server on epoll, the lower bound for the others.
 *
 *   bench-raw-epoll PORT TEXT      serves TEXT on 127.0.0.1 until it is killed; PORT 0: any free one
 *
 * One kernel thread, one level-triggered epoll set. Requests that arrive together are answered by one
 * write.
 */
#include "raw.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 256
#define READ_BYTES 65536

struct connection {
    int fd;
    struct raw_tail tail;
    size_t owed;         /* bytes of answers not yet sent */
    size_t reply_offset; /* position of the next byte to send in the answer */
};

static void drop(struct connection *c)
{
    close(c->fd);
    free(c);
}

/* Send the owed answers. Returns false if the connection is broken. */
static bool flush_owed(struct connection *c)
{
    while (c->owed > 0) {
        size_t bytes = raw_reply_bytes * RAW_JOINED - c->reply_offset;
        if (bytes > c->owed)
            bytes = c->owed;
        const ssize_t n = send(c->fd, raw_replies + c->reply_offset, bytes, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN;
        c->owed -= (size_t)n;
        c->reply_offset = (c->reply_offset + (size_t)n) % raw_reply_bytes;
    }
    return true;
}

static void watch(int epoll, int operation, struct connection *c, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = c };
    if (epoll_ctl(epoll, operation, c->fd, &event) != 0)
        raw_die("epoll_ctl");
}

static void serve(int epoll, struct connection *c, uint32_t events)
{
    static char buffer[RAW_TAIL + READ_BYTES];

    if (events & EPOLLOUT) {
        if (!flush_owed(c)) {
            drop(c);
            return;
        }
        if (c->owed == 0)
            watch(epoll, EPOLL_CTL_MOD, c, EPOLLIN);
        return;
    }
    const ssize_t n = recv(c->fd, buffer + RAW_TAIL, READ_BYTES, 0);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            drop(c);
        return;
    }
    c->owed += raw_count_requests(&c->tail, buffer + RAW_TAIL, (size_t)n) * raw_reply_bytes;
    if (!flush_owed(c))
        drop(c);
    else if (c->owed > 0)
        watch(epoll, EPOLL_CTL_MOD, c, EPOLLOUT);
}

static void accept_all(int epoll, int listener)
{
    for (;;) {
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the epoll set keeps the last connection */
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            raw_die("memory");
        c->fd = fd;
        watch(epoll, EPOLL_CTL_ADD, c, EPOLLIN);
    }
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];

    if (argc != 3) {
        fprintf(stderr, "usage: bench-raw-epoll PORT TEXT\n");
        return 2;
    }
    raw_program = "bench-raw-epoll";
    raw_raise_files();
    raw_prepare_replies(argv[2]);
    int listener = raw_listen((unsigned)strtoul(argv[1], NULL, 10), SOCK_NONBLOCK, 1);
    raw_announce();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        raw_die("epoll");
    for (;;) {
        const int n = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                serve(epoll, events[i].data.ptr, events[i].events);
            else
                accept_all(epoll, listener);
        }
    }
}
