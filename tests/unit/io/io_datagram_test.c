/* SPDX-License-Identifier: MIT */
/*
 * io_datagram_test.c - messages and counters: each goes to one reader and wakes one, and none is
 * lost or cut silently; senders that get no event when there is room again; timerfd and signalfd.
 */
#include "io_test.h"

#include <sys/signalfd.h>
#include <sys/timerfd.h>

static void speak(void *arg, unsigned index)
{
    const int *ends = arg;
    char bytes[16] = { 0 };
    struct iovec iov = { bytes, 4 };
    struct sockaddr_in from;
    struct msghdr message = {
        .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &iov, .msg_iovlen = 1
    };
    (void)index;
    EQUALS(rouse_send(ends[1], "", 0, 0), 0);
    EQUALS(rouse_send(ends[1], "longer than that", 16, 0), 16);
    EQUALS(rouse_send(ends[1], "12345678", 8, 0), 8);
    /* an empty message is not the end of the stream */
    EQUALS(rouse_recv(ends[0], bytes, 16, 0), 0);
    EQUALS(rouse_recvmsg(ends[0], &message, 0), 4);
    CHECK((message.msg_flags & MSG_TRUNC) != 0);
    EQUALS(rouse_recv(ends[0], bytes, 4, MSG_PEEK | MSG_TRUNC), 8);
    EQUALS(rouse_recv(ends[0], bytes, 4, MSG_TRUNC), 8);
    EQUALS(rouse_recv(ends[0], bytes, 16, MSG_DONTWAIT), -EAGAIN);
}

static void boundaries(void **state)
{
    (void)state;
    static const enum wire wires[] = { WIRE_UDP, WIRE_UNIX_DATAGRAM };
    for (size_t i = 0; i < LENGTH(wires); i++)
        for (enum crew_kind kind = 0; kind < KINDS; kind++) {
            int ends[2];
            DOING("%s by a %s thread", wire_names[wires[i]], kind_names[kind]);
            wire_open(wires[i], ends);
            crew_run(kind, 1, speak, ends);
            wire_close(ends);
        }
}

/* Many readers, each takes some messages. A message of one byte 0 ends a reader. */
struct pool {
    int ends[2];
    uint32_t taken;
};

static void take_messages(void *arg, unsigned index)
{
    struct pool *pool = arg;
    char bytes[16];
    (void)index;
    for (;;) {
        EQUALS(rouse_recv(pool->ends[0], bytes, sizeof bytes, 0), 4);
        if (memcmp(bytes, "stop", 4) == 0)
            return;
        rsi_fetch_add_relaxed(&pool->taken, 1u);
    }
}

static void each_message_wakes_a_reader(void **state)
{
    (void)state;
    static struct crew crew;
    static const enum wire wires[] = { WIRE_UNIX_DATAGRAM, WIRE_SEQPACKET };
    for (size_t i = 0; i < LENGTH(wires); i++)
        for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
            struct pool pool = { .taken = 0 };
            uint64_t random = seed_of_run();
            unsigned sent = 0;
            DOING("%s, %s threads", wire_names[wires[i]], kind_names[kind]);
            wire_open(wires[i], pool.ends);
            crew_add_many(&crew, kind, 9, take_messages, &pool);
            while (sent < 3000 / SCALE) {
                unsigned burst = 1 + (unsigned)(rsi_random_next(&random) % 9);
                for (unsigned n = 0; n < burst; n++, sent++)
                    EQUALS(rouse_send(pool.ends[1], "take", 4, 0), 4);
                UNTIL(rsi_load_relaxed(&pool.taken) == sent);
            }
            for (int n = 0; n < 9; n++)
                EQUALS(rouse_send(pool.ends[1], "stop", 4, 0), 4);
            crew_join(&crew);
            EQUALS(pool.taken, sent);
            wire_close(pool.ends);
        }
}

/*
 * A sender to a full unix socket that it is not connected to: no event reports when there is room.
 */
struct post {
    int from;
    struct sockaddr_un to;
    uint64_t deadline_ns;
    long result;
    bool is_connected; /* sends to its connected peer instead */
};

