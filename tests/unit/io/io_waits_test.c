/* SPDX-License-Identifier: MIT */
/*
 * io_waits_test.c - every call that can wait, on every sort of descriptor, by every kind of thread:
 * ended by success, a past or near deadline, a cancel, and a close from each kind of thread.
 */
#include "io_test.h"

#include <sys/mman.h>
#include <sys/uio.h>

/* A call that waits for fd. The other end of the wire is peer. */
struct scene {
    int fd, peer;
    enum rsi_fd_side_index side;
    struct sockaddr_un unix_address;
    struct sockaddr_in address;
    int others[4]; /* connections that fill a backlog */
    int other_count;
    uint32_t is_served;
};

struct call {
    const char *name;
    long (*run)(struct scene *scene, uint64_t deadline_ns);
    void (*open)(struct scene *scene, enum wire wire);
    void (*serve)(struct scene *scene); /* let the call succeed */
    unsigned wires;
};

static char bytes[65536];
static char eight[16] = { 1, 0, 0, 0, 0, 0, 0, 0, 1 }; /* an eventfd takes it as a number */

static long run_read(struct scene *s, uint64_t deadline_ns)
{
    return rouse_read_until(s->fd, bytes, 8, deadline_ns);
}

static long run_readv(struct scene *s, uint64_t deadline_ns)
{
    struct iovec iov[2] = { { bytes, 3 }, { bytes + 8, 5 } };
    return rouse_readv_until(s->fd, iov, 2, deadline_ns);
}

static long run_recv(struct scene *s, uint64_t deadline_ns)
{
    return rouse_recv_until(s->fd, bytes, 8, 0, deadline_ns);
}

static long run_recv_all(struct scene *s, uint64_t deadline_ns)
{
    return rouse_recv_until(s->fd, bytes, 8, MSG_WAITALL, deadline_ns);
}

static long run_peek(struct scene *s, uint64_t deadline_ns)
{
    return rouse_recv_until(s->fd, bytes, 8, MSG_PEEK, deadline_ns);
}

static long run_recvmsg(struct scene *s, uint64_t deadline_ns)
{
    struct iovec iov = { bytes, 8 };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    return rouse_recvmsg_until(s->fd, &message, 0, deadline_ns);
}

static long run_accept(struct scene *s, uint64_t deadline_ns)
{
    return rouse_accept_until(s->fd, NULL, NULL, deadline_ns);
}

static long run_write(struct scene *s, uint64_t deadline_ns)
{
    return rouse_write_until(s->fd, eight, 8, deadline_ns);
}

static long run_writev(struct scene *s, uint64_t deadline_ns)
{
    struct iovec iov[2] = { { eight, 3 }, { eight + 8, 5 } };
    return rouse_writev_until(s->fd, iov, 2, deadline_ns);
}

static long run_send(struct scene *s, uint64_t deadline_ns)
{
    return rouse_send_until(s->fd, eight, 8, 0, deadline_ns);
}

static long run_sendmsg(struct scene *s, uint64_t deadline_ns)
{
    struct iovec iov = { eight, 8 };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    return rouse_sendmsg_until(s->fd, &message, 0, deadline_ns);
}

static long run_sendfile(struct scene *s, uint64_t deadline_ns)
{
    int file = memfd_create("bytes", MFD_CLOEXEC);
    off_t offset = 0;
    CHECK(file >= 0 && ftruncate(file, 8) == 0);
    long result = rouse_sendfile_until(s->fd, file, &offset, 8, deadline_ns);
    CHECK(offset == (result > 0 ? result : 0));
    close(file);
    return result;
}

static long run_connect(struct scene *s, uint64_t deadline_ns)
{
    if (s->unix_address.sun_family == AF_UNIX)
        return rouse_connect_until(s->fd, (struct sockaddr *)&s->unix_address,
                                   sizeof s->unix_address, deadline_ns);
    return rouse_connect_until(s->fd, (struct sockaddr *)&s->address, sizeof s->address,
                               deadline_ns);
}

