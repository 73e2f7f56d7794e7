/* SPDX-License-Identifier: MIT */
/*
 * front_desk.c - eight threads accept from one listener, each by an epoll set of its own. Fault: each connection wakes
 * all of them, and one gets it.
 *
 * Repair: the listener is in the sets with EPOLLEXCLUSIVE, so that a connection wakes one thread. An operation is a
 * connection with one request.
 */
#include "findings.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { DESKS = 8, CLIENTS = 2, REQUEST_BYTES = 2000 };

static int listener;
static struct sockaddr_un place;
static socklen_t place_size = sizeof place;

static void serve_one(int fd)
{
    uint64_t request;
    if (read(fd, &request, sizeof request) == WHOLE(request)) {
        request = digest(request, REQUEST_BYTES);
        check(write(fd, &request, sizeof request) == WHOLE(request));
    }
    close(fd);
}

static void *attend(void *unused)
{
    struct epoll_event event = { .events = EPOLLIN | (is_fixed ? (unsigned)EPOLLEXCLUSIVE : 0) };
    int set = epoll_create1(EPOLL_CLOEXEC);
    check(set >= 0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    while (!is_over()) {
        if (epoll_wait(set, &event, 1, 10) != 1)
            continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            serve_one(fd);
    }
    return unused;
}

static void *visit(void *arg)
{
    struct worker *self = arg;
    for (uint64_t request = 1; !is_over(); self->ops++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(fd >= 0);
        check(connect(fd, (struct sockaddr *)&place, place_size) == 0);
        check(write(fd, &request, sizeof request) == WHOLE(request));
        check(read(fd, &request, sizeof request) == WHOLE(request) || is_over());
        close(fd);
    }
    return NULL;
}

static void *work(void *arg)
{
    return ((struct worker *)arg)->number < CLIENTS ? visit(arg) : attend(arg);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    place.sun_family = AF_UNIX;
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    check(listener >= 0);
    check(bind(listener, (const struct sockaddr *)&place, sizeof place.sun_family) ==
          0); /* any name */
    check(getsockname(listener, (struct sockaddr *)&place, &place_size) == 0);
    check(listen(listener, 2 * CLIENTS) == 0);
    finish(run_threads(CLIENTS + DESKS, work));
    return 0;
}
