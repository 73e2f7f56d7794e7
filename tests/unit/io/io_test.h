/* SPDX-License-Identifier: MIT */
/*
 * io_test.h - helpers of the I/O tests: connected descriptors of every sort ("wires"), waiting
 * until a thread waits for a descriptor, checks that print the current attempt, runs with 1, 2 and
 * 4 workers.
 */
#ifndef IO_TEST_H
#define IO_TEST_H

#include "io/ready.h"
#include "unit/sync/sync_test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The current attempt, printed when a check fails. Written by the main thread. */
static MAYBE_UNUSED char doing[256];
#define DOING(...) snprintf(doing, sizeof doing, __VA_ARGS__)

static MAYBE_UNUSED _Noreturn void io_check_failed(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s\n", doing);
    check_failed(text, file, line);
}
#define check_failed(text, file, line) io_check_failed(text, file, line)

#define EQUALS(actual, expected) \
    equals((long)(actual), (long)(expected), #actual " == " #expected, __FILE__, __LINE__)

static MAYBE_UNUSED void equals(long actual, long expected, const char *text, const char *file,
                                int line)
{
    if (actual == expected)
        return;
    fprintf(stderr, "%ld is not %ld\n", actual, expected);
    check_failed(text, file, line);
}

static MAYBE_UNUSED struct rsi_fd *entry_of(int fd)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    CHECK(entry);
    return entry;
}

/* Whether some thread waits for fd: it is listed, and parks now or has done so. */
static MAYBE_UNUSED bool is_awaited(int fd, enum rsi_fd_side_index side)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    return entry && rsi_load_relaxed(&entry->sides[side].first) != NULL;
}

static MAYBE_UNUSED unsigned await_count(int fd, enum rsi_fd_side_index side)
{
    unsigned count = 0;
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    if (!entry)
        return 0;
    rsi_guard_lock(&entry->guard);
    for (struct rsi_fd_waiter *w = entry->sides[side].first; w; w = w->next)
        count++;
    rsi_guard_unlock(&entry->guard);
    return count;
}

/* Wires: ends[0] is read from, ends[1] is written to. Sockets go both ways. */
enum wire {
    WIRE_TCP,
    WIRE_UNIX,
    WIRE_SEQPACKET,
    WIRE_UNIX_DATAGRAM,
    WIRE_UDP,
    WIRE_PIPE,
    WIRE_EVENTFD, /* one descriptor, twice */
    WIRES
};

static MAYBE_UNUSED const char *const wire_names[WIRES] = { "tcp",        "unix", "seqpacket",
                                                            "unix dgram", "udp",  "pipe",
                                                            "eventfd" };

#define LOOPBACK \
    { \
        .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } \
    }

/*
 * The loopback's segments are larger than small buffers, which then stall for delayed
 * acknowledgements.
 */
static MAYBE_UNUSED int tcp_socket(void)
{
    const int bytes = 1400;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof bytes) == 0);
    return fd;
}

/* Bind to the address that is filled in. Its port may be 0. */
static MAYBE_UNUSED int tcp_listen_at(int backlog, struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int fd = tcp_socket();
    CHECK(bind(fd, (struct sockaddr *)address, sizeof *address) == 0);
    CHECK(listen(fd, backlog) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
    return fd;
}

/*
 * At an address of this process: a program beside it that looks at 127.0.0.1 whether its own server is there, at a port
 * that it has given up, does not become a client of this listener.
 */
static MAYBE_UNUSED int tcp_listen(int backlog, struct sockaddr_in *address)
{
    *address = (struct sockaddr_in)LOOPBACK;
    address->sin_addr.s_addr = htonl(127u << 24 | ((uint32_t)getpid() & 0xffff) << 8 | 2);
    return tcp_listen_at(backlog, address);
}

/*
 * Move fd to a high number, for a test that closes it and uses the number again. The library may take
 * the lowest free number at any time: a worker opens its ring when it first sleeps, and a file in /proc
 * is open for a moment when a kernel thread ends (obs/cpu_time.h).
 */
static MAYBE_UNUSED int out_of_reach(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 600);
    CHECK(high >= 0);
    CHECK(close(fd) == 0);
    return high;
}

static MAYBE_UNUSED int tcp_connect(const struct sockaddr_in *address)
{
    int fd = tcp_socket();
    int error = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    EQUALS(error, 0);
    return fd;
}

