/* SPDX-License-Identifier: MIT */
/*
 * prefork.c - four processes serve connections from one listener, with an event loop each. Fault: a process accepts all
 * connections that are there. So one has nearly all of them, and the others have nothing to do.
 *
 * Repair: a process with its share of the connections accepts no more. An operation is a request.
 */
#include "findings.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { PROCESSES = 4, CLIENTS = 8, REQUEST_US = 300 };

static int listener, connections[CLIENTS];

static void accept_new(struct pollfd *polled, nfds_t *count)
{
    nfds_t most = is_fixed ? 1 + CLIENTS / PROCESSES : 1 + CLIENTS;
    while (*count < most) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        polled[(*count)++] = (struct pollfd){ .fd = fd, .events = POLLIN };
    }
    polled[0].fd = -1; /* it listens no more */
}

/* Answer one request. False: the connection is closed. */
static bool answer(int fd, int backend)
{
    uint64_t request;
    if (read(fd, &request, sizeof request) != WHOLE(request))
        return false;
    service_ask(backend, REQUEST_US);
    return write(fd, &request, sizeof request) == WHOLE(request);
}

/* ready: told once the process has looked for connections. */
static void serve(int ready)
{
    struct pollfd polled[1 + CLIENTS] = { { .fd = listener, .events = POLLIN } };
    nfds_t count = 1;
    int backend = service_open();
    if (poll(polled, count, 10) > 0)
        accept_new(polled, &count);
    check(write(ready, "", 1) == 1);
    while (!is_over()) {
        if (poll(polled, count, 10) <= 0)
            continue;
        for (nfds_t i = 1; i < count; i++)
            if (polled[i].revents && !answer(polled[i].fd, backend))
                polled[i].fd = -1;
        if (polled[0].revents)
            accept_new(polled, &count);
    }
}

static void *ask(void *arg)
{
    struct worker *self = arg;
    int fd = connections[self->number];
    for (uint64_t request = 0;; self->ops++)
        if (write(fd, &request, sizeof request) != WHOLE(request) ||
            read(fd, &request, sizeof request) != WHOLE(request))
            return NULL;
}

static void connect_all(void)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    socklen_t size = sizeof at;
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    check(listener >= 0);
    check(bind(listener, (const struct sockaddr *)&at, sizeof at.sun_family) == 0); /* any name */
    check(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    check(listen(listener, CLIENTS) == 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        connections[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(connections[i] >= 0);
        check(connect(connections[i], (struct sockaddr *)&at, size) == 0);
    }
}

int main(int argc, char **argv)
{
    int ready[2];
    char one;
    begin(argc, argv);
    connect_all();
    check(pipe(ready) == 0);
    for (unsigned i = 0; i < PROCESSES;
         i++) { /* one after another: the first one finds all connections */
        pid_t child = fork();
        check(child >= 0);
        if (child == 0) {
            for (unsigned k = 0; k < CLIENTS; k++)
                close(connections[k]);
            serve(ready[1]);
            return 0;
        }
        check(read(ready[0], &one, 1) == 1);
    }
    close(listener);
    signal(SIGPIPE, SIG_IGN);
    unsigned long ops = run_threads(CLIENTS, ask);
    while (wait(NULL) > 0) {
    }
    finish(ops);
    return 0;
}
