/* SPDX-License-Identifier: MIT */
/*
 * io_transfer_test.c - all bytes sent arrive: large amounts through small buffers by every pair of
 * calls, short reads and writes, the ends of streams, and the flags that change how much a read
 * takes.
 */
#include "io_test.h"

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define TOTAL ((size_t)3 << 20)
#define PIECE 50000

static char byte_at(size_t offset)
{
    return (char)(offset * 7 + (offset >> 8) * 13 + (offset >> 16));
}

typedef ssize_t (*mover)(int fd, char *bytes, size_t count);

static ssize_t by_write(int fd, char *bytes, size_t count)
{
    return rouse_write(fd, bytes, count);
}

static int split(struct iovec iov[3], char *bytes, size_t count)
{
    iov[0] = (struct iovec){ bytes, count / 3 };
    iov[1] = (struct iovec){ bytes, 0 };
    iov[2] = (struct iovec){ bytes + count / 3, count - count / 3 };
    return 3;
}

static ssize_t by_writev(int fd, char *bytes, size_t count)
{
    struct iovec iov[3];
    int pieces = split(iov, bytes, count);
    return rouse_writev(fd, iov, pieces);
}

static ssize_t by_send(int fd, char *bytes, size_t count)
{
    return rouse_send(fd, bytes, count, 0);
}

static ssize_t by_sendmsg(int fd, char *bytes, size_t count)
{
    struct iovec iov[3];
    struct msghdr message = { .msg_iov = iov };
    message.msg_iovlen = (size_t)split(iov, bytes, count);
    return rouse_sendmsg(fd, &message, MSG_MORE);
}

static ssize_t by_read(int fd, char *bytes, size_t count)
{
    return rouse_read(fd, bytes, count);
}

static ssize_t by_readv(int fd, char *bytes, size_t count)
{
    struct iovec iov[3];
    int pieces = split(iov, bytes, count);
    return rouse_readv(fd, iov, pieces);
}

static ssize_t by_recv(int fd, char *bytes, size_t count)
{
    return rouse_recv(fd, bytes, count, 0);
}

static ssize_t by_recv_all(int fd, char *bytes, size_t count)
{
    return rouse_recv(fd, bytes, count, MSG_WAITALL);
}

static ssize_t by_recvmsg(int fd, char *bytes, size_t count)
{
    struct iovec iov[3];
    struct msghdr message = { .msg_iov = iov };
    message.msg_iovlen = (size_t)split(iov, bytes, count);
    return rouse_recvmsg(fd, &message, 0);
}

static ssize_t by_recvmsg_all(int fd, char *bytes, size_t count)
{
    struct iovec iov[3];
    struct msghdr message = { .msg_iov = iov };
    message.msg_iovlen = (size_t)split(iov, bytes, count);
    return rouse_recvmsg(fd, &message, MSG_WAITALL);
}

/* The first two work on pipes too. */
static const mover senders[] = { by_write, by_writev, by_send, by_sendmsg };
static const mover receivers[] = { by_read,     by_readv,   by_recv,
                                   by_recv_all, by_recvmsg, by_recvmsg_all };

struct flow {
    int ends[2];
    mover send, receive;
    size_t total, piece;
    char *file; /* NULL: the bytes of byte_at */
};

static void send_flow(void *arg, unsigned index)
{
    struct flow *flow = arg;
    char *bytes = malloc(flow->piece);
    size_t at = 0;
    (void)index;
    CHECK(bytes);
    while (at < flow->total) {
        size_t count = flow->total - at < flow->piece ? flow->total - at : flow->piece;
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(at + i);
        ssize_t sent = flow->send(flow->ends[1], bytes, count);
        CHECK(sent > 0 && (size_t)sent <= count);
        at += (size_t)sent;
    }
    free(bytes);
    EQUALS(rouse_close(flow->ends[1]), 0);
}