static void open_empty(struct scene *s, enum wire wire)
{
    int ends[2];
    wire_open(wire, ends);
    s->fd = ends[0];
    s->peer = ends[1];
    s->side = RSI_FD_READ;
}

static void serve_bytes(struct scene *s)
{
    EQUALS(write(s->peer, eight, 8), 8);
}

static void open_full(struct scene *s, enum wire wire)
{
    int ends[2];
    const uint64_t most = UINT64_MAX - 1;
    size_t unit = wire == WIRE_UNIX_DATAGRAM || wire == WIRE_SEQPACKET ? 512 : sizeof bytes;
    wire_open(wire, ends);
    s->fd = ends[1];
    s->peer = ends[0];
    s->side = RSI_FD_WRITE;
    if (wire_is_socket(wire))
        set_buffers(s->fd, 4096);
    set_nonblock(s->fd, true);
    if (wire == WIRE_EVENTFD)
        CHECK(write(s->fd, &most, sizeof most) == sizeof most);
    else
        while (unit > 0)
            if (write(s->fd, bytes, unit) < 0)
                unit = unit > 512 ? 512 : unit > 1 ? 1 : 0;
    set_nonblock(s->fd, false);
}

static void serve_drained(struct scene *s)
{
    bool was = is_nonblock(s->peer);
    set_nonblock(s->peer, true);
    while (read(s->peer, bytes, sizeof bytes) > 0)
        ;
    set_nonblock(s->peer, was);
}

static void unix_name(struct sockaddr_un *address)
{
    static unsigned count;
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "rouse-io-%d-%u", getpid(),
             count++);
}

static int listen_any(struct scene *s, enum wire wire, int backlog)
{
    if (wire != WIRE_UNIX)
        return tcp_listen(backlog, &s->address);
    unix_name(&s->unix_address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)&s->unix_address, sizeof s->unix_address) == 0);
    CHECK(listen(fd, backlog) == 0);
    return fd;
}

static int connect_any(const struct scene *s, int flags)
{
    bool is_unix = s->unix_address.sun_family == AF_UNIX;
    int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    CHECK(fd >= 0);
    int result =
        is_unix ? connect(fd, (const struct sockaddr *)&s->unix_address, sizeof s->unix_address)
                : connect(fd, (const struct sockaddr *)&s->address, sizeof s->address);
    CHECK(result == 0 || (flags & SOCK_NONBLOCK) != 0);
    return fd;
}

static void open_listener(struct scene *s, enum wire wire)
{
    s->fd = listen_any(s, wire, 8);
    s->peer = -1;
    s->side = RSI_FD_READ;
}

static void serve_connection(struct scene *s)
{
    s->peer = connect_any(s, 0);
}

/* A full backlog: TCP drops SYNs, and connects to a unix socket are refused for lack of room. */
static void open_unconnected(struct scene *s, enum wire wire)
{
    s->peer = listen_any(s, wire, 0);
    for (s->other_count = 0; s->other_count < 3; s->other_count++)
        s->others[s->other_count] = connect_any(s, SOCK_NONBLOCK);
    s->fd = socket(wire == WIRE_UNIX ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s->fd >= 0);
    s->side = RSI_FD_WRITE;
}

/*
 * Some entries of the backlog never became connections, so accept everything until ours is there.
 */
