/* SPDX-License-Identifier: MIT */
/*
 * io_release_test.c - rouse_release hands a socket back while data arrive: a plain read goes on where rouse's calls
 * and the release ended.
 */
#include "io_test.h"

#define ROUNDS 60
#define MOST_BYTES 200000u

static char byte_at(size_t offset)
{
    return (char)(offset * 11 + (offset >> 8) * 5 + (offset >> 16));
}

struct stream {
    int ends[2];
    uint64_t random;
    size_t total, got;
};

static struct rouse_thread *start(enum rouse_kind kind, void *(*fn)(void *), void *arg)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    EQUALS(rouse_thread_create(&t, &attr, fn, arg), 0);
    return t;
}

static void join(struct rouse_thread *t)
{
    EQUALS(rouse_thread_join(t, NULL), 0);
}

static uint64_t next_random(struct stream *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

/* By plain calls, so that the kernel decides when the bytes arrive. */
static void *send_all(void *arg)
{
    struct stream *s = arg;
    uint64_t random = s->random | 1;
    char bytes[3000];
    for (size_t at = 0; at < s->total;) {
        random = random * UINT64_C(6364136223846793005) + 1;
        size_t count = 1 + (random >> 33) % sizeof bytes;
        count = count < s->total - at ? count : s->total - at;
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(at + i);
        ssize_t sent = send(s->ends[1], bytes, count, MSG_NOSIGNAL);
        CHECK(sent > 0);
        at += (size_t)sent;
        if ((random >> 20) % 4 == 0)
            sched_yield();
    }
    CHECK(shutdown(s->ends[1], SHUT_WR) == 0);
    return arg;
}

static void check_bytes(struct stream *s, const char *bytes, ssize_t count)
{
    for (ssize_t i = 0; i < count; i++)
        CHECK(bytes[i] == byte_at(s->got + (size_t)i));
    s->got += (size_t)count;
}

static void release(struct stream *s)
{
    char bytes[5000];
    ssize_t got;
    do {
        got = rouse_release(s->ends[0], bytes, 1 + next_random(s) % sizeof bytes);
        if (got == -EAGAIN) /* its worker was busy */
            got = 1;
        else
            check_bytes(s, bytes, got < 0 ? 0 : got);
        CHECK(got >= 0);
    } while (got > 0);
}

static void *read_part_then_plain(void *arg)
{
    struct stream *s = arg;
    char bytes[5000];
    size_t before = next_random(s) % s->total;
    ssize_t got = 1;
    while (s->got < before && got > 0) {
        got = rouse_read(s->ends[0], bytes, 1 + next_random(s) % sizeof bytes);
        check_bytes(s, bytes, got);
    }
    release(s);
    while (got > 0) {
        struct pollfd entry = { s->ends[0], POLLIN, 0 };
        CHECK(rouse_poll(&entry, 1, -1) == 1);
        got = recv(s->ends[0], bytes, 1 + next_random(s) % sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN)
            got = 1;
        else
            check_bytes(s, bytes, got);
    }
    CHECK(got == 0 && s->got == s->total);
    return arg;
}

static void no_byte_is_lost_doubled_or_moved(void **state)
{
    enum { STREAMS = 8 };
    (void)state;
    for (unsigned round = 0; round < ROUNDS / SCALE + 1; round++) {
        struct stream streams[STREAMS] = { 0 };
        struct rouse_thread *readers[STREAMS];
        pthread_t senders[STREAMS];
        for (unsigned i = 0; i < STREAMS; i++) {
            struct stream *s = &streams[i];
            tcp_pair(s->ends);
            s->random = (seed_of_run() + round * STREAMS + i) * 2654435761u + 1;
            s->total = 1 + next_random(s) % (MOST_BYTES / SCALE);
            readers[i] =
                start(i % 4 == 3 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, read_part_then_plain, s);
            CHECK(pthread_create(&senders[i], NULL, send_all, s) == 0);
        }
        for (unsigned i = 0; i < STREAMS; i++) {
            join(readers[i]);
            CHECK(pthread_join(senders[i], NULL) == 0);
            EQUALS(rouse_close(streams[i].ends[0]), 0);
            close(streams[i].ends[1]);
        }
    }
}

static void *read_one(void *arg)
{
    char byte;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1);
    return arg;
}

