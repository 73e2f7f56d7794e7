/* SPDX-License-Identifier: MIT */
/*
 * io_connect_test.c - accept and connect: which thread receives which connection, flags, refusals,
 * and running out of descriptors.
 */
#include "io_test.h"

#include <sys/resource.h>

struct site {
    int listener;
    struct sockaddr_in address;
    unsigned wanted; /* connections to accept, all acceptors together */
    uint32_t accepted;
};

static void echo_one(int fd)
{
    char bytes[64];
    ssize_t got = rouse_recv(fd, bytes, sizeof bytes, 0);
    CHECK(got > 0);
    EQUALS(rouse_send(fd, bytes, (size_t)got, 0), got);
    EQUALS(rouse_recv(fd, bytes, sizeof bytes, 0), 0);
    EQUALS(rouse_close(fd), 0);
}

static void accept_some(void *arg, unsigned index)
{
    struct site *site = arg;
    (void)index;
    while (rsi_fetch_add_relaxed(&site->accepted, 1u) < site->wanted) {
        struct sockaddr_in address;
        socklen_t length = sizeof address;
        int fd = rouse_accept(site->listener, (struct sockaddr *)&address, &length);
        CHECK(fd >= 0);
        EQUALS(length, sizeof address);
        EQUALS(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
        CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(is_nonblock(fd));
        echo_one(fd);
    }
}

static void connect_once(void *arg, unsigned index)
{
    struct site *site = arg;
    char word[32], echo[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    EQUALS(rouse_connect(fd, (struct sockaddr *)&site->address, sizeof site->address), 0);
    CHECK(!is_nonblock(fd));
    snprintf(word, sizeof word, "connection %u", index);
    EQUALS(rouse_send(fd, word, strlen(word), 0), strlen(word));
    EQUALS(rouse_recv(fd, echo, strlen(word), MSG_WAITALL), strlen(word));
    CHECK(memcmp(word, echo, strlen(word)) == 0);
    EQUALS(rouse_close(fd), 0);
}

static void every_connection_is_served_once(void **state)
{
    (void)state;
    static struct crew acceptors, connectors;
    for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++)
        for (enum crew_kind other = 0; other < CREW_KINDS; other++) {
            struct site site = { .wanted = 60 / SCALE };
            site.listener = tcp_listen(64, &site.address);
            DOING("%s acceptors, %s connectors", kind_names[kind], kind_names[other]);
            crew_add_many(&acceptors, kind, 6, accept_some, &site);
            crew_add_many(&connectors, other, site.wanted, connect_once, &site);
            crew_join(&connectors);
            crew_join(&acceptors);
            EQUALS(rouse_close(site.listener), 0);
        }
}

/* One event announces several connections. The woken thread passes the wake-up on. */
static void one_event_serves_all_acceptors(void **state)
{
    (void)state;
    static struct crew acceptors;
    for (unsigned round = 0; round < 40 / SCALE; round++) {
        struct site site = { .wanted = 6 };
        int fds[6];
        site.listener = tcp_listen(64, &site.address);
        crew_add_many(&acceptors, CREW_USER, 6, accept_some, &site);
        UNTIL(await_count(site.listener, RSI_FD_READ) == 6);
        for (int i = 0; i < 6; i++)
            fds[i] = tcp_connect(&site.address);
        UNTIL(await_count(site.listener, RSI_FD_READ) == 0);
        for (int i = 0; i < 6; i++) {
            char echo;
            EQUALS(write(fds[i], "x", 1), 1);
            EQUALS(read(fds[i], &echo, 1), 1);
            close(fds[i]);
        }
        crew_join(&acceptors);
        EQUALS(rouse_close(site.listener), 0);
    }
}

struct attempt {
    int fd, result;
    const struct sockaddr *address;
    socklen_t length;
    bool accepts;
};

static void attempt_main(void *arg, unsigned index)
{
    struct attempt *a = arg;
    (void)index;
    a->result = a->accepts ? rouse_accept(a->fd, NULL, NULL)
                           : rouse_connect(a->fd, a->address, a->length);
}

static void connect_fails(int fd, const void *address, size_t length, int error)
{
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int nonblock = 0; nonblock < 2; nonblock++) {
            struct attempt a = { .fd = fd, .address = address, .length = (socklen_t)length };
            set_nonblock(fd, nonblock == 1);
            crew_run(kind, 1, attempt_main, &a);
            EQUALS(a.result, error);
            EQUALS(is_nonblock(fd), nonblock == 1);
        }
    close(fd);
}

