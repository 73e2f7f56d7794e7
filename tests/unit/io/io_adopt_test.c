/* SPDX-License-Identifier: MIT */
/*
 * io_adopt_test.c - descriptors from any source: how each is classified, who changes O_NONBLOCK and
 * who sees the change, copies, descriptors passed between processes, and the look-up in the
 * descriptor table.
 */
#include "io_test.h"

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static void taken_for(const char *what, int fd, int type)
{
    struct rsi_fd_ref ref;
    DOING("%s", what);
    CHECK(fd >= 0);
    fd = out_of_reach(fd);
    EQUALS(rsi_fdtable_find(fd, &ref), type);
    EQUALS(rsi_fdtable_find(fd, &ref), type);
    CHECK(ref.entry == rsi_fdtable_peek(fd));
    EQUALS(rouse_close(fd), 0);
    EQUALS(rsi_fdtable_find(fd, &ref), -EBADF);
}

static void each_descriptor_is_classified(void **state)
{
    (void)state;
    sigset_t none;
    sigemptyset(&none);
    taken_for("tcp", socket(AF_INET, SOCK_STREAM, 0), RSI_FD_TCP);
    taken_for("udp", socket(AF_INET, SOCK_DGRAM, 0), RSI_FD_DATAGRAM);
    taken_for("unix stream", socket(AF_UNIX, SOCK_STREAM, 0), RSI_FD_STREAM);
    taken_for("seqpacket", socket(AF_UNIX, SOCK_SEQPACKET, 0), RSI_FD_STREAM);
    taken_for("unix datagram", socket(AF_UNIX, SOCK_DGRAM, 0), RSI_FD_DATAGRAM);
    taken_for("netlink", socket(AF_NETLINK, SOCK_RAW, 0), RSI_FD_DATAGRAM);
    taken_for("eventfd", eventfd(0, 0), RSI_FD_POLLABLE);
    taken_for("timerfd", timerfd_create(CLOCK_MONOTONIC, 0), RSI_FD_POLLABLE);
    taken_for("signalfd", signalfd(-1, &none, 0), RSI_FD_POLLABLE);
    taken_for("inotify", inotify_init1(0), RSI_FD_POLLABLE);
    taken_for("memfd", memfd_create("m", 0), RSI_FD_FILE);
    taken_for("folder", open("/", O_RDONLY), RSI_FD_FILE);
    taken_for("device", open("/dev/null", O_RDWR), RSI_FD_SLOW);
    taken_for("terminal", posix_openpt(O_RDWR | O_NOCTTY), RSI_FD_SLOW);
}

/* One number holds descriptors of every sort, one after the other. */
static void every_sort_of_descriptor_at_one_number(void **state)
{
    (void)state;
    char bytes[8];
    const int number = 700;
    for (unsigned i = 0; i < 300; i++) {
        int ends[2];
        enum wire wire = (enum wire)(i % WIRES);
        wire_open(wire, ends);
        DOING("%s, turn %u", wire_names[wire], i);
        CHECK(dup3(ends[0], number, O_CLOEXEC) == number);
        close(ends[0]);
        if (ends[1] == ends[0])
            ends[1] = number;
        ends[0] = number;
        memcpy(bytes, "01234567", 8);
        EQUALS(rouse_write(ends[1], bytes, 8), 8);
        EQUALS(rouse_read(ends[0], bytes, 8), 8);
        EQUALS(rouse_read_until(ends[0], bytes, 8, 0), -ETIMEDOUT);
        wire_close(ends);
    }
}

static void flags_are_left_alone_or_set(void **state)
{
    (void)state;
    char bytes[8] = { 1 };
    struct sockaddr_in address;
    int ends[2], file = memfd_create("file", MFD_CLOEXEC);
    CHECK(file >= 0 && write(file, bytes, 8) == 8);
    for (enum wire wire = 0; wire < WIRES; wire++) {
        DOING("%s", wire_names[wire]);
        wire_open(wire, ends);
        EQUALS(rouse_write(ends[1], bytes, 8), 8);
        EQUALS(rouse_read(ends[0], bytes, 8), 8);
        EQUALS(rouse_read_until(ends[0], bytes, 8, 0), -ETIMEDOUT);
        EQUALS(is_nonblock(ends[0]), !wire_is_socket(wire));
        EQUALS(is_nonblock(ends[1]), !wire_is_socket(wire));
        wire_close(ends);
    }
    wire_open(WIRE_UNIX, ends);
    off_t offset = 0;
    EQUALS(rouse_sendfile(ends[1], file, &offset, 8), 8);
    CHECK(is_nonblock(ends[1]) && !is_nonblock(ends[0]));
    wire_close(ends);
    int listener = tcp_listen(1, &address);
    EQUALS(rouse_accept_until(listener, NULL, NULL, 0), -ETIMEDOUT);
    CHECK(is_nonblock(listener));
    EQUALS(rouse_close(listener), 0);
    CHECK(!is_nonblock(file));
    EQUALS(rouse_close(file), 0);
}