static bool is_received_by_ring(int fd)
{
    return (rsi_load_relaxed(&entry_of(fd)->flags) & RSI_FD_IS_MULTISHOT) != 0;
}

/* Whether the kernel still has the bytes that have arrived. */
static bool kernel_has(int fd, int count)
{
    int waiting = 0;
    CHECK(ioctl(fd, FIONREAD, &waiting) == 0);
    return waiting == count;
}

static void a_released_socket_is_never_received_ahead(void **state)
{
    (void)state;
    int ends[2];
    tcp_pair(ends);
    EQUALS(rouse_release(ends[0], NULL, 0), 0);
    struct rouse_thread *reader = start(ROUSE_KIND_USER, read_one, &ends[0]);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    CHECK(!is_received_by_ring(ends[0]));
    CHECK(send(ends[1], "abc", 3, 0) == 3);
    join(reader);
    UNTIL(kernel_has(ends[0], 2));
    EQUALS(rouse_close(ends[0]), 0);
    close(ends[1]);
}

/* The same without the release, to show that the test above can fail. */
static void held_bytes_need_a_buffer(void **state)
{
    (void)state;
    int ends[2];
    char bytes[2];
    tcp_pair(ends);
    struct rouse_thread *reader = start(ROUSE_KIND_USER, read_one, &ends[0]);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    bool has_ring = is_received_by_ring(ends[0]);
    CHECK(send(ends[1], "abc", 3, 0) == 3);
    join(reader);
    if (!has_ring) { /* epoll */
        EQUALS(rouse_release(ends[0], NULL, 0), 0);
        UNTIL(kernel_has(ends[0], 2));
    } else {
        UNTIL(kernel_has(ends[0], 0));
        EQUALS(rouse_release(ends[0], NULL, 0), -ENOBUFS);
        EQUALS(rouse_release(ends[0], bytes, 1), 1);
        EQUALS(bytes[0], 'b');
        EQUALS(rouse_release(ends[0], bytes, 2), 1);
        EQUALS(bytes[0], 'c');
        EQUALS(rouse_release(ends[0], bytes, 2), 0);
        CHECK(!is_received_by_ring(ends[0]));
    }
    CHECK(send(ends[1], "d", 1, 0) == 1);
    UNTIL(kernel_has(ends[0], has_ring ? 1 : 3));
    EQUALS(rouse_close(ends[0]), 0);
    close(ends[1]);
}

static void *accept_one(void *arg)
{
    int fd = rouse_accept(*(int *)arg, NULL, NULL);
    CHECK(fd >= 0);
    EQUALS(rouse_close(fd), 0);
    return arg;
}

static void a_listener_with_a_ring_is_refused_and_goes_on(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int listener = tcp_listen(4, &address);
    for (int round = 0; round < 2; round++) {
        struct rouse_thread *acceptor = start(ROUSE_KIND_USER, accept_one, &listener);
        UNTIL(is_awaited(listener, RSI_FD_READ));
        EQUALS(rouse_release(listener, NULL, 0), is_received_by_ring(listener) ? -EBUSY : 0);
        int fd = tcp_connect(&address);
        join(acceptor);
        close(fd);
    }
    EQUALS(rouse_close(listener), 0);
}

static void what_no_ring_receives_for_is_released_already(void **state)
{
    (void)state;
    int ends[2];
    EQUALS(rouse_release(-1, NULL, 0), -EBADF);
    EQUALS(rouse_release(1 << 20, NULL, 0), -EBADF);
    CHECK(pipe(ends) == 0);
    EQUALS(rouse_release(ends[0], NULL, 0), 0);
    EQUALS(rouse_close(ends[0]), 0);
    EQUALS(rouse_close(ends[1]), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_byte_is_lost_doubled_or_moved),
        cmocka_unit_test(a_released_socket_is_never_received_ahead),
        cmocka_unit_test(held_bytes_need_a_buffer),
        cmocka_unit_test(a_listener_with_a_ring_is_refused_and_goes_on),
        cmocka_unit_test(what_no_ring_receives_for_is_released_already),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