/*
 * Each pair uses an address of its own in 127.0.0.0/8: a port stays in use for a minute after a
 * connection, and the search for a free one among 20,000 of those takes milliseconds under the
 * kernel's lock.
 */
static MAYBE_UNUSED void tcp_pair(int ends[2])
{
    static uint32_t count;
    uint32_t host = (uint32_t)getpid() * 4099 + rsi_fetch_add_relaxed(&count, 1u);
    struct sockaddr_in address = LOOPBACK;
    address.sin_addr.s_addr = htonl(0x7f010000u + host % 0xfe0000);
    int listener = tcp_listen_at(1, &address);
    ends[1] = tcp_connect(&address);
    ends[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(ends[0] >= 0);
    close(listener);
}

static MAYBE_UNUSED void udp_pair(int ends[2])
{
    struct sockaddr_in addresses[2] = { LOOPBACK, LOOPBACK };
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof addresses[i];
        ends[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        CHECK(ends[i] >= 0);
        CHECK(bind(ends[i], (struct sockaddr *)&addresses[i], length) == 0);
        CHECK(getsockname(ends[i], (struct sockaddr *)&addresses[i], &length) == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(connect(ends[i], (struct sockaddr *)&addresses[!i], sizeof addresses[0]) == 0);
}

static MAYBE_UNUSED void wire_open(enum wire wire, int ends[2])
{
    switch (wire) {
    case WIRE_TCP: tcp_pair(ends); break;
    case WIRE_UDP: udp_pair(ends); break;
    case WIRE_UNIX: CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0); break;
    case WIRE_SEQPACKET:
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        break;
    case WIRE_UNIX_DATAGRAM:
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0);
        break;
    case WIRE_EVENTFD:
        ends[0] = ends[1] = eventfd(0, EFD_CLOEXEC);
        CHECK(ends[0] >= 0);
        break;
    default: CHECK(pipe2(ends, O_CLOEXEC) == 0);
    }
}

static MAYBE_UNUSED bool wire_is_socket(enum wire wire)
{
    return wire < WIRE_PIPE;
}

/*
 * Close the descriptors without the table's knowledge, so that the numbers' next users start
 * afresh.
 */
static MAYBE_UNUSED void wire_close(const int ends[2])
{
    (void)rouse_close(ends[0]);
    if (ends[1] != ends[0])
        (void)rouse_close(ends[1]);
}

static MAYBE_UNUSED void set_buffers(int fd, int bytes)
{
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
}

/* Whether the open file is non-blocking now. */
static MAYBE_UNUSED bool is_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    return (flags & O_NONBLOCK) != 0;
}

static MAYBE_UNUSED void set_nonblock(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    CHECK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

static MAYBE_UNUSED void wait_once(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1);
}

/*
 * Called early, so that the epoll set does not take a number that was just closed while it was in
 * use.
 */
static MAYBE_UNUSED void make_epoll_set(void)
{
    static struct crew crew;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    (void)crew_add(&crew, CREW_USER, wait_once, &ends[0]);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    EQUALS(write(ends[1], "x", 1), 1);
    crew_join(&crew);
    wire_close(ends);
}

static MAYBE_UNUSED bool sleeps_in(struct rouse_thread *t, enum rouse_wait_kind kind)
{
    struct rsi_waiter *w = rsi_waiter(t);
    return (rsi_load_acquire(&w->claim) & 3) != 0 && rsi_load_relaxed(&w->on_cpu) == 0 &&
           rsi_load_relaxed(&w->record.kind) == kind;
}

/* Whether t sleeps in accept, where a connection finds it. */
static MAYBE_UNUSED bool is_in_accept(struct rouse_thread *t)
{
    return sleeps_in(t, ROUSE_WAIT_ACCEPT);
}

/* Except the runtime's own descriptors, some of which may be there now and none before. */
static MAYBE_UNUSED unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[300], target[64];
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0)
            continue; /* gone meanwhile */
        target[length] = 0;
        count += strcmp(target, "anon_inode:[eventpoll]") != 0 &&
                 strcmp(target, "anon_inode:[eventfd]") != 0 &&
                 strcmp(target, "anon_inode:[io_uring]") != 0;
    }
    closedir(folder);
    return count;
}

/* The kinds of a single thread. CREW_MIXED is for crews. */
#define KINDS CREW_MIXED
static MAYBE_UNUSED const char *const kind_names[CREW_KINDS] = { "user", "kernel", "foreign",
                                                                 "mixed" };

#endif
