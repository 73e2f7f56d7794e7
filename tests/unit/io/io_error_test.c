/* SPDX-License-Identifier: MIT */
/*
 * io_error_test.c - the peer resets, hangs up or is gone; signals interrupt calls; SIGPIPE is not
 * raised.
 */
#include "io_test.h"

#include <sys/mman.h>
#include <time.h>

enum act { ACT_READ, ACT_WRITE, ACT_WRITEV, ACT_SEND, ACT_SENDMSG, ACT_SENDFILE, ACTS };
static const char *const act_names[ACTS] = { "read", "write",   "writev",
                                             "send", "sendmsg", "sendfile" };

struct call {
    int fd;
    enum act act;
    long result;
};

static int file_of_bytes(void)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("bytes", MFD_CLOEXEC);
        CHECK(file >= 0 && ftruncate(file, 1 << 20) == 0);
    }
    return file;
}

static long act_once(int fd, enum act act)
{
    static char bytes[4096];
    struct iovec iov = { bytes, sizeof bytes };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    off_t offset = 0;
    switch (act) {
    case ACT_READ: return rouse_read(fd, bytes, sizeof bytes);
    case ACT_WRITE: return rouse_write(fd, bytes, sizeof bytes);
    case ACT_WRITEV: return rouse_writev(fd, &iov, 1);
    case ACT_SEND: return rouse_send(fd, bytes, sizeof bytes, 0);
    case ACT_SENDMSG: return rouse_sendmsg(fd, &message, 0);
    default: return rouse_sendfile(fd, file_of_bytes(), &offset, sizeof bytes);
    }
}

/* Write until a write fails, or read until a read returns no more. */
static void act_on(void *arg, unsigned index)
{
    struct call *call = arg;
    (void)index;
    do
        call->result = act_once(call->fd, call->act);
    while (call->result > 0);
}

static void reset(int fd)
{
    const struct linger hard = { .l_onoff = 1, .l_linger = 0 };
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
    close(fd);
}

static enum rsi_fd_side_index side_of(enum act act)
{
    return act == ACT_READ ? RSI_FD_READ : RSI_FD_WRITE;
}

/* Combinations of the peer's action, its moment, and the result of the call. */
static void peer_goes(enum wire wire, enum act act, enum crew_kind kind, bool is_reset, bool waits)
{
    static struct crew crew;
    int ends[2];
    struct call call = { .act = act };
    DOING("%s on %s by a %s thread: the peer %s %s", act_names[act], wire_names[wire],
          kind_names[kind], is_reset ? "resets" : "closes", waits ? "amid the call" : "before");
    wire_open(wire, ends);
    call.fd = ends[act != ACT_READ];
    int peer = ends[act == ACT_READ];
    if (waits) {
        (void)crew_add(&crew, kind, act_on, &call);
        UNTIL(is_awaited(call.fd, side_of(act)));
    }
    if (is_reset)
        reset(peer);
    else
        close(peer);
    if (!waits)
        (void)crew_add(&crew, kind, act_on, &call);
    crew_join(&crew);
    if (act == ACT_READ)
        EQUALS(call.result, is_reset ? -ECONNRESET : 0);
    else
        CHECK(call.result == -EPIPE || call.result == -ECONNRESET);
    /* And again: the condition persists. */
    call.result = act_once(call.fd, act);
    EQUALS(call.result, act == ACT_READ ? 0 : -EPIPE);
    EQUALS(rouse_close(call.fd), 0);
}

/* SIGPIPE has its default action here, which would end the program. */
static void peer_is_gone(void **state)
{
    (void)state;
    static const enum wire wires[] = { WIRE_TCP, WIRE_UNIX, WIRE_SEQPACKET };
    for (size_t i = 0; i < LENGTH(wires); i++)
        for (enum act act = 0; act < ACTS; act++)
            for (enum crew_kind kind = 0; kind < KINDS; kind++)
                for (int waits = 0; waits < 2; waits++) {
                    if (act == ACT_SENDFILE && wires[i] == WIRE_SEQPACKET)
                        continue;
                    peer_goes(wires[i], act, kind, false, waits == 1);
                    if (wires[i] == WIRE_TCP)
                        peer_goes(wires[i], act, kind, true, waits == 1);
                }
}

/*
 * Bytes that came before the reset may be read or lost. Then the error is returned once, then the
 * end of the stream.
 */
static void reset_behind_bytes(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        int ends[2];
        struct call call = { .act = ACT_READ };
        wire_open(WIRE_TCP, ends);
        call.fd = ends[0];
        CHECK(write(ends[1], "bytes", 5) == 5);
        reset(ends[1]);
        (void)crew_add(&crew, kind, act_on, &call);
        crew_join(&crew);
        EQUALS(call.result, -ECONNRESET);
        EQUALS(act_once(call.fd, ACT_READ), 0);
        EQUALS(rouse_close(call.fd), 0);
    }
}

static void own_side_is_shut(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (enum act act = 0; act < ACTS; act++) {
            int ends[2];
            struct call call = { .act = act };
            DOING("%s by a %s thread", act_names[act], kind_names[kind]);
            wire_open(WIRE_TCP, ends);
            call.fd = ends[0];
            (void)crew_add(&crew, kind, act_on, &call);
            UNTIL(is_awaited(call.fd, side_of(act)));
            EQUALS(rouse_shutdown(call.fd, act == ACT_READ ? SHUT_RD : SHUT_WR), 0);
            if (act != ACT_READ) /* queued bytes go out first; the waiter sees the end at once */
                UNTIL(!is_awaited(call.fd, side_of(act)));
            crew_join(&crew);
            EQUALS(call.result, act == ACT_READ ? 0 : -EPIPE);
            wire_close(ends);
        }
}