static void post_letter(void *arg, unsigned index)
{
    struct post *post = arg;
    char letter[8] = "letter";
    struct iovec iov = { letter, sizeof letter };
    struct msghdr message = {
        .msg_name = &post->to, .msg_namelen = sizeof post->to, .msg_iov = &iov, .msg_iovlen = 1
    };
    (void)index;
    if (post->is_connected)
        post->result = rouse_send_until(post->from, letter, sizeof letter, 0, post->deadline_ns);
    else
        post->result = rouse_sendmsg_until(post->from, &message, 0, post->deadline_ns);
}

static int named_socket(struct sockaddr_un *address, const char *name)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "rouse-%s-%d", name, getpid());
    CHECK(bind(fd, (struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

static void fill_box(const struct post *post)
{
    while (sendto(post->from, "filling", 8, MSG_DONTWAIT, (const struct sockaddr *)&post->to,
                  sizeof post->to) > 0)
        ;
    EQUALS(errno, EAGAIN);
}

static void drain_box(int box)
{
    char bytes[8];
    while (recv(box, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

static void full_letter_box(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int end = 0; end < 4; end++) {
            struct post post = { .deadline_ns = ROUSE_FOREVER };
            int box = named_socket(&post.to, "box");
            DOING("a %s thread, end %d", kind_names[kind], end);
            post.from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
            fill_box(&post);
            if (end == 3)
                post.deadline_ns = rouse_now_ns() + 8 * MS;
            struct rouse_thread *sender = crew_add(&crew, kind, post_letter, &post);
            if (end < 3)
                UNTIL(is_awaited(post.from, RSI_FD_WRITE));
            if (end == 0)
                drain_box(box);
            else if (end == 1)
                EQUALS(rouse_thread_cancel(sender), 0);
            else if (end == 2)
                EQUALS(rouse_close(post.from), 0);
            crew_join(&crew);
            EQUALS(post.result, end == 0   ? 8
                                : end == 1 ? -ECANCELED
                                : end == 2 ? -EBADF
                                           : -ETIMEDOUT);
            (void)rouse_close(post.from);
            EQUALS(rouse_close(box), 0);
        }
}

/*
 * Two threads send through one socket: one to a full box that is never emptied, the other to the
 * connected peer. The first must neither take the second's events nor use the room found for it.
 */
static void full_box_holds_up_nobody_else(void **state)
{
    (void)state;
    static struct crew full_crew, peer_crew;
    struct post full = { .deadline_ns = ROUSE_FOREVER };
    struct post peer = { .deadline_ns = ROUSE_FOREVER, .is_connected = true };
    struct sockaddr_un peer_name;
    int box = named_socket(&full.to, "box"), peer_box = named_socket(&peer_name, "peer");
    full.from = peer.from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(connect(full.from, (struct sockaddr *)&peer_name, sizeof peer_name) == 0);
    while (send(full.from, "filling", 8, MSG_DONTWAIT) > 0)
        ;
    fill_box(&full);
    struct rouse_thread *stuck = crew_add(&full_crew, CREW_USER, post_letter, &full);
    UNTIL(await_count(full.from, RSI_FD_WRITE) == 1);
    for (unsigned i = 0; i < 20; i++) {
        while (send(full.from, "filling", 8, MSG_DONTWAIT) > 0)
            ;
        peer.result = 7;
        (void)crew_add(&peer_crew, CREW_USER, post_letter, &peer);
        UNTIL(await_count(full.from, RSI_FD_WRITE) == 2);
        drain_box(peer_box);
        crew_join(&peer_crew);
        EQUALS(peer.result, 8);
        EQUALS(rouse_send_until(full.from, "more", 4, 0, 0), 4);
    }
    EQUALS(rouse_thread_cancel(stuck), 0);
    crew_join(&full_crew);
    EQUALS(full.result, -ECANCELED);
    EQUALS(rouse_close(full.from), 0);
    EQUALS(rouse_close(box), 0);
    EQUALS(rouse_close(peer_box), 0);
}

/* A port without a socket: the kernel's ICMP answer ends the wait for the next message. */
static void receive_from_nobody(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_recv(*(int *)arg, &byte, 1, 0), -ECONNREFUSED);
}

static void nobody_at_that_port(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        int ends[2];
        wire_open(WIRE_UDP, ends);
        close(ends[1]);
        (void)crew_add(&crew, kind, receive_from_nobody, &ends[0]);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        CHECK(send(ends[0], "?", 1, 0) == 1);
        crew_join(&crew);
        EQUALS(rouse_close(ends[0]), 0);
    }
}

/* Units of an eventfd with EFD_SEMAPHORE: each one wakes one reader. */
struct units {
    int fd;
    uint32_t taken;
};

static void take_units(void *arg, unsigned index)
{
    struct units *units = arg;
    uint64_t value;
    (void)index;
    for (int i = 0; i < 100; i++) {
        EQUALS(rouse_read(units->fd, &value, sizeof value), 8);
        EQUALS(value, 1);
        rsi_fetch_add_relaxed(&units->taken, 1u);
    }
}

static void units_of_an_eventfd(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
        struct units units = { .fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC) };
        uint64_t random = seed_of_run();
        crew_add_many(&crew, kind, 10, take_units, &units);
        for (uint64_t given = 0; given < 1000;) {
            uint64_t some = 1 + rsi_random_next(&random) % 20;
            some = given + some > 1000 ? 1000 - given : some;
            EQUALS(rouse_write(units.fd, &some, sizeof some), 8);
            given += some;
            UNTIL(rsi_load_relaxed(&units.taken) == given);
        }
        crew_join(&crew);
        EQUALS(rouse_close(units.fd), 0);
    }
}

/* A failed write of a large number must not change what is known about room for a small one. */
static void add_large(void *arg, unsigned index)
{
    const uint64_t large = 1000;
    (void)index;
    EQUALS(rouse_write(*(int *)arg, &large, sizeof large), 8);
}

static void small_number_beside_a_large_one(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        uint64_t value = UINT64_MAX - 10;
        int fd = eventfd(0, EFD_CLOEXEC);
        EQUALS(rouse_write(fd, &value, sizeof value), 8);
        (void)crew_add(&crew, kind, add_large, &fd);
        UNTIL(is_awaited(fd, RSI_FD_WRITE));
        value = 2;
        EQUALS(rouse_write_until(fd, &value, sizeof value, 0), 8);
        UNTIL(is_awaited(fd, RSI_FD_WRITE)); /* woken to look, it waits again */
        EQUALS(rouse_read(fd, &value, sizeof value), 8);
        crew_join(&crew);
        EQUALS(rouse_close(fd), 0);
    }
}

