/* SPDX-License-Identifier: MIT */
/*
 * tls_echo.c - an echo server over TLS: OpenSSL reads and writes the socket itself, one thread per connection.
 *
 * usage: tls_echo CERTIFICATE KEY [PORT [IDLE_SECONDS [own]]]
 *        (PEM files; defaults: port 7778, 30 s; port 0 is any; own: threads with thread-local storage of their own)
 *
 * Four rules make OpenSSL work on user threads:
 *   - only OpenSSL reads the socket. rouse_release() says so: a rouse_read() before would read ahead by io_uring;
 *   - the socket is non-blocking, as rouse_accept() returns it, and rouse_poll() does the waiting;
 *   - OpenSSL's error queue is thread-local, and so belongs to the kernel thread: clear it before a call and ask
 *     SSL_get_error() right after, with no call in between that may switch to another thread. With own_tls the queue
 *     belongs to the user thread, and this rule falls away;
 *   - OpenSSL writes with write(2), so that a write to a connection that its peer has reset raises SIGPIPE, which ends
 *     the program. Ignore that signal: the write then returns an error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <rouse/rouse.h>

#define SECOND_NS UINT64_C(1000000000)

static SSL_CTX *context;
static int idle_ms = 30000;
static bool own_tls;

_Noreturn static void fail(const char *what, const char *why)
{
    fprintf(stderr, "tls_echo: %s: %s\n", what, why);
    exit(1);
}

/* Wait until the socket is ready for what OpenSSL's last call wanted. False: the connection is to end. */
static bool wait_for(SSL *ssl, int result)
{
    int error = SSL_get_error(ssl, result);
    struct pollfd entry = { SSL_get_fd(ssl), 0, 0 };

    entry.events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
        return false;
    return rouse_poll(&entry, 1, idle_ms) == 1;
}

enum call { ACCEPT, READ, WRITE, SHUTDOWN };

/* One call of OpenSSL, repeated until it is done. Returns what it does; 0 or less: the connection is to end. */
static int tls(SSL *ssl, enum call call, char *bytes, int count)
{
    int result;

    do {
        if (!own_tls)
            ERR_clear_error();
        result = call == ACCEPT  ? SSL_accept(ssl)
                 : call == READ  ? SSL_read(ssl, bytes, count)
                 : call == WRITE ? SSL_write(ssl, bytes, count)
                                 : SSL_shutdown(ssl);
    } while (result <= 0 && call != SHUTDOWN && wait_for(ssl, result));
    return result;
}

/* One connection, on its own thread. */
static void *serve(void *arg)
{
    int got, fd = (int)(intptr_t)arg;
    char buffer[4096];
    SSL *ssl = SSL_new(context);

    if (ssl && rouse_release(fd, NULL, 0) == 0 && SSL_set_fd(ssl, fd) == 1 &&
        tls(ssl, ACCEPT, NULL, 0) == 1) {
        while ((got = tls(ssl, READ, buffer, sizeof(buffer))) > 0)
            if (tls(ssl, WRITE, buffer, got) <= 0)
                break;
        /* OpenSSL forbids this call after an error. The peer's own end of the session shows that there was none. */
        if (SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN)
            tls(ssl, SHUTDOWN, NULL, 0);
    }
    SSL_free(ssl);
    rouse_close(fd);
    return NULL;
}

static void *accept_all(void *arg)
{
    /* The handshake needs more than the default stack. */
    const struct rouse_thread_attr attr = {
        .detached = true, .name = "connection", .stack_bytes = (size_t)256 << 10, .own_tls = own_tls
    };
    int fd, listen_fd = *(int *)arg;

    while ((fd = rouse_accept(listen_fd, NULL, NULL)) != -ECANCELED) {
        int error = fd < 0 ? fd : rouse_thread_create(NULL, &attr, serve, (void *)(intptr_t)fd);

        if (error == 0)
            continue;
        fprintf(stderr, "tls_echo: a connection must wait: %s\n", strerror(-error));
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
        fail("cannot listen", strerror(errno));
    printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    struct rouse_thread *acceptor;
    int listen_fd, error;

    if (argc < 3)
        fail("usage", "tls_echo CERTIFICATE KEY [PORT [IDLE_SECONDS [own]]]");
    if (argc > 4)
        idle_ms = atoi(argv[4]) * 1000;
    own_tls = argc > 5 && strcmp(argv[5], "own") == 0;
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_server_method());
    if (!context || SSL_CTX_use_certificate_chain_file(context, argv[1]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, argv[2], SSL_FILETYPE_PEM) != 1)
        fail("certificate or key", ERR_error_string(ERR_get_error(), NULL));
    /* A write that is repeated may come from another place in memory, and may be short. */
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_AUTO_RETRY);
    listen_fd = listen_at((unsigned short)(argc > 3 ? atoi(argv[3]) : 7778));
    error = rouse_thread_create(&acceptor, NULL, accept_all, &listen_fd);
    if (error == 0)
        error = rouse_thread_join(acceptor, NULL);
    fail("cannot go on", strerror(-error));
}