static void refusals(void **state)
{
    (void)state;
    struct sockaddr_in nobody;
    struct sockaddr_un missing = { .sun_family = AF_UNIX, .sun_path = "/nonexistent/socket" };
    struct sockaddr_un unnamed = { .sun_family = AF_UNIX };
    snprintf(unnamed.sun_path + 1, sizeof unnamed.sun_path - 1, "rouse-nobody-%d", getpid());
    close(tcp_listen(1, &nobody));
    DOING("tcp");
    connect_fails(socket(AF_INET, SOCK_STREAM, 0), &nobody, sizeof nobody, -ECONNREFUSED);
    DOING("unix, no such path");
    connect_fails(socket(AF_UNIX, SOCK_STREAM, 0), &missing, sizeof missing, -ENOENT);
    DOING("unix, no such name");
    connect_fails(socket(AF_UNIX, SOCK_STREAM, 0), &unnamed, sizeof unnamed, -ECONNREFUSED);
    DOING("another family");
    connect_fails(socket(AF_INET6, SOCK_STREAM, 0), &unnamed, sizeof unnamed, -EAFNOSUPPORT);
    DOING("short address");
    connect_fails(socket(AF_INET, SOCK_STREAM, 0), &nobody, 4, -EINVAL);
}

static void connected_already(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int listener = tcp_listen(1, &address), fd = tcp_connect(&address);
    connect_fails(fd, &address, sizeof address, -EISCONN);
    close(listener);
}

/* The thread connected anew for ever: a second call begins another attempt. */
static void shutdown_ends_connect(void **state)
{
    (void)state;
    static struct crew crew;
    struct sockaddr_in address;
    int listener = tcp_listen(0, &address), fillers[3];
    for (int i = 0; i < 3; i++) { /* from then on, nobody answers */
        fillers[i] = tcp_socket();
        set_nonblock(fillers[i], true);
        (void)connect(fillers[i], (struct sockaddr *)&address, sizeof address);
    }
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        DOING("%s", kind_names[kind]);
        struct attempt a = { tcp_socket(), 7, (struct sockaddr *)&address, sizeof address, false };
        (void)crew_add(&crew, kind, attempt_main, &a);
        UNTIL(is_awaited(a.fd, RSI_FD_WRITE));
        EQUALS(rouse_shutdown(a.fd, SHUT_RDWR), 0);
        crew_join(&crew);
        EQUALS(a.result, -ECONNRESET);
        EQUALS(rouse_close(a.fd), 0);
    }
    for (int i = 0; i < 3; i++)
        close(fillers[i]);
    close(listener);
}

/* Two threads connect one socket: the later one receives -EALREADY. */
static void another_connects_already(void **state)
{
    (void)state;
    static struct crew crew;
    struct sockaddr_in address;
    int listener = tcp_listen(0, &address), fillers[3];
    for (int i = 0; i < 3; i++) {
        fillers[i] = tcp_socket();
        set_nonblock(fillers[i], true);
        (void)connect(fillers[i], (struct sockaddr *)&address, sizeof address);
    }
    struct attempt a = { tcp_socket(), 7, (struct sockaddr *)&address, sizeof address, false };
    (void)crew_add(&crew, CREW_USER, attempt_main, &a);
    UNTIL(is_awaited(a.fd, RSI_FD_WRITE));
    EQUALS(rouse_connect(a.fd, a.address, a.length), -EALREADY);
    CHECK(is_awaited(a.fd, RSI_FD_WRITE));
    EQUALS(rouse_close(a.fd), 0);
    crew_join(&crew);
    EQUALS(a.result, -EBADF);
    for (int i = 0; i < 3; i++)
        close(fillers[i]);
    close(listener);
}

static void connect_what_is_no_socket(void **state)
{
    (void)state;
    struct sockaddr_in address = LOOPBACK;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    EQUALS(rouse_connect(ends[0], (struct sockaddr *)&address, sizeof address), -ENOTSOCK);
    wire_close(ends);
}

