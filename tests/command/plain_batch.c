/* SPDX-License-Identifier: MIT */
/*
 * plain_batch.c - as plain_io.c, for calls that take or give several messages: they wait as often as the enumeration
 * says, each by construction, and come back with so many.
 */
#include "plain.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum {
    TAKEN = 6,     /* calls that receive, of each sort of socket, each after one wait */
    SORTS = 2,     /* of sockets: datagrams of AF_UNIX, and UDP */
    IN_TIME = 2,   /* calls that a socket's time ends with nothing */
    IN_PART = 1,   /* and with less than they ask for */
    GIVEN = 2,     /* calls that wait for room, and send all */
    AT_ONCE = 4,   /* calls that receive and need not wait */
    MOST = 2,      /* messages a call */
    LITTLE = 8,    /* bytes of a message */
    MANY = 524288, /* the same, of which two are more than there is room for */
};

struct batch {
    struct mmsghdr messages[MOST];
    struct iovec parts[MOST];
    char bytes[MOST][LITTLE];
};

static int ends[2];

static struct mmsghdr *empty(struct batch *b, char *bytes, size_t each)
{
    memset(b, 0, sizeof *b);
    for (unsigned i = 0; i < MOST; i++) {
        b->parts[i] = (struct iovec){ bytes ? bytes + i * each : b->bytes[i], each };
        b->messages[i].msg_hdr = (struct msghdr){ .msg_iov = &b->parts[i], .msg_iovlen = 1 };
    }
    return b->messages;
}

static struct mmsghdr *little(struct batch *b)
{
    return empty(b, NULL, LITTLE);
}

static void send_one(int to)
{
    check(send(to, "abc", 3, 0) == 3);
}

/* The message has been taken, and its receiver sleeps again. */
static void until_taken(void)
{
    int left;
    do {
        nap();
        left = (int)recv(ends[0], &(char){ 0 }, 1, MSG_DONTWAIT | MSG_PEEK);
    } while (left >= 0);
    check(errno == EAGAIN);
    until_sleeps(&tids[0]);
}

static int take(unsigned count, int flags, struct timespec *most)
{
    struct batch b;
    int got = recvmmsg(ends[0], little(&b), count, flags, most);
    for (int i = 0; i < got; i++)
        check(b.messages[i].msg_len == 3 && memcmp(b.bytes[i], "abc", 3) == 0);
    return got;
}

static void *take_all_ways(void *unused)
{
    struct timespec long_time = { 1000, 0 }, no_time = { 0, 0 };
    at_stage(1);
    check(take(1, 0, NULL) == 1);
    at_stage(2);
    check(take(2, MSG_WAITFORONE, NULL) == 1);
    at_stage(3);
    check(take(2, 0, NULL) == 2);
    at_stage(4);
    check(take(2, 0, &no_time) == 1); /* which is looked at when one has come */
    at_stage(5);
    check(take(2, 0, &long_time) == 2);
    check(long_time.tv_sec < 1000); /* what is left of it */
    send_one(ends[1]);
    at_stage(6);
    check(take(2, 0, NULL) == 2); /* of which one is there */
    return unused;
}

/* Of a pair of sockets, the second of which sends. */
static void takes_of(int from, int to)
{
    pthread_t thread;
    ends[0] = from;
    ends[1] = to;
    stage = 0;
    start(&thread, 1, take_all_ways);
    for (unsigned i = 1; i <= TAKEN; i++) {
        until_stage(i);
        send_one(to);
        if (i == 3 || i == 5) {
            until_taken();
            send_one(to);
        }
    }
    join(&thread, 1);
}

static void makes_udp(int fds[2])
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof to;
    for (int i = 0; i < 2; i++)
        check((fds[i] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
    check(bind(fds[0], (struct sockaddr *)&to, bytes) == 0);
    check(getsockname(fds[0], (struct sockaddr *)&to, &bytes) == 0);
    check(connect(fds[1], (struct sockaddr *)&to, bytes) == 0);
}

static void takes(void)
{
    int fds[SORTS];
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0);
    takes_of(fds[0], fds[1]);
    makes_udp(fds);
    takes_of(fds[0], fds[1]);
}

static void has_time(int fd, int name)
{
    const struct timeval little_time = { 0, 3000 };
    check(setsockopt(fd, SOL_SOCKET, name, &little_time, sizeof little_time) == 0);
}

