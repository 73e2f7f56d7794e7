/* SPDX-License-Identifier: MIT */
/*
 * event_loop.c - a healthy program: one thread that serves sockets and a timer by epoll, and two clients that send it
 * a message now and then.
 */
#include "findings.h"

#include <sys/epoll.h>
#include <sys/socket.h>

enum { CLIENTS = 2, EVENTS = 8, TICK_NS = 5000000, THINK_US = 8000, MESSAGE_BYTES = 20000 };

static int ends[CLIENTS][2]; /* the client's end first */
static unsigned long ticks;

static void watch(int set, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Answer a message. Returns whether the client is still there. */
static bool answer(int fd)
{
    uint64_t message;
    if (recv(fd, &message, sizeof message, 0) != WHOLE(message))
        return false;
    message = digest(message, MESSAGE_BYTES);
    check(send(fd, &message, sizeof message, 0) == WHOLE(message));
    return true;
}

static void *loop(void *arg)
{
    int set = epoll_create1(EPOLL_CLOEXEC), timer = service_open();
    const struct itimerspec period = { { 0, TICK_NS }, { 0, TICK_NS } };
    check(set >= 0 && timerfd_settime(timer, 0, &period, NULL) == 0);
    watch(set, timer);
    for (unsigned i = 0; i < CLIENTS; i++)
        watch(set, ends[i][1]);
    for (unsigned clients = CLIENTS; clients > 0;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            uint64_t expired;
            if (fd == timer && read(timer, &expired, sizeof expired) == WHOLE(expired)) {
                ticks += expired;
            } else if (fd != timer && !answer(fd)) {
                epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
                clients--;
            }
        }
    }
    close(timer);
    close(set);
    return arg;
}

static void *send_messages(void *arg)
{
    struct worker *self = arg;
    int fd = ends[self->number][0], service = service_open();
    unsigned long ops = 0;
    for (uint64_t message = self->seed; !is_over(); ops++) {
        check(send(fd, &message, sizeof message, 0) == WHOLE(message));
        check(recv(fd, &message, sizeof message, 0) == WHOLE(message));
        service_ask(service, THINK_US);
    }
    shutdown(fd, SHUT_WR);
    close(service);
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t server;
    for (unsigned i = 0; i < CLIENTS; i++)
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[i]) == 0);
    begin(argc, argv);
    check(pthread_create(&server, NULL, loop, NULL) == 0);
    unsigned long ops = run_threads(CLIENTS, send_messages);
    pthread_join(server, NULL);
    finish(ops);
    return 0;
}