static void wait_for_time(void *arg, unsigned index)
{
    const struct itimerspec soon = { .it_value = { 0, 1000000 } };
    struct signalfd_siginfo info;
    uint64_t count;
    sigset_t set;
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    (void)arg, (void)index;
    CHECK(timer >= 0 && timerfd_settime(timer, 0, &soon, NULL) == 0);
    EQUALS(rouse_read(timer, &count, sizeof count), 8);
    EQUALS(count, 1);
    EQUALS(rouse_read(timer, &count, 4), -EINVAL);
    EQUALS(rouse_close(timer), 0);
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    CHECK(signals >= 0 && kill(getpid(), SIGWINCH) == 0);
    EQUALS(rouse_read(signals, &info, sizeof info), sizeof info);
    EQUALS(info.ssi_signo, SIGWINCH);
    EQUALS(rouse_close(signals), 0);
}

static void timers_and_signals(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, wait_for_time, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boundaries),
        cmocka_unit_test(each_message_wakes_a_reader),
        cmocka_unit_test(full_letter_box),
        cmocka_unit_test(full_box_holds_up_nobody_else),
        cmocka_unit_test(nobody_at_that_port),
        cmocka_unit_test(units_of_an_eventfd),
        cmocka_unit_test(small_number_beside_a_large_one),
        cmocka_unit_test(timers_and_signals),
    };
    /*
     * Runs before the first worker starts, so that every thread blocks the signal and only the
     * signalfd receives it.
     */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
