/* SPDX-License-Identifier: MIT */
/*
 * io_stuck_test.c - one thread computes, or blocks in a system call, and keeps its worker. Descriptors that other
 * threads wait for are served meanwhile by other workers, also those that the stuck worker armed.
 *
 * The stuck thread goes on until the others have been served, so a descriptor that waits for its worker fails the
 * test by a time limit.
 */
#include "io_test.h"

#include <sys/mman.h>

#define PAIRS 64

static int pipes[2];
static uint32_t go, began;

static void compute(void *unused, unsigned index)
{
    (void)unused, (void)index;
    rsi_store_release(&began, 1u);
    while (!rsi_load_acquire(&go))
        rsi_compiler_barrier();
}

static void sit_in_read(void *unused, unsigned index)
{
    char byte;
    (void)unused, (void)index;
    rsi_store_release(&began, 1u);
    CHECK(read(pipes[0], &byte, 1) == 1);
}

/* Completions that the kernel makes meanwhile must not end the program's own sleep. */
static void sleep_without_rouse(void *unused, unsigned index)
{
    const struct timespec time = { .tv_sec = 1 };
    (void)unused, (void)index;
    rsi_store_release(&began, 1u);
    EQUALS(nanosleep(&time, NULL), 0);
}

static void (*const ways[])(void *, unsigned) = { compute, sit_in_read, sleep_without_rouse };
static const char *const way_names[] = { "computes", "blocks", "sleeps" };

static void let_go(void)
{
    rsi_store_release(&go, 1u);
    CHECK(write(pipes[1], "1", 1) == 1);
}

static void begin(size_t way)
{
    DOING("one thread %s", way_names[way]);
    CHECK(pipe(pipes) == 0);
    rsi_store_relaxed(&go, 0u);
    rsi_store_relaxed(&began, 0u);
}

static void end(void)
{
    close(pipes[0]);
    close(pipes[1]);
}

static void echo_until_end(void *arg, unsigned index)
{
    int fd = ((int(*)[2])arg)[index][0];
    char bytes[16];
    ssize_t count;
    while ((count = rouse_recv(fd, bytes, sizeof bytes, 0)) > 0)
        EQUALS(rouse_send(fd, bytes, (size_t)count, 0), count);
    EQUALS(count, 0);
}

static void patient(int fd)
{
    const struct timeval limit = { .tv_sec = 30 };
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
}

/* By plain calls of a kernel thread. */
static void expect_echo(int fd, unsigned length)
{
    char bytes[16];
    EQUALS(send(fd, "0123456789", length, 0), length);
    for (unsigned at = 0; at < length;) {
        ssize_t count = recv(fd, bytes, length - at, 0);
        CHECK(count > 0);
        at += (unsigned)count;
    }
}

static void yield_until_go(void *unused, unsigned index)
{
    (void)unused, (void)index;
    while (!rsi_load_acquire(&go))
        rouse_thread_yield();
}

/* others: that many threads keep the other workers busy, which yield. */
static void serve_connections(unsigned others)
{
    static struct crew crew, stuck;
    static int wires[PAIRS][2];
    for (size_t way = 0; way < LENGTH(ways); way++) {
        begin(way);
        for (unsigned i = 0; i < others; i++)
            (void)crew_add(&stuck, CREW_USER, yield_until_go, NULL);
        for (unsigned i = 0; i < PAIRS; i++) {
            wire_open(WIRE_TCP, wires[i]);
            patient(wires[i][1]);
            (void)crew_add(&crew, CREW_USER, echo_until_end, wires);
        }
        for (unsigned i = 0; i < PAIRS; i++)
            expect_echo(wires[i][1], 1);
        (void)crew_add(&stuck, CREW_USER, ways[way], NULL);
        UNTIL(rsi_load_acquire(&began));
        for (unsigned length = 2; length < 5; length++)
            for (unsigned i = 0; i < PAIRS; i++)
                expect_echo(wires[i][1], length);
        for (unsigned i = 0; i < PAIRS; i++)
            CHECK(shutdown(wires[i][1], SHUT_WR) == 0);
        crew_join(&crew);
        let_go();
        crew_join(&stuck);
        for (unsigned i = 0; i < PAIRS; i++)
            wire_close(wires[i]);
        end();
    }
}

static void every_connection_is_served(void **state)
{
    (void)state;
    serve_connections(0);
}

static void every_connection_is_served_though_no_worker_is_idle(void **state)
{
    (void)state;
    serve_connections(8);
}

static uint32_t accepted;

static void accept_some(void *arg, unsigned index)
{
    (void)index;
    for (int i = 0; i < 9; i++) {
        int fd = rouse_accept(*(int *)arg, NULL, NULL);
        CHECK(fd >= 0);
        EQUALS(rouse_close(fd), 0);
        rsi_fetch_add_seq_cst(&accepted, 1u);
    }
}

