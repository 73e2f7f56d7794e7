/* SPDX-License-Identifier: MIT */
/*
 * descriptors.c - files, messages, and waiting for several descriptors: poll, select and sets.
 *
 * usage: descriptors
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rouse/rouse.h>

#define SECOND UINT64_C(1000000000)
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "descriptors: line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static uint64_t soon(void)
{
    return rouse_now_ns() + 10 * SECOND;
}

/* Write a file, and send it to a pipe without copying it through the program. */
static void files(void)
{
    char path[] = "/tmp/rouse-example-XXXXXX", text[8] = "";
    int fd = mkstemp(path), ends[2];
    off_t offset = 0;

    CHECK(fd >= 0 && unlink(path) == 0 && pipe(ends) == 0);
    CHECK(rouse_pwrite(fd, "hello", 5, 0) == 5 && rouse_fsync(fd) == 0);
    CHECK(rouse_pread(fd, text, 4, 1) == 4 && strcmp(text, "ello") == 0);
    CHECK(rouse_sendfile(ends[1], fd, &offset, 2) == 2);
    CHECK(rouse_sendfile_until(ends[1], fd, &offset, 3, soon()) == 3);
    CHECK(rouse_read_until(ends[0], text, 5, soon()) == 5 && strcmp(text, "hello") == 0);
    CHECK(rouse_close(ends[0]) == 0 && rouse_close(ends[1]) == 0 && rouse_close(fd) == 0);
}

/* Send two buffers by one call, as a vector and as a message. */
static void vectors(int a, int b)
{
    char text[8] = "";
    struct iovec out[2] = { { (void *)"ab", 2 }, { (void *)"cd", 2 } };
    struct iovec in[2] = { { text, 1 }, { text + 1, 3 } };
    struct msghdr sent = { .msg_iov = out, .msg_iovlen = 2 };
    struct msghdr received = { .msg_iov = in, .msg_iovlen = 2 };

    CHECK(rouse_writev(a, out, 2) == 4 && rouse_readv(b, in, 2) == 4);
    CHECK(rouse_writev_until(a, out, 2, soon()) == 4 && rouse_readv_until(b, in, 2, soon()) == 4);
    CHECK(rouse_sendmsg(a, &sent, 0) == 4 && rouse_recvmsg(b, &received, 0) == 4);
    CHECK(rouse_sendmsg_until(a, &sent, 0, soon()) == 4);
    CHECK(rouse_recvmsg_until(b, &received, 0, soon()) == 4 && strcmp(text, "abcd") == 0);
    CHECK(rouse_send(a, "x", 1, 0) == 1 && rouse_recv(b, text, 1, 0) == 1);
    CHECK(rouse_write(a, "x", 1) == 1 && rouse_recv_until(b, text, 1, 0, soon()) == 1);
}

/* a is readable, b is not: each of these calls waits for either. */
static void several(int a, int b)
{
    struct pollfd polled[2] = { { .fd = a, .events = POLLIN }, { .fd = b, .events = POLLIN } };
    fd_set set;

    CHECK(rouse_poll(polled, 2, -1) == 1 && polled[0].revents == POLLIN);
    CHECK(rouse_poll_until(polled, 2, soon()) == 1);
    /* If several threads poll these descriptors, an event wakes only one of them. */
    CHECK(rouse_poll_exclusive(polled, 2, 1000) == 1);
    CHECK(rouse_poll_exclusive_until(polled, 2, soon()) == 1);
    FD_ZERO(&set);
    FD_SET(a, &set);
    FD_SET(b, &set);
    CHECK(rouse_select((a > b ? a : b) + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(a, &set));
    CHECK(rouse_select_until(a + 1, &set, NULL, NULL, soon()) == 1);
}

/* A set stores what to wait for, and is then waited for repeatedly. */
static void sets(int a, int b)
{
    struct rouse_set *set;
    struct rouse_set_event event;

    CHECK(rouse_set_create(&set) == 0);
    CHECK(rouse_set_add(set, a, POLLIN, 0, 1) == 0 && rouse_set_add(set, b, POLLIN, 0, 2) == 0);
    CHECK(rouse_set_wait(set, &event, 1) == 1 && event.data == 1 && event.fd == a);
    CHECK(rouse_set_modify(set, a, POLLIN, ROUSE_SET_ONESHOT, 3) == 0);
    CHECK(rouse_set_wait_until(set, &event, 1, soon()) == 1 && event.data == 3);
    CHECK(rouse_set_wait_until(set, &event, 1, 0) == -ETIMEDOUT); /* reported once only */
    CHECK(rouse_set_remove(set, b) == 0);
    rouse_set_destroy(set);
}

/* Look up a host and connect to it, with a deadline; returns both ends of the connection. */
static void connect_pair(int pair[2])
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
    struct sockaddr_in place;
    socklen_t length = sizeof(place);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(rouse_getaddrinfo("127.0.0.1", "0", &hints, &found) == 0);
    CHECK(listener >= 0 && bind(listener, found->ai_addr, found->ai_addrlen) == 0);
    CHECK(listen(listener, 16) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&place, &length) == 0);
    freeaddrinfo(found);
    CHECK(rouse_listener_order(listener, ROUSE_ACCEPT_LIFO) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(rouse_connect_until(pair[0], (struct sockaddr *)&place, length, soon()) == 0);
    pair[1] = rouse_accept(listener, NULL, NULL);
    CHECK(pair[1] >= 0 && rouse_close(listener) == 0);
}

/*
 * Servers of several processes create the listener, choose one of these, and then fork: the kernel wakes one
 * process per connection, or the processes accept in turn.
 */
static void shared_listeners(void)
{
    int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int second = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(listen(first, 16) == 0 && listen(second, 16) == 0);
    CHECK(rouse_listener_exclusive(first) == 0);
    CHECK(rouse_listener_turns(second, 4) == 0);
    CHECK(rouse_close(first) == 0 && rouse_close(second) == 0);
}

static void *all(void *arg)
{
    int pair[2];

    (void)arg;
    files();
    connect_pair(pair);
    vectors(pair[0], pair[1]);
    CHECK(rouse_send_until(pair[1], "x", 1, 0, soon()) == 1);
    several(pair[0], pair[1]);
    sets(pair[0], pair[1]);
    CHECK(rouse_shutdown(pair[0], SHUT_RDWR) == 0);
    CHECK(rouse_close(pair[0]) == 0 && rouse_close(pair[1]) == 0);
    shared_listeners();
    return NULL;
}

int main(void)
{
    struct rouse_thread *t;
    const char *reason;

    CHECK(rouse_thread_create(&t, NULL, all, NULL) == 0 && rouse_thread_join(t, NULL) == 0);
    printf("all calls returned what they should (%s)\n", rouse_io_backend(&reason));
    return 0;
}