static void receive_flow(void *arg, unsigned index)
{
    struct flow *flow = arg;
    char *bytes = malloc(flow->piece);
    size_t at = 0;
    ssize_t got;
    (void)index;
    CHECK(bytes);
    bool takes_all = flow->receive == by_recv_all || flow->receive == by_recvmsg_all;
    while ((got = flow->receive(flow->ends[0], bytes, flow->piece)) > 0) {
        for (ssize_t i = 0; i < got; i++, at++)
            CHECK(bytes[i] == byte_at(at));
        CHECK(!takes_all || (size_t)got == flow->piece || at == flow->total);
    }
    EQUALS(got, 0);
    EQUALS(at, flow->total);
    free(bytes);
    EQUALS(rouse_close(flow->ends[0]), 0);
}

static void run_flow(struct flow *flow, enum wire wire, enum crew_kind from, enum crew_kind to)
{
    static struct crew crew;
    wire_open(wire, flow->ends);
    if (wire_is_socket(wire))
        for (int i = 0; i < 2; i++)
            set_buffers(flow->ends[i], 32768);
    DOING("%s from a %s thread to a %s thread", wire_names[wire], kind_names[from], kind_names[to]);
    (void)crew_add(&crew, from, send_flow, flow);
    (void)crew_add(&crew, to, receive_flow, flow);
    crew_join(&crew);
}

static void megabytes_pass_small_buffers(void **state)
{
    (void)state;
    unsigned turn = 0;
    for (enum crew_kind from = 0; from < KINDS; from++)
        for (enum crew_kind to = 0; to < KINDS; to++)
            for (unsigned i = 0; i < 4; i++, turn++) {
                struct flow flow = { .total = TOTAL / SCALE, .piece = PIECE };
                bool is_pipe = i == 3;
                flow.send = senders[turn % (is_pipe ? 2 : LENGTH(senders))];
                flow.receive = receivers[turn / 3 % (is_pipe ? 2 : LENGTH(receivers))];
                run_flow(&flow, is_pipe ? WIRE_PIPE : i == 2 ? WIRE_UNIX : WIRE_TCP, from, to);
            }
}

/* Messages keep their boundaries: each read returns one piece as it was written. */
static void messages_pass_small_buffers(void **state)
{
    (void)state;
    for (enum crew_kind from = 0; from < KINDS; from++)
        for (enum crew_kind to = 0; to < KINDS; to++) {
            struct flow flow = { .total = TOTAL / 8 / SCALE / 1000 * 1000, .piece = 1000 };
            flow.send = senders[to % 3];
            flow.receive = receivers[from];
            run_flow(&flow, WIRE_SEQPACKET, from, to);
        }
}

static ssize_t by_sendfile(int fd, char *bytes, size_t count)
{
    static off_t offset;
    static int file = -1;
    (void)bytes;
    if (file < 0) {
        file = memfd_create("content", MFD_CLOEXEC);
        CHECK(file >= 0);
        for (size_t at = 0; at < TOTAL; at += 4096) {
            char page[4096];
            for (size_t i = 0; i < sizeof page; i++)
                page[i] = byte_at(at + i);
            CHECK(write(file, page, sizeof page) == sizeof page);
        }
        CHECK(lseek(file, 0, SEEK_SET) == 0);
    }
    off_t before = offset;
    ssize_t sent = rouse_sendfile(fd, file, &offset, count);
    CHECK(sent <= 0 || offset == before + sent);
    if (offset == (off_t)(TOTAL / SCALE))
        offset = 0; /* for the next flow */
    return sent;
}

static void a_file_passes_small_buffers(void **state)
{
    (void)state;
    for (enum crew_kind from = 0; from < KINDS; from++)
        for (unsigned i = 0; i < 3; i++) {
            struct flow flow = {
                .send = by_sendfile, .receive = by_read, .total = TOTAL / SCALE, .piece = 1 << 20
            };
            run_flow(&flow, i == 0 ? WIRE_TCP : i == 1 ? WIRE_UNIX : WIRE_PIPE, from, CREW_USER);
        }
}

/* Both directions at once over one socket, each side with its own reader and writer. */
struct both {
    int ends[2];
};