static void serve_backlog(struct scene *s)
{
    struct pollfd ours = { .fd = s->fd, .events = POLLOUT };
    set_nonblock(s->peer, true);
    do {
        int fd = accept4(s->peer, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            close(fd);
    } while (is_awaited(s->fd, RSI_FD_WRITE) && poll(&ours, 1, 1) <= 0);
}

#define W(wire) (1u << (wire))
#define READABLE (W(WIRES) - 1)
#define SOCKETS (W(WIRE_PIPE) - 1)
/* UDP is never full: the kernel drops what the receiver has no room for. */
#define FILLABLE (READABLE & ~W(WIRE_UDP))
#define LISTENING (W(WIRE_TCP) | W(WIRE_UNIX))

static const struct call calls[] = {
    { "read", run_read, open_empty, serve_bytes, READABLE },
    { "readv", run_readv, open_empty, serve_bytes, READABLE },
    { "recv", run_recv, open_empty, serve_bytes, SOCKETS },
    { "recv all", run_recv_all, open_empty, serve_bytes, SOCKETS },
    { "peek", run_peek, open_empty, serve_bytes, SOCKETS },
    { "recvmsg", run_recvmsg, open_empty, serve_bytes, SOCKETS },
    { "accept", run_accept, open_listener, serve_connection, LISTENING },
    { "write", run_write, open_full, serve_drained, FILLABLE },
    { "writev", run_writev, open_full, serve_drained, FILLABLE & ~W(WIRE_EVENTFD) },
    { "send", run_send, open_full, serve_drained, FILLABLE &SOCKETS },
    { "sendmsg", run_sendmsg, open_full, serve_drained, FILLABLE &SOCKETS },
    { "sendfile", run_sendfile, open_full, serve_drained,
      W(WIRE_TCP) | W(WIRE_UNIX) | W(WIRE_PIPE) },
    { "connect", run_connect, open_unconnected, serve_backlog, LISTENING },
};

static void scene_close(struct scene *s, bool is_closed)
{
    if (!is_closed)
        EQUALS(rouse_close(s->fd), 0);
    if (s->peer >= 0 && s->peer != s->fd)
        (void)rouse_close(s->peer);
    while (s->other_count > 0)
        close(s->others[--s->other_count]);
}

/* One call made by a thread of some kind. */
struct attempt {
    const struct call *call;
    struct scene scene;
    uint64_t deadline_ns;
    long result;
};

static void attempt_main(void *arg, unsigned index)
{
    struct attempt *a = arg;
    (void)index;
    do
        a->result = a->call->run(&a->scene, a->deadline_ns);
    /* A full socket may have a little room a moment later, when TCP has moved some data on. */
    while (a->result > 0 && a->scene.side == RSI_FD_WRITE &&
           !rsi_load_acquire(&a->scene.is_served));
}

static void serve(struct attempt *a)
{
    rsi_store_release(&a->scene.is_served, 1);
    a->call->serve(&a->scene);
}

static void check_success(struct attempt *a)
{
    if (a->call->run == run_accept) {
        CHECK(a->result >= 0);
        EQUALS(rouse_close((int)a->result), 0);
    } else {
        EQUALS(a->result, a->call->run == run_connect ? 0 : 8);
    }
}

/*
 * Single attempts, until one finds what was sent. On a busy machine the first may come too early: the loopback device
 * delivers from a softirq, which may run after the sender's call has returned, and a worker whose ring received the data
 * may need more than the 1 ms that an attempt waits for its answer (io.h).
 */
static void attempt_until_arrived(struct attempt *a, enum crew_kind kind)
{
    a->deadline_ns = 0;
    do
        crew_run(kind, 1, attempt_main, a);
    while (a->result == -ETIMEDOUT);
}

static void past_deadline(struct attempt *a, enum crew_kind kind)
{
    for (a->deadline_ns = 0; a->deadline_ns < 2; a->deadline_ns++) {
        crew_run(kind, 1, attempt_main, a);
        /* A connect that gave up goes on in the kernel. */
        bool goes_on = a->call->run == run_connect && a->scene.address.sin_family == AF_INET;
        EQUALS(a->result, goes_on && a->deadline_ns > 0 ? -EALREADY : -ETIMEDOUT);
    }
    if (a->call->run != run_connect && a->call->run != run_accept) {
        serve(a);
        attempt_until_arrived(a, kind);
        if (a->call->run == run_peek) /* whether an event has come yet or not */
            crew_run(kind, 1, attempt_main, a);
        check_success(a);
    }
    scene_close(&a->scene, false);
}

static void near_deadline(struct attempt *a, enum crew_kind kind)
{
    a->deadline_ns = rouse_now_ns() + 2 * MS;
    crew_run(kind, 1, attempt_main, a);
    EQUALS(a->result, -ETIMEDOUT);
    CHECK(rouse_now_ns() >= a->deadline_ns);
    CHECK(!is_awaited(a->scene.fd, a->scene.side));
    scene_close(&a->scene, false);
}

static struct rouse_thread *start(struct crew *crew, struct attempt *a, enum crew_kind kind)
{
    struct rouse_thread *thread = crew_add(crew, kind, attempt_main, a);
    UNTIL(is_awaited(a->scene.fd, a->scene.side));
    return thread;
}

static void success(struct attempt *a, enum crew_kind kind)
{
    static struct crew crew;
    (void)start(&crew, a, kind);
    serve(a);
    crew_join(&crew);
    check_success(a);
    scene_close(&a->scene, false);
}

static void cancel(struct attempt *a, enum crew_kind kind)
{
    static struct crew crew;
    EQUALS(rouse_thread_cancel(start(&crew, a, kind)), 0);
    crew_join(&crew);
    EQUALS(a->result, -ECANCELED);
    CHECK(!is_awaited(a->scene.fd, a->scene.side));
    scene_close(&a->scene, false);
}

static void close_it(void *arg, unsigned index)
{
    (void)index;
    EQUALS(rouse_close(((struct scene *)arg)->fd), 0);
}

static void close_by(struct attempt *a, enum crew_kind kind, enum crew_kind closer)
{
    static struct crew crew;
    (void)start(&crew, a, kind);
    crew_run(closer, 1, close_it, &a->scene);
    crew_join(&crew);
    EQUALS(a->result, -EBADF);
    CHECK(!is_awaited(a->scene.fd, a->scene.side));
    scene_close(&a->scene, true);
}

static void close_by_user(struct attempt *a, enum crew_kind kind)
{
    close_by(a, kind, CREW_USER);
}

static void close_by_kernel(struct attempt *a, enum crew_kind kind)
{
    close_by(a, kind, CREW_KERNEL);
}

static void close_by_foreign(struct attempt *a, enum crew_kind kind)
{
    close_by(a, kind, CREW_FOREIGN);
}

/* Apply act to every call on every wire by every kind of thread. */
static void try_all(const char *name, void (*act)(struct attempt *, enum crew_kind))
{
    for (size_t i = 0; i < LENGTH(calls); i++)
        for (enum wire wire = 0; wire < WIRES; wire++)
            for (enum crew_kind kind = 0; kind < KINDS; kind++) {
                if ((calls[i].wires & W(wire)) == 0)
                    continue;
                struct attempt a = { .call = &calls[i], .deadline_ns = ROUSE_FOREVER };
                DOING("%s: %s on %s by a %s thread", name, calls[i].name, wire_names[wire],
                      kind_names[kind]);
                calls[i].open(&a.scene, wire);
                act(&a, kind);
            }
}

#define TRY_ALL(act) \
    static void ends_by_##act(void **state) \
    { \
        (void)state; \
        try_all(#act, act); \
    }
TRY_ALL(success)
TRY_ALL(past_deadline)
TRY_ALL(near_deadline)
TRY_ALL(cancel)
TRY_ALL(close_by_user)
TRY_ALL(close_by_kernel)
TRY_ALL(close_by_foreign)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_by_success),          cmocka_unit_test(ends_by_past_deadline),
        cmocka_unit_test(ends_by_near_deadline),    cmocka_unit_test(ends_by_cancel),
        cmocka_unit_test(ends_by_close_by_user),    cmocka_unit_test(ends_by_close_by_kernel),
        cmocka_unit_test(ends_by_close_by_foreign),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