/* Another program made the descriptor non-blocking before. A call of rouse waits all the same. */
static void read_eight(void *arg, unsigned index)
{
    char bytes[8];
    (void)index;
    EQUALS(rouse_read(*(int *)arg, bytes, 8), 8);
}

static void nonblocking_before(void **state)
{
    (void)state;
    static struct crew crew;
    static const char bytes[8] = { 1 };
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (enum wire wire = 0; wire < WIRES; wire++) {
            int ends[2];
            wire_open(wire, ends);
            set_nonblock(ends[0], true);
            (void)crew_add(&crew, kind, read_eight, &ends[0]);
            UNTIL(is_awaited(ends[0], RSI_FD_READ));
            EQUALS(write(ends[1], bytes, 8), 8);
            crew_join(&crew);
            CHECK(is_nonblock(ends[0]));
            wire_close(ends);
        }
}

/* Descriptors received in a message work like any others. Copies of them work at the same time. */
static void passed_in_a_message(void **state)
{
    (void)state;
    static struct crew crew;
    static const char bytes[8] = { 1 };
    for (enum wire wire = 0; wire < WIRES; wire++) {
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(sizeof(int))];
        } control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
        char text = 'x';
        struct iovec iov = { &text, 1 };
        struct msghdr message = { .msg_iov = &iov,
                                  .msg_iovlen = 1,
                                  .msg_control = &control,
                                  .msg_controllen = sizeof control };
        int ends[2], carrier[2], copy;
        DOING("%s", wire_names[wire]);
        wire_open(wire, ends);
        wire_open(WIRE_UNIX, carrier);
        memcpy(CMSG_DATA(&control.header), &ends[0], sizeof(int));
        EQUALS(rouse_sendmsg(carrier[1], &message, 0), 1);
        memset(&control, 0, sizeof control);
        EQUALS(rouse_recvmsg(carrier[0], &message, MSG_CMSG_CLOEXEC), 1);
        EQUALS(message.msg_controllen, sizeof control);
        memcpy(&copy, CMSG_DATA(&control.header), sizeof(int));
        (void)crew_add(&crew, CREW_USER, read_eight, &copy);
        UNTIL(is_awaited(copy, RSI_FD_READ));
        EQUALS(rouse_write(ends[1], bytes, 8), 8);
        crew_join(&crew);
        EQUALS(rouse_close(copy), 0);
        (void)crew_add(&crew, CREW_USER, read_eight, &ends[0]);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        EQUALS(rouse_write(ends[1], bytes, 8), 8);
        crew_join(&crew);
        wire_close(ends);
        wire_close(carrier);
    }
}

/*
 * A child that inherits a pipe's end shares our open file. It sees O_NONBLOCK once we have used the
 * pipe here (as rouse/io.h says). It never sees it for a socket that was read or written.
 */
static void a_child_sees_o_nonblock_on_a_shared_pipe_only(void **state)
{
    (void)state;
    char bytes[8] = { 1 };
    for (int is_pipe = 0; is_pipe < 2; is_pipe++) {
        int ends[2], go[2], status;
        wire_open(is_pipe ? WIRE_PIPE : WIRE_UNIX, ends);
        CHECK(pipe(go) == 0);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            char byte;
            if (read(go[0], &byte, 1) != 1)
                _exit(100);
            _exit(is_nonblock(ends[0]) ? 1 : 0);
        }
        EQUALS(rouse_write(ends[1], bytes, 8), 8);
        EQUALS(rouse_read(ends[0], bytes, 8), 8);
        EQUALS(write(go[1], "g", 1), 1);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status));
        EQUALS(WEXITSTATUS(status), is_pipe);
        wire_close(ends);
        wire_close(go);
    }
}