static void pour(void *arg, unsigned index)
{
    struct both *both = arg;
    struct flow flow = {
        .send = by_send, .receive = by_recv, .total = TOTAL / 4 / SCALE, .piece = 9000
    };
    char bytes[9000];
    int fd = both->ends[index % 2];
    for (size_t at = 0; at < flow.total;) {
        size_t count = flow.total - at < sizeof bytes ? flow.total - at : sizeof bytes;
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(at + i);
        if (index < 2) {
            ssize_t moved = rouse_send(fd, bytes, count, 0);
            CHECK(moved > 0);
            at += (size_t)moved;
        } else {
            ssize_t moved = rouse_recv(fd, bytes, count, 0);
            CHECK(moved > 0);
            for (ssize_t i = 0; i < moved; i++, at++)
                CHECK(bytes[i] == byte_at(at));
        }
    }
}

static void both_directions_at_once(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++)
        for (int i = 0; i < 2; i++) {
            struct both both;
            wire_open(i ? WIRE_UNIX : WIRE_TCP, both.ends);
            set_buffers(both.ends[0], 16384);
            set_buffers(both.ends[1], 16384);
            crew_run(kind, 4, pour, &both);
            wire_close(both.ends);
        }
}

/* main sends each part when the reader waits for it. */
struct talk {
    int ends[2];
    enum wire wire;
    void (*listen)(struct talk *talk);
    struct rouse_thread *listener;
    uint32_t step; /* the listener's; counted before each call that may wait */
};

static void listen_main(void *arg, unsigned index)
{
    struct talk *talk = arg;
    (void)index;
    talk->listen(talk);
}

static void step(struct talk *talk)
{
    rsi_store_release(&talk->step, talk->step + 1);
}

/* Wait until the listener sleeps in its call number step. */
static void await(struct talk *talk, uint32_t step_number)
{
    UNTIL(rsi_load_acquire(&talk->step) == step_number && is_awaited(talk->ends[0], RSI_FD_READ));
}

static void say(struct talk *talk, uint32_t step_number, const char *text)
{
    await(talk, step_number);
    EQUALS(write(talk->ends[1], text, strlen(text)), strlen(text));
}

static void hears(struct talk *talk, size_t room, const char *text)
{
    char bytes[64];
    step(talk);
    EQUALS(rouse_read(talk->ends[0], bytes, room), strlen(text));
    CHECK(memcmp(bytes, text, strlen(text)) == 0);
}

static void listen_in_parts(struct talk *talk)
{
    hears(talk, 64, "abc"); /* short: nothing is left */
    hears(talk, 3, "def");  /* not short, and nothing is left */
    hears(talk, 2, "gh");   /* not short, and some is left */
    hears(talk, 64, "i");
    hears(talk, 64, "jkl");
    hears(talk, 64, ""); /* the end, as often as it is read */
    hears(talk, 64, "");
}

static void run_talk(void (*listen)(struct talk *), void (*speak)(struct talk *), unsigned wires)
{
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (enum wire wire = 0; wire < WIRES; wire++) {
            if ((wires & 1u << wire) == 0)
                continue;
            struct talk talk = { .wire = wire, .listen = listen };
            wire_open(wire, talk.ends);
            DOING("%s, a %s thread", wire_names[wire], kind_names[kind]);
            talk.listener = crew_add(&crew, kind, listen_main, &talk);
            speak(&talk);
            crew_join(&crew);
            (void)rouse_close(talk.ends[0]);
            (void)rouse_close(talk.ends[1]);
        }
}

#define STREAMS (1u << WIRE_TCP | 1u << WIRE_UNIX | 1u << WIRE_PIPE)

static void speak_in_parts(struct talk *talk)
{
    say(talk, 1, "abc");
    say(talk, 2, "def");
    say(talk, 3, "ghi");
    say(talk, 5, "jkl");
    await(talk, 6);
    close(talk->ends[1]);
}

static void short_reads_lose_nothing(void **state)
{
    (void)state;
    run_talk(listen_in_parts, speak_in_parts, STREAMS);
}

