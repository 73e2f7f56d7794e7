/* SPDX-License-Identifier: MIT */
/*
 * forward_pthread.c - forwards the connections to a TCP port to another address.
 *
 * usage: forward_pthread PORT ADDRESS TARGET_PORT    (port 0 is any free port)
 *
 * Two threads per connection, one for each direction. The end of one direction is passed on, and the other continues.
 * SIGTERM ends the program after it has closed every connection. Compare: diff forward_pthread.c forward_rouse.c
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct connection {
    int client_fd, target_fd;
    /* Protected by connections_lock: */
    struct connection *next, **link;
    int threads;
};

static struct sockaddr_in target = { .sin_family = AF_INET };

static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_left = PTHREAD_COND_INITIALIZER;
/* Protected by connections_lock: */
static struct connection *connections;
static unsigned connection_count;
static bool is_ending;

/* Close both sockets after the last thread of the connection has left. */
static void leave(struct connection *c)
{
    bool is_last;

    pthread_mutex_lock(&connections_lock);
    is_last = --c->threads == 0;
    if (is_last) {
        *c->link = c->next;
        if (c->next)
            c->next->link = c->link;
    }
    pthread_mutex_unlock(&connections_lock);
    if (!is_last)
        return;
    /* Now close_all() does not find it, and may not shut down another connection with the same number. */
    close(c->client_fd);
    close(c->target_fd);
    free(c);
    pthread_mutex_lock(&connections_lock);
    if (--connection_count == 0)
        pthread_cond_signal(&all_left);
    pthread_mutex_unlock(&connections_lock);
}

/* Enter another thread of the connection. Returns false if the program ends. */
static bool enter(struct connection *c)
{
    bool may_enter;

    pthread_mutex_lock(&connections_lock);
    may_enter = !is_ending;
    if (may_enter && c->threads++ == 0) {
        c->next = connections;
        c->link = &connections;
        if (c->next)
            c->next->link = &c->next;
        connections = c;
        connection_count++;
    }
    pthread_mutex_unlock(&connections_lock);
    return may_enter;
}

static void close_all(void)
{
    pthread_mutex_lock(&connections_lock);
    is_ending = true;
    for (struct connection *c = connections; c; c = c->next) {
        shutdown(c->client_fd, SHUT_RDWR);
        shutdown(c->target_fd, SHUT_RDWR);
    }
    while (connection_count > 0)
        pthread_cond_wait(&all_left, &connections_lock);
    pthread_mutex_unlock(&connections_lock);
}

static bool send_all(int fd, const char *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        from += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

/* Copy one direction until it ends. After an error neither direction can continue. */
static void copy(int from_fd, int to_fd)
{
    char buffer[4096];
    ssize_t got;

    while ((got = recv(from_fd, buffer, sizeof(buffer), 0)) > 0) {
        if (!send_all(to_fd, buffer, (size_t)got)) {
            got = -1;
            break;
        }
    }
    shutdown(to_fd, got < 0 ? SHUT_RDWR : SHUT_WR);
    if (got < 0)
        shutdown(from_fd, SHUT_RDWR);
}

static void *copy_back(void *arg)
{
    struct connection *c = arg;

    copy(c->target_fd, c->client_fd);
    leave(c);
    return NULL;
}

/* Start a thread of its own for c. Returns an error number; on error c is left. */
static int start(void *(*fn)(void *), struct connection *c)
{
    pthread_attr_t attr;
    pthread_t thread;
    int error;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attr, fn, c);
    pthread_attr_destroy(&attr);
    if (error)
        leave(c);
    return error;
}

/* The thread that connects to the target, and then copies what the client sends. */
static void *serve(void *arg)
{
    struct connection *c = arg;

    if (connect(c->target_fd, (struct sockaddr *)&target, sizeof(target)) == 0 && enter(c) &&
        start(copy_back, c) == 0)
        copy(c->client_fd, c->target_fd);
    leave(c);
    return NULL;
}

/* Returns an error number. */
static int forward(int client_fd)
{
    int target_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error = errno, on = 1;
    struct connection *c = calloc(1, sizeof(*c));

    if (target_fd < 0 || !c) {
        close(client_fd);
        if (target_fd >= 0)
            close(target_fd);
        free(c);
        return target_fd < 0 ? error : ENOMEM;
    }
    setsockopt(client_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(target_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    c->client_fd = client_fd;
    c->target_fd = target_fd;
    enter(c);
    return start(serve, c);
}

/* Accept connections until main() shuts the listener down. */
static void *accept_all(void *arg)
{
    int listen_fd = *(int *)arg;

    for (;;) {
        int fd = accept(listen_fd, NULL, NULL);
        int error = fd < 0 ? errno : forward(fd);

        if (error == 0 || error == ECONNABORTED)
            continue;
        if (fd < 0 && error == EINVAL)
            return NULL;
        /* Out of descriptors, threads or memory: connections that end free some. */
        fprintf(stderr, "forward: a connection must wait: %s\n", strerror(error));
        usleep(100000);
    }
}

_Noreturn static void fail(const char *what, int error)
{
    fprintf(stderr, "forward: %s: %s\n", what, strerror(error));
    exit(1);
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
    int listen_fd, signal_number, error;
    pthread_t acceptor;
    sigset_t ends;

    if (argc != 4 || inet_pton(AF_INET, argv[2], &target.sin_addr) != 1) {
        fprintf(stderr, "usage: forward PORT ADDRESS TARGET_PORT (an IPv4 address in digits)\n");
        return 2;
    }
    target.sin_port = htons((unsigned short)atoi(argv[3]));

    /* Before the first thread starts, which inherits the mask: only main() receives these signals. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    listen_fd = listen_at((unsigned short)atoi(argv[1]));
    error = pthread_create(&acceptor, NULL, accept_all, &listen_fd);
    if (error)
        fail("cannot start", error);
    sigwait(&ends, &signal_number);

    shutdown(listen_fd, SHUT_RDWR);
    pthread_join(acceptor, NULL);
    close(listen_fd);
    close_all();
    return 0;
}
