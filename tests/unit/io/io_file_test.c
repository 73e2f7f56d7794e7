/* SPDX-License-Identifier: MIT */
/*
 * io_file_test.c - calls that helper threads make: files, devices, terminals, the standard streams,
 * name look-ups. The worker runs other threads meanwhile.
 */
#include "io_test.h"

#include <netdb.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <termios.h>

static void on_every_kind(void (*fn)(void *, unsigned), void *arg)
{
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        DOING("a %s thread", kind_names[kind]);
        crew_run(kind, 1, fn, arg);
    }
}

static void use_file(void *arg, unsigned index)
{
    char bytes[32] = { 0 };
    struct iovec pair[2] = { { bytes, 3 }, { bytes + 3, 20 } };
    struct iovec words[2] = { { (char *)"wri", 3 }, { (char *)"tten", 4 } };
    int fd = out_of_reach(memfd_create("file", MFD_CLOEXEC));
    (void)arg, (void)index;
    CHECK(fd >= 0);
    EQUALS(rouse_writev(fd, words, 2), 7);
    EQUALS(rouse_pwrite(fd, "XY", 2, 1), 2);
    EQUALS(rouse_write(fd, " more", 5), 5);
    EQUALS(rouse_pread(fd, bytes, 8, 4), 8);
    CHECK(memcmp(bytes, "ten more", 8) == 0);
    EQUALS(rouse_pread(fd, bytes, 8, 12), 0);
    EQUALS(rouse_fsync(fd), 0);
    EQUALS(rouse_read(fd, bytes, 8), 0); /* the offset is at the end */
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    EQUALS(rouse_readv(fd, pair, 2), 12);
    CHECK(memcmp(bytes, "wXYtten more", 12) == 0);
    EQUALS(rouse_pread(fd, bytes, 1, -1), -EINVAL);
    EQUALS(rouse_readv(fd, pair, -1), -EINVAL);
    EQUALS(rouse_writev(fd, words, IOV_MAX + 1), -EINVAL);
    EQUALS(rouse_send(fd, bytes, 1, 0), -ENOTSOCK);
    EQUALS(rouse_accept(fd, NULL, NULL), -ENOTSOCK);
    EQUALS(rouse_read_until(fd, bytes, 8, 0), 0); /* one attempt, however long it takes */
    EQUALS(rouse_close(fd), 0);
    EQUALS(rouse_pread(fd, bytes, 1, 0), -EBADF);
    EQUALS(rouse_fsync(fd), -EBADF);
}

static void files(void **state)
{
    (void)state;
    on_every_kind(use_file, NULL);
}

static void use_odd_files(void *arg, unsigned index)
{
    char bytes[8];
    int folder = open("/", O_RDONLY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC), ends[2];
    (void)arg, (void)index;
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    EQUALS(rouse_read(folder, bytes, 8), -EISDIR);
    EQUALS(rouse_read(null, bytes, 8), 0);
    EQUALS(rouse_write(null, bytes, 8), 8);
    EQUALS(rouse_read_until(zero, bytes, 8, 0), 8);
    EQUALS(rouse_pread(ends[0], bytes, 8, 0), -ESPIPE);
    EQUALS(rouse_fsync(ends[0]), -EINVAL);
    EQUALS(rouse_write(ends[0], bytes, 8), -EBADF); /* the reading end */
    EQUALS(rouse_close(folder), 0);
    EQUALS(rouse_close(null), 0);
    EQUALS(rouse_close(zero), 0);
    wire_close(ends);
}

static void folders_devices_and_wrong_ends(void **state)
{
    (void)state;
    on_every_kind(use_odd_files, NULL);
}

static void send_files(void *arg, unsigned index)
{
    char bytes[16];
    int from = memfd_create("from", MFD_CLOEXEC), to = memfd_create("to", MFD_CLOEXEC), ends[2];
    off_t offset = 4;
    (void)arg, (void)index;
    CHECK(from >= 0 && to >= 0 && write(from, "0123456789", 10) == 10);
    EQUALS(rouse_sendfile(to, from, &offset, 100), 6);
    EQUALS(offset, 10);
    EQUALS(rouse_sendfile(to, from, &offset, 100), 0);
    EQUALS(pread(to, bytes, sizeof bytes, 0), 6);
    CHECK(memcmp(bytes, "456789", 6) == 0);
    CHECK(lseek(from, 2, SEEK_SET) == 2);
    wire_open(WIRE_UNIX, ends);
    EQUALS(rouse_sendfile(ends[1], from, NULL, 3), 3);
    EQUALS(lseek(from, 0, SEEK_CUR), 5);
    EQUALS(rouse_read(ends[0], bytes, sizeof bytes), 3);
    CHECK(memcmp(bytes, "234", 3) == 0);
    EQUALS(rouse_sendfile(ends[1], ends[0], NULL, 3), -EINVAL); /* not from a socket */
    EQUALS(rouse_sendfile(ends[1], -1, NULL, 3), -EBADF);
    wire_close(ends);
    EQUALS(rouse_close(from), 0);
    EQUALS(rouse_close(to), 0);
}

static void sendfile_between_all_sorts(void **state)
{
    (void)state;
    on_every_kind(send_files, NULL);
}

/* A terminal waits in the poller, like a socket, although it stays blocking. */
struct terminal {
    int master, slave;
    uint64_t deadline_ns;
    long result;
    uint32_t turns, stops;
};