/*
 * A SIGPIPE that was blocked and pending before belongs to the program. sendfile leaves it pending.
 */
static void pending_sigpipe_stays(void **state)
{
    (void)state;
    int ends[2];
    sigset_t set, pending, old;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &old) == 0);
    for (int was_pending = 0; was_pending < 2; was_pending++) {
        wire_open(WIRE_UNIX, ends);
        close(ends[1]);
        if (was_pending)
            CHECK(pthread_kill(pthread_self(), SIGPIPE) == 0);
        EQUALS(act_once(ends[0], ACT_SENDFILE), -EPIPE);
        CHECK(sigpending(&pending) == 0);
        /* blocked by the program: POSIX's own behaviour */
        EQUALS(sigismember(&pending, SIGPIPE), 1);
        const struct timespec zero = { 0, 0 };
        EQUALS(sigtimedwait(&set, NULL, &zero), SIGPIPE);
        EQUALS(rouse_close(ends[0]), 0);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
}

/* Pipes have no MSG_NOSIGNAL, so POSIX's SIGPIPE applies. */
static void pipes_without_a_reader(void **state)
{
    (void)state;
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int waits = 0; waits < 2; waits++)
            peer_goes(WIRE_PIPE, ACT_WRITE, kind, false, waits == 1);
    CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
}

static uint32_t signals;

static void on_signal(int number)
{
    (void)number;
    rsi_fetch_add_relaxed(&signals, 1u);
}

struct flow {
    int ends[2];
    size_t total;
};

static void move_much(void *arg, unsigned index)
{
    struct flow *flow = arg;
    char bytes[3000] = { 0 };
    for (size_t at = 0; at < flow->total;) {
        ssize_t moved = index == 0 ? rouse_read(flow->ends[0], bytes, sizeof bytes)
                                   : rouse_write(flow->ends[1], bytes, sizeof bytes);
        if (index == 0 && moved == 0)
            break;
        CHECK(moved > 0);
        at += (size_t)moved;
    }
    if (index == 1)
        EQUALS(rouse_close(flow->ends[1]), 0);
}

/* Handlers without SA_RESTART run all the time, on any kernel thread. */
static void signals_end_no_call(void **state)
{
    (void)state;
    struct sigaction action = { .sa_handler = on_signal };
    const struct itimerspec often = { { 0, 100000 }, { 0, 100000 } };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    timer_t timer;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (enum wire wire = 0; wire < WIRES; wire++) {
            struct flow flow = { .total = (size_t)1 << 20 };
            uint32_t before = rsi_load_relaxed(&signals);
            if (wire != WIRE_TCP && wire != WIRE_UNIX && wire != WIRE_PIPE)
                continue;
            DOING("%s, %s threads", wire_names[wire], kind_names[kind]);
            /* This test is not about the kernel's own connect, which makes the wire. */
            CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
            wire_open(wire, flow.ends);
            CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
            crew_run(kind, 2, move_much, &flow);
            UNTIL(rsi_load_relaxed(&signals) > before);
            EQUALS(rouse_close(flow.ends[0]), 0);
        }
    CHECK(timer_delete(timer) == 0);
}

/* A thread created by the program waits in a call while signals are aimed at it. */
static void signals_aimed_at_a_waiter(void **state)
{
    (void)state;
    static struct crew crew;
    struct sigaction action = { .sa_handler = on_signal };
    int ends[2];
    wire_open(WIRE_TCP, ends);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    struct call call = { .fd = ends[0], .act = ACT_READ };
    (void)crew_add(&crew, CREW_FOREIGN, act_on, &call);
    for (int i = 0; i < 50; i++) {
        uint32_t before = rsi_load_relaxed(&signals);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        CHECK(pthread_kill(crew.members[0].pthread, SIGUSR1) == 0);
        UNTIL(rsi_load_relaxed(&signals) > before);
        CHECK(is_awaited(ends[0], RSI_FD_READ));
    }
    close(ends[1]);
    crew_join(&crew);
    EQUALS(call.result, 0);
    EQUALS(rouse_close(ends[0]), 0);
}

static void accept_to_bad_places(void *arg, unsigned index)
{
    const int *listener = arg;
    struct sockaddr_in peer;
    (void)index;
    for (unsigned i = 0; i < 2; i++) { /* the second waits before it fails */
        int fd = rouse_accept(*listener, NULL, NULL);
        CHECK(fd >= 0);
        EQUALS(rouse_close(fd), 0);
        EQUALS(rouse_accept(*listener, (struct sockaddr *)&peer, NULL), -EFAULT);
        EQUALS(rouse_accept(*listener, (struct sockaddr *)&peer, (socklen_t *)1), -EFAULT);
    }
}

/*
 * An unwritable address is reported as an error and breaks nothing else, also for a connection that
 * a ring has accepted by itself.
 */
static void an_address_buffer_that_cannot_be_written(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct sockaddr_in address;
        DOING("a %s thread", kind_names[kind]);
        int listener = tcp_listen(8, &address);
        struct rouse_thread *t = crew_add(&crew, kind, accept_to_bad_places, &listener);
        if (kind != CREW_FOREIGN)
            UNTIL(is_in_accept(t));
        for (unsigned i = 0; i < 6; i++)
            close(tcp_connect(&address));
        crew_join(&crew);
        EQUALS(rouse_close(listener), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peer_is_gone),
        cmocka_unit_test(reset_behind_bytes),
        cmocka_unit_test(own_side_is_shut),
        cmocka_unit_test(pending_sigpipe_stays),
        cmocka_unit_test(an_address_buffer_that_cannot_be_written),
        cmocka_unit_test(pipes_without_a_reader),
        cmocka_unit_test(signals_end_no_call),
        cmocka_unit_test(signals_aimed_at_a_waiter),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