/* A high number makes its own chunk of the table appear, and no other. */
static void high_numbers(void **state)
{
    (void)state;
    struct rlimit limit;
    static const char bytes[8] = { 1 };
    static struct crew crew;
    int ends[2];
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int high = (int)(limit.rlim_max < 1000000 ? limit.rlim_max : 1000000) - 1;
    struct rlimit wide = { (rlim_t)high + 1, limit.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &wide) == 0);
    wire_open(WIRE_TCP, ends);
    CHECK(dup3(ends[0], high, O_CLOEXEC) == high);
    CHECK(rsi_fdtable_peek(high) == NULL);
    (void)crew_add(&crew, CREW_USER, read_eight, &high);
    UNTIL(is_awaited(high, RSI_FD_READ));
    EQUALS(rouse_write(ends[1], bytes, 8), 8);
    crew_join(&crew);
    EQUALS(rouse_close(high), 0);
    wire_close(ends);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/*
 * A look-up takes no lock and writes no shared cache line: it succeeds while the entry's guards are
 * held and its memory is read-only.
 */
static void lookup_takes_no_lock_and_writes_nothing(void **state)
{
    (void)state;
    struct rsi_fd_ref ref;
    for (enum wire wire = 0; wire < WIRES; wire++) {
        int ends[2];
        wire_open(wire, ends);
        int type = rsi_fdtable_find(ends[0], &ref);
        CHECK(type > RSI_FD_CLOSING);
        struct rsi_fd *chunk = rsi_fdtable_chunks[(unsigned)ends[0] / RSI_FD_CHUNK];
        rsi_guard_lock(&ref.entry->guard);
        rsi_guard_lock(&ref.entry->arming);
        CHECK(mprotect(chunk, RSI_FD_CHUNK * sizeof *chunk, PROT_READ) == 0);
        EQUALS(rsi_fdtable_find(ends[0], &ref), type);
        if (wire_is_socket(wire))
            EQUALS(rsi_fdtable_find_socket(ends[0], &ref, NULL), type);
        CHECK(mprotect(chunk, RSI_FD_CHUNK * sizeof *chunk, PROT_READ | PROT_WRITE) == 0);
        rsi_guard_unlock(&ref.entry->arming);
        rsi_guard_unlock(&ref.entry->guard);
        wire_close(ends);
    }
}

/*
 * A pipe was closed without rouse's knowledge and its number is a socket now, and the other way
 * round.
 */
static void closed_unseen(void **state)
{
    (void)state;
    char bytes[8] = { 1 };
    int pipe_ends[2], socket_ends[2];
    wire_open(WIRE_UNIX, socket_ends);
    EQUALS(rouse_write(socket_ends[1], bytes, 8), 8);
    EQUALS(rouse_read(socket_ends[0], bytes, 8), 8);
    close(socket_ends[0]);
    close(socket_ends[1]);
    wire_open(WIRE_PIPE, pipe_ends);
    CHECK(pipe_ends[0] == socket_ends[0]);
    EQUALS(rouse_write(pipe_ends[1], bytes, 8), 8);
    EQUALS(rouse_read(pipe_ends[0], bytes, 8), 8);
    EQUALS(rouse_send(pipe_ends[1], bytes, 8, 0), -ENOTSOCK);
    EQUALS(rouse_recv(pipe_ends[0], bytes, 8, 0), -ENOTSOCK);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    wire_open(WIRE_UNIX, socket_ends);
    EQUALS(rouse_send(socket_ends[1], bytes, 8, 0), 8);
    EQUALS(rouse_recv(socket_ends[0], bytes, 8, 0), 8);
    wire_close(socket_ends);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_descriptor_is_classified),
        cmocka_unit_test(every_sort_of_descriptor_at_one_number),
        cmocka_unit_test(flags_are_left_alone_or_set),
        cmocka_unit_test(nonblocking_before),
        cmocka_unit_test(passed_in_a_message),
        cmocka_unit_test(a_child_sees_o_nonblock_on_a_shared_pipe_only),
        cmocka_unit_test(high_numbers),
        cmocka_unit_test(lookup_takes_no_lock_and_writes_nothing),
        cmocka_unit_test(closed_unseen),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