static void accept_from_what_does_not_listen(void **state)
{
    (void)state;
    int ends[2];
    wire_open(WIRE_TCP, ends);
    EQUALS(rouse_accept(ends[0], NULL, NULL), -EINVAL);
    wire_close(ends);
    wire_open(WIRE_UDP, ends);
    EQUALS(rouse_accept(ends[0], NULL, NULL), -EOPNOTSUPP);
    wire_close(ends);
    wire_open(WIRE_PIPE, ends);
    EQUALS(rouse_accept(ends[0], NULL, NULL), -ENOTSOCK);
    wire_close(ends);
}

static void shutdown_ends_accept(void **state)
{
    (void)state;
    static struct crew crew;
    struct sockaddr_in address;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct attempt a[2] = { { .accepts = true }, { .accepts = true } };
        a[0].fd = a[1].fd = tcp_listen(1, &address);
        (void)crew_add(&crew, kind, attempt_main, &a[0]);
        (void)crew_add(&crew, kind, attempt_main, &a[1]);
        UNTIL(await_count(a[0].fd, RSI_FD_READ) == 2);
        EQUALS(rouse_shutdown(a[0].fd, SHUT_RDWR), 0);
        crew_join(&crew);
        EQUALS(a[0].result, -EINVAL);
        EQUALS(a[1].result, -EINVAL);
        EQUALS(rouse_close(a[0].fd), 0);
    }
}

/*
 * The client resets the connection before it is accepted. Accept still returns it, and its reads
 * report the reset.
 */
static void reset_before_accept(void **state)
{
    (void)state;
    struct sockaddr_in address;
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    char byte;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct attempt a = { .fd = tcp_listen(1, &address), .accepts = true };
        int client = tcp_connect(&address);
        CHECK(setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
        close(client);
        crew_run(kind, 1, attempt_main, &a);
        CHECK(a.result >= 0);
        EQUALS(rouse_read(a.result, &byte, 1), -ECONNRESET);
        EQUALS(rouse_close(a.result), 0);
        EQUALS(rouse_close(a.fd), 0);
    }
}

/*
 * No descriptor number is left. Accept reports that, with or without waiting, and the connection
 * can still be accepted afterwards.
 */
static void no_descriptor_is_left(void **state)
{
    (void)state;
    static struct crew crew;
    struct sockaddr_in address;
    struct rlimit limit, tight;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct attempt a = { .fd = tcp_listen(4, &address), .accepts = true };
        int client = tcp_socket();
        set_nonblock(client, true);
        (void)crew_add(&crew, kind, attempt_main, &a);
        UNTIL(is_awaited(a.fd, RSI_FD_READ));
        int least = dup(client);
        close(least);
        tight = (struct rlimit){ (rlim_t)least, limit.rlim_max };
        CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
        (void)connect(client, (struct sockaddr *)&address, sizeof address);
        crew_join(&crew);
        /*
         * A ring applies the limit that held when the kernel took the call, which may have been
         * before it was lowered.
         */
        if (kind != CREW_USER || !rsi_backend_has_rings() || a.result < 0) {
            EQUALS(a.result, -EMFILE);
            EQUALS(rouse_accept(a.fd, NULL, NULL), -EMFILE);
            CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
            a.result = rouse_accept(a.fd, NULL, NULL);
        }
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        CHECK(a.result >= 0);
        EQUALS(rouse_close(a.result), 0);
        EQUALS(rouse_close(a.fd), 0);
        close(client);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_connection_is_served_once),
        cmocka_unit_test(one_event_serves_all_acceptors),
        cmocka_unit_test(refusals),
        cmocka_unit_test(connected_already),
        cmocka_unit_test(shutdown_ends_connect),
        cmocka_unit_test(another_connects_already),
        cmocka_unit_test(connect_what_is_no_socket),
        cmocka_unit_test(accept_from_what_does_not_listen),
        cmocka_unit_test(shutdown_ends_accept),
        cmocka_unit_test(reset_before_accept),
        cmocka_unit_test(no_descriptor_is_left),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
