/* SPDX-License-Identifier: MIT */
/*
 * raw_epoll.c - the least an HTTP server on epoll can do: the measure of the others.
 *
 *   bench-raw-epoll PORT TEXT      serves TEXT on 127.0.0.1 until it is killed; PORT 0: any free one
 *
 * One kernel thread, one level-triggered epoll set. A request is whatever ends with a blank line; the
 * answer has the bytes of `rouse-serve --respond TEXT`, but for its date, which is that of the start.
 * Requests that arrive together are answered by one write.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 256
#define READ_BYTES 65536
#define JOINED 64 /* answers that one write can hold */

struct connection {
    int fd;
    unsigned kept;       /* bytes of a blank line that may go on in the next read */
    char tail[3];        /* those bytes */
    size_t owed;         /* bytes of answers not yet sent */
    size_t reply_offset; /* where the next byte to send stands in the answer */
};

static char *replies; /* JOINED times the answer, end to end */
static size_t reply_bytes;

_Noreturn static void die(const char *what)
{
    fprintf(stderr, "bench-raw-epoll: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void prepare_replies(const char *text)
{
    char date[64];
    const time_t now = time(NULL);
    struct tm tm;
    char *reply;

    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    const int n = asprintf(&reply,
                           "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
                           "Content-Length: %zu\r\nDate: %s\r\n\r\n%s",
                           strlen(text), date, text);
    if (n < 0 || !(replies = malloc((size_t)n * JOINED)))
        die("memory");
    reply_bytes = (size_t)n;
    for (unsigned i = 0; i < JOINED; i++)
        memcpy(replies + i * reply_bytes, reply, reply_bytes);
    free(reply);
}

static int listen_at(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    socklen_t length = sizeof address;
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0)
        die("listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    printf("bench-raw-epoll: serving at http://127.0.0.1:%u/\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void drop(struct connection *c)
{
    close(c->fd);
    free(c);
}

/* Send what is owed. False: the connection is gone. */
static bool flush_owed(struct connection *c)
{
    while (c->owed > 0) {
        size_t bytes = reply_bytes * JOINED - c->reply_offset;
        if (bytes > c->owed)
            bytes = c->owed;
        const ssize_t n = send(c->fd, replies + c->reply_offset, bytes, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN;
        c->owed -= (size_t)n;
        c->reply_offset = (c->reply_offset + (size_t)n) % reply_bytes;
    }
    return true;
}

/* Count the blank lines in text; keep what may be the beginning of one. */
static unsigned count_requests(struct connection *c, const char *text, size_t bytes)
{
    const char *const end = text + bytes;
    unsigned count = 0;
    for (const char *hit; (hit = memmem(text, (size_t)(end - text), "\r\n\r\n", 4)); count++)
        text = hit + 4;
    c->kept = end - text < 3 ? (unsigned)(end - text) : 3;
    memcpy(c->tail, end - c->kept, c->kept);
    return count;
}

static void watch(int epoll, int operation, struct connection *c, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = c };
    if (epoll_ctl(epoll, operation, c->fd, &event) != 0)
        die("epoll_ctl");
}

static void serve(int epoll, struct connection *c, uint32_t events)
{
    static char buffer[3 + READ_BYTES];

    if (events & EPOLLOUT) {
        if (!flush_owed(c)) {
            drop(c);
            return;
        }
        if (c->owed == 0)
            watch(epoll, EPOLL_CTL_MOD, c, EPOLLIN);
        return;
    }
    const size_t kept = c->kept;
    memcpy(buffer, c->tail, kept);
    const ssize_t n = recv(c->fd, buffer + kept, READ_BYTES, 0);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            drop(c);
        return;
    }
    c->owed += count_requests(c, buffer, kept + (size_t)n) * reply_bytes;
    if (!flush_owed(c))
        drop(c);
    else if (c->owed > 0)
        watch(epoll, EPOLL_CTL_MOD, c, EPOLLOUT);
}

static void accept_all(int epoll, int listener)
{
    const int on = 1;
    for (;;) {
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the epoll set keeps the last connection */
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            die("memory");
        c->fd = fd;
        watch(epoll, EPOLL_CTL_ADD, c, EPOLLIN);
    }
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    struct rlimit files;

    if (argc != 3) {
        fprintf(stderr, "usage: bench-raw-epoll PORT TEXT\n");
        return 2;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prepare_replies(argv[2]);
    int listener = listen_at((unsigned)strtoul(argv[1], NULL, 10));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        die("epoll");
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