static void connections_are_accepted(void **state)
{
    (void)state;
    static struct crew crew, stuck;
    for (size_t way = 0; way < LENGTH(ways); way++) {
        struct sockaddr_in address;
        int fds[9], listener = tcp_listen(16, &address);
        begin(way);
        rsi_store_seq_cst(&accepted, 0u);
        (void)crew_add(&crew, CREW_USER, accept_some, &listener);
        fds[0] = tcp_connect(&address);
        UNTIL(rsi_load_seq_cst(&accepted) == 1);
        (void)crew_add(&stuck, CREW_USER, ways[way], NULL);
        UNTIL(rsi_load_acquire(&began));
        for (unsigned i = 1; i < LENGTH(fds); i++) {
            fds[i] = tcp_connect(&address);
            UNTIL(rsi_load_seq_cst(&accepted) == i + 1);
        }
        crew_join(&crew);
        let_go();
        crew_join(&stuck);
        for (unsigned i = 0; i < LENGTH(fds); i++)
            close(fds[i]);
        EQUALS(rouse_close(listener), 0);
        end();
    }
}

static uint32_t received;

static void read_until_closed(void *arg, unsigned index)
{
    int fd = ((int(*)[2])arg)[index][0];
    char byte;
    EQUALS(rouse_recv(fd, &byte, 1, 0), 1);
    rsi_fetch_add_seq_cst(&received, 1u);
    EQUALS(rouse_recv(fd, &byte, 1, 0), -EBADF);
}

/* The stuck worker's ring receives for some of them, and cannot be asked to stop. */
static void connections_are_closed(void **state)
{
    (void)state;
    static struct crew crew, stuck;
    static int wires[8][2];
    for (size_t way = 0; way < LENGTH(ways); way++) {
        begin(way);
        rsi_store_seq_cst(&received, 0u);
        for (unsigned i = 0; i < LENGTH(wires); i++) {
            wire_open(WIRE_TCP, wires[i]);
            (void)crew_add(&crew, CREW_USER, read_until_closed, wires);
        }
        for (unsigned i = 0; i < LENGTH(wires); i++)
            EQUALS(send(wires[i][1], "1", 1, 0), 1);
        UNTIL(rsi_load_seq_cst(&received) == LENGTH(wires));
        for (unsigned i = 0; i < LENGTH(wires); i++)
            UNTIL(is_awaited(wires[i][0], RSI_FD_READ));
        (void)crew_add(&stuck, CREW_USER, ways[way], NULL);
        UNTIL(rsi_load_acquire(&began));
        for (unsigned i = 0; i < LENGTH(wires); i++)
            EQUALS(rouse_close(wires[i][0]), 0);
        crew_join(&crew);
        let_go();
        crew_join(&stuck);
        for (unsigned i = 0; i < LENGTH(wires); i++)
            close(wires[i][1]);
        end();
    }
}

static struct rouse_thread *chosen;

static void *run_chosen(void *way)
{
    ways[*(size_t *)way](NULL, 0);
    return NULL;
}

static void *yield_twice(void *unused)
{
    rouse_thread_yield();
    rouse_thread_yield();
    return unused;
}

struct requester {
    size_t way;
    int wire[2], file;
    uint32_t is_done;
    bool reads_file;
};

/* Its request waits for the end of the round, in which the next thread keeps the worker. */
static void *request(void *arg)
{
    struct requester *r = arg;
    struct rouse_thread *other;
    char byte;
    EQUALS(rouse_thread_create(&chosen, NULL, run_chosen, &r->way), 0);
    EQUALS(rouse_thread_create(&other, NULL, yield_twice, NULL), 0);
    if (r->reads_file)
        EQUALS(rouse_pread(r->file, &byte, 1, 0), 1);
    else
        EQUALS(rouse_send(r->wire[0], "x", 1, 0), 1);
    rsi_store_release(&r->is_done, 1u);
    EQUALS(rouse_thread_join(other, NULL), 0);
    return NULL;
}

static void unsubmitted_requests_are_made(void **state)
{
    (void)state;
    for (size_t turn = 0; turn < 2 * LENGTH(ways); turn++) {
        struct requester r = { .way = turn / 2, .reads_file = turn % 2 != 0 };
        struct rouse_thread *thread;
        begin(r.way);
        wire_open(WIRE_TCP, r.wire);
        r.file = memfd_create("content", MFD_CLOEXEC);
        CHECK(r.file >= 0 && write(r.file, "c", 1) == 1);
        EQUALS(rouse_thread_create(&thread, NULL, request, &r), 0);
        UNTIL(rsi_load_acquire(&began));
        UNTIL(rsi_load_acquire(&r.is_done));
        let_go();
        EQUALS(rouse_thread_join(thread, NULL), 0);
        EQUALS(rouse_thread_join(chosen, NULL), 0);
        wire_close(r.wire);
        EQUALS(rouse_close(r.file), 0);
        end();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_connection_is_served),
        cmocka_unit_test(every_connection_is_served_though_no_worker_is_idle),
        cmocka_unit_test(connections_are_accepted),
        cmocka_unit_test(connections_are_closed),
        cmocka_unit_test(unsubmitted_requests_are_made),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