/* The last bytes and the end come together: a short read must not hide the end. */
static void listen_to_the_end(struct talk *talk)
{
    hears(talk, 64, "last words");
    hears(talk, 64, "");
}

static void speak_and_leave(struct talk *talk)
{
    say(talk, 1, "last words");
    close(talk->ends[1]);
}

static void end_behind_a_short_read_is_seen(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 200; i++)
        run_talk(listen_to_the_end, speak_and_leave, STREAMS);
}

static void listen_with_flags(struct talk *talk)
{
    char bytes[16] = { 0 };
    int fd = talk->ends[0];
    EQUALS(rouse_recv(fd, bytes, 8, MSG_DONTWAIT), -EAGAIN);
    step(talk);
    EQUALS(rouse_recv(fd, bytes, 8, MSG_PEEK), 4);
    EQUALS(rouse_recv(fd, bytes, 2, MSG_PEEK), 2);
    EQUALS(rouse_recv(fd, bytes, 8, MSG_DONTWAIT), 4);
    CHECK(memcmp(bytes, "1234", 4) == 0);
    step(talk);
    EQUALS(rouse_recv(fd, bytes, 6, MSG_WAITALL), 6);
    CHECK(memcmp(bytes, "567890", 6) == 0);
    EQUALS(rouse_recv(fd, bytes, 9, MSG_WAITALL | MSG_DONTWAIT), -EAGAIN);
    step(talk);
    EQUALS(rouse_recv(fd, bytes, 9, MSG_WAITALL), 3);
    EQUALS(rouse_recv(fd, bytes, 9, MSG_WAITALL), 0);
    EQUALS(rouse_read(fd, bytes, 0), 0);
}

static void speak_to_flags(struct talk *talk)
{
    say(talk, 1, "1234");
    say(talk, 2, "56");
    say(talk, 2, "7890");
    say(talk, 3, "end");
    close(talk->ends[1]);
}

static void flags_of_recv(void **state)
{
    (void)state;
    run_talk(listen_with_flags, speak_to_flags, 1u << WIRE_TCP | 1u << WIRE_UNIX);
}

/* MSG_WAITALL returns the bytes that are there. The cancel request ends the call after it. */
static void listen_until_cancelled(struct talk *talk)
{
    char bytes[8];
    struct iovec iov[2] = { { bytes, 3 }, { bytes + 4, 4 } };
    struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
    for (int i = 0; i < 2; i++) {
        step(talk);
        if (i == 0)
            EQUALS(rouse_recv(talk->ends[0], bytes, 8, MSG_WAITALL), 3);
        else
            EQUALS(rouse_recvmsg(talk->ends[0], &message, MSG_WAITALL), 3);
        CHECK(rouse_thread_cancel_pending());
        EQUALS(rouse_recv(talk->ends[0], bytes, 8, MSG_WAITALL), -ECANCELED);
    }
}

static void cancel_when_heard(struct talk *talk)
{
    for (uint32_t i = 1; i <= 2; i++) {
        const uint64_t *claim = &rsi_waiter(talk->listener)->claim;
        await(talk, i);
        uint64_t first_wait = rsi_load_acquire(claim) >> 2;
        say(talk, i, "abc");
        UNTIL(rsi_load_acquire(claim) >> 2 > first_wait && is_awaited(talk->ends[0], RSI_FD_READ));
        EQUALS(rouse_thread_cancel(talk->listener), 0);
    }
}

static void cancel_amid_a_whole_read_is_kept(void **state)
{
    (void)state;
    run_talk(listen_until_cancelled, cancel_when_heard, 1u << WIRE_TCP | 1u << WIRE_UNIX);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megabytes_pass_small_buffers),
        cmocka_unit_test(messages_pass_small_buffers),
        cmocka_unit_test(a_file_passes_small_buffers),
        cmocka_unit_test(both_directions_at_once),
        cmocka_unit_test(short_reads_lose_nothing),
        cmocka_unit_test(end_behind_a_short_read_is_seen),
        cmocka_unit_test(flags_of_recv),
        cmocka_unit_test(cancel_amid_a_whole_read_is_kept),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