/* Until it is full. Returns how many were sent. */
static int fill(void)
{
    int count = 0;
    while (send(ends[1], "abc", 3, MSG_DONTWAIT) == 3)
        count++;
    check(errno == EAGAIN);
    return count;
}

static void ends_in_time(void)
{
    struct batch b;
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    has_time(ends[0], SO_RCVTIMEO);
    has_time(ends[1], SO_SNDTIMEO);
    check(take(1, 0, NULL) == -1 && errno == EAGAIN);
    check(take(2, 0, NULL) == -1 && errno == EAGAIN);
    send_one(ends[1]);
    check(take(2, 0, NULL) == 1);
    fill();
    check(sendmmsg(ends[1], little(&b), 2, 0) == -1 && errno == EAGAIN);
}

/* As soon as the sender, who is the main thread, sleeps. */
static void *drain(void *left)
{
    static char bytes[65536];
    const pid_t sender = getpid();
    until_sleeps(&sender);
    while (*(int *)left > 0) {
        ssize_t got = recv(ends[0], bytes, sizeof bytes, MSG_DONTWAIT);
        check(got > 0 || errno == EAGAIN);
        if (got > 0)
            *(int *)left -= (int)got;
        else
            nap();
    }
    return NULL;
}

static void gives(void)
{
    static char many[MOST * MANY];
    struct batch b;
    pthread_t thread;
    int left = sizeof many;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    check(pthread_create(&thread, NULL, drain, &left) == 0);
    check(sendmmsg(ends[1], empty(&b, many, MANY), MOST, 0) == MOST);
    check(b.messages[0].msg_len == MANY && b.messages[1].msg_len == MANY);
    join(&thread, 1);
    check(left == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    left = 3 * fill() + MOST * LITTLE;
    check(pthread_create(&thread, NULL, drain, &left) == 0);
    check(sendmmsg(ends[1], little(&b), MOST, 0) == MOST);
    join(&thread, 1);
    check(left == 0);
}

/* What never waits; the thread that does not block has had nothing to wait for before. */
static void tries(void)
{
    struct batch b;
    makes_udp(ends);
    errno = 77;
    check(sendmmsg(ends[1], little(&b), 2, 0) == 2 && errno == 77);
    check(recvmmsg(ends[0], little(&b), 2, 0, NULL) == 2 && errno == 77);
    check(sendmmsg(ends[1], little(&b), 1, 0) == 1);
    check(recvmmsg(ends[0], little(&b), 2, MSG_WAITFORONE, NULL) == 1 && errno == 77);
    check(take(2, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
    check(sendmmsg(ends[1], little(&b), 1, MSG_DONTWAIT) == 1);
    check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    errno = 77;
    check(recvmmsg(ends[0], little(&b), 2, 0, NULL) == 1 && errno == 77);
    for (unsigned count = 1; count <= 2; count++) {
        check(take(count, 0, NULL) == -1 && errno == EAGAIN);
        check(take(count, MSG_WAITFORONE, NULL) == -1 && errno == EAGAIN);
        check(take(count, 0, NULL) == -1 && errno == EAGAIN);
    }
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    check(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    fill();
    check(sendmmsg(ends[1], little(&b), 2, 0) == -1 && errno == EAGAIN);
    check(sendmmsg(ends[1], little(&b), 2, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    check(take(1, 0, NULL) == 1);
    check(sendmmsg(ends[1], little(&b), 2, 0) == 1); /* of which there is room for one */
}

static void *take_two(void *unused)
{
    here(0);
    (void)take(2, 0, NULL); /* until cancelled */
    return unused;
}

static void *give_two(void *unused)
{
    struct batch b;
    here(0);
    (void)sendmmsg(ends[1], little(&b), 2, 0); /* the same */
    return unused;
}

static void is_cancelled(void)
{
    pthread_t thread;
    check(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int is_full = 0; is_full < 2; is_full++) {
        if (is_full)
            fill();
        start(&thread, 1, is_full ? give_two : take_two);
        until_sleeps(&tids[0]);
        check(pthread_cancel(thread) == 0);
        join(&thread, 1);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "take", takes },
                                           { "give", gives },
                                           { "time", ends_in_time },
                                           { "try", tries },
                                           { "cancel", is_cancelled } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