static void terminal_open(struct terminal *t)
{
    struct termios raw;
    t->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(t->master >= 0 && grantpt(t->master) == 0 && unlockpt(t->master) == 0);
    t->slave = open(ptsname(t->master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(t->slave >= 0 && tcgetattr(t->slave, &raw) == 0);
    cfmakeraw(&raw);
    CHECK(tcsetattr(t->slave, TCSANOW, &raw) == 0);
    t->deadline_ns = ROUSE_FOREVER;
}

static void read_terminal(void *arg, unsigned index)
{
    struct terminal *t = arg;
    char bytes[8];
    (void)index;
    t->result = rouse_read_until(t->slave, bytes, sizeof bytes, t->deadline_ns);
}

static void take_turns(void *arg, unsigned index)
{
    struct terminal *t = arg;
    (void)index;
    while (!rsi_load_relaxed(&t->stops)) {
        rsi_fetch_add_relaxed(&t->turns, 1u);
        rouse_thread_yield();
    }
}

static void terminals(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int end = 0; end < 5; end++) {
            struct terminal t = { .result = 7 };
            DOING("a %s thread, end %d", kind_names[kind], end);
            terminal_open(&t);
            if (end == 3)
                t.deadline_ns = 0;
            if (end == 4)
                t.deadline_ns = rouse_now_ns() + 2 * MS;
            struct rouse_thread *reader = crew_add(&crew, kind, read_terminal, &t);
            if (end < 3)
                UNTIL(is_awaited(t.slave, RSI_FD_READ));
            if (end == 0)
                EQUALS(rouse_write(t.master, "hello", 5), 5);
            else if (end == 1)
                EQUALS(rouse_thread_cancel(reader), 0);
            else if (end == 2)
                EQUALS(rouse_close(t.slave), 0);
            crew_join(&crew);
            EQUALS(t.result, end == 0 ? 5 : end == 1 ? -ECANCELED : end == 2 ? -EBADF : -ETIMEDOUT);
            CHECK(end == 2 || !is_nonblock(t.slave));
            (void)rouse_close(t.slave);
            EQUALS(rouse_close(t.master), 0);
        }
}

/* Threads that wait for a terminal hold no worker, however many workers there are. */
static void others_run_meanwhile(void **state)
{
    (void)state;
    static struct crew crew;
    struct terminal t[6];
    struct terminal turner = { .turns = 0 };
    for (size_t i = 0; i < LENGTH(t); i++) {
        t[i] = (struct terminal){ .result = 7 };
        terminal_open(&t[i]);
        (void)crew_add(&crew, CREW_USER, read_terminal, &t[i]);
        UNTIL(is_awaited(t[i].slave, RSI_FD_READ));
    }
    (void)crew_add(&crew, CREW_USER, take_turns, &turner);
    UNTIL(rsi_load_relaxed(&turner.turns) > 1000);
    rsi_store_relaxed(&turner.stops, 1);
    for (size_t i = 0; i < LENGTH(t); i++)
        EQUALS(rouse_write(t[i].master, "go", 2), 2);
    crew_join(&crew);
    for (size_t i = 0; i < LENGTH(t); i++) {
        EQUALS(t[i].result, 2);
        EQUALS(rouse_close(t[i].slave), 0);
        EQUALS(rouse_close(t[i].master), 0);
    }
}

/*
 * In a process whose standard input and output are pipes: they are shared with others and keep
 * their flags.
 */
static void read_stdin(void *arg, unsigned index)
{
    char bytes[8];
    (void)arg, (void)index;
    EQUALS(rouse_read_until(STDIN_FILENO, bytes, 8, 0), -ETIMEDOUT);
    EQUALS(rouse_write(STDOUT_FILENO, "ask", 3), 3);
    EQUALS(rouse_read(STDIN_FILENO, bytes, 8), 6);
    EQUALS(rouse_write(STDOUT_FILENO, bytes, 6), 6);
    CHECK(!is_nonblock(STDIN_FILENO) && !is_nonblock(STDOUT_FILENO));
    EQUALS(rouse_read(STDIN_FILENO, bytes, 8), 0);
}

static void standard_streams_keep_their_flags(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        int in[2], out[2], status;
        char bytes[8];
        CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execl("/proc/self/exe", "test", "stdin", kind_names[kind], (char *)NULL);
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        EQUALS(read(out[0], bytes, 8), 3);
        EQUALS(write(in[1], "answer", 6), 6);
        EQUALS(read(out[0], bytes, 8), 6);
        close(in[1]);
        CHECK(waitpid(pid, &status, 0) == pid);
        EQUALS(status, 0);
        close(out[0]);
    }
}

static int child_with_streams(const char *kind_name)
{
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        if (strcmp(kind_name, kind_names[kind]) == 0)
            crew_run(kind, 1, read_stdin, NULL);
    return 0;
}

static void look_up(void *arg, unsigned index)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *result = NULL;
    (void)arg, (void)index;
    EQUALS(rouse_getaddrinfo("127.0.0.1", "80", &hints, &result), 0);
    const struct sockaddr_in *address = (const void *)result->ai_addr;
    EQUALS(address->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    EQUALS(ntohs(address->sin_port), 80);
    freeaddrinfo(result);
    hints.ai_flags = AI_NUMERICHOST;
    EQUALS(rouse_getaddrinfo("no number", "80", &hints, &result), EAI_NONAME);
}

static void names_are_looked_up(void **state)
{
    (void)state;
    on_every_kind(look_up, NULL);
    crew_run(CREW_MIXED, 100, look_up, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "stdin") == 0)
        return child_with_streams(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),
        cmocka_unit_test(folders_devices_and_wrong_ends),
        cmocka_unit_test(sendfile_between_all_sorts),
        cmocka_unit_test(terminals),
        cmocka_unit_test(others_run_meanwhile),
        cmocka_unit_test(standard_streams_keep_their_flags),
        cmocka_unit_test(names_are_looked_up),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
