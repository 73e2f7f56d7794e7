/* SPDX-License-Identifier: MIT */
/*
 * idle_server.c - a healthy program: a server with four threads that receives a few requests and is otherwise idle.
 */
#include "findings.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { THREADS = 4, PAUSE_US = 30000, REQUEST_BYTES = 20000 };

static int listener;

static void *serve(void *arg)
{
    int connection;
    while ((connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        uint64_t request;
        if (read(connection, &request, sizeof request) == WHOLE(request)) {
            request = digest(request, REQUEST_BYTES);
            check(write(connection, &request, sizeof request) == WHOLE(request));
        }
        close(connection);
    }
    return arg;
}

static void ask(const struct sockaddr_un *at, socklen_t size)
{
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint64_t request = now_ns();
    check(connection >= 0);
    check(connect(connection, (const struct sockaddr *)at, size) == 0);
    check(write(connection, &request, sizeof request) == WHOLE(request));
    check(read(connection, &request, sizeof request) == WHOLE(request));
    close(connection);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    socklen_t size = sizeof at;
    unsigned long ops = 0;
    begin(argc, argv);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(listener >= 0);
    check(bind(listener, (const struct sockaddr *)&at, sizeof at.sun_family) == 0); /* any name */
    check(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    check(listen(listener, THREADS) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, serve, NULL) == 0);
    for (; !is_over(); ops++) {
        ask(&at, size);
        usleep(PAUSE_US);
    }
    shutdown(listener, SHUT_RDWR); /* accept fails from now on */
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    close(listener);
    finish(ops);
    return 0;
}
