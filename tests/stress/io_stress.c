/* SPDX-License-Identifier: MIT */
/*
 * io_stress.c - many conversations at once on sockets and pipes of every sort, between threads of
 * every kind, under deadlines, cancels, resets, shutdowns and closes by others.
 *
 * Each line has a writer and a reader at one end and an echo at the other. The bytes read must be
 * those that were written on this line, byte for byte. A line that was not killed must carry all of
 * them. Much of the waiting has no deadline: a lost wake-up is a hang, which the watchdog reports.
 * At the end no descriptor is left open and no thread is listed.
 *
 * When another thread closes a descriptor, its number must not be given out again before the
 * notified threads have turned away: as in POSIX, a call about to be made could meet the next
 * descriptor. A lock keeps opening out until then. The library itself opens a file in /proc for a moment when
 * a kernel thread ends (obs/cpu_time.h), which takes the lowest free number: the lines' are higher ones.
 *
 * The environment sets ROUSE_SEED (printed) and ROUSE_SCALE (rounds in percent). Runs with 1, 2 and 4
 * workers, or with ROUSE_WORKERS.
 */
#include "unit/io/io_test.h"

#include <sys/uio.h>

#define LINES 24
#define PIECE 6000

enum death { DEATH_NONE, DEATH_SHUTDOWN, DEATH_RESET, DEATH_CLOSE_NEAR, DEATH_CLOSE_FAR, DEATHS };

struct line {
    uint64_t random; /* the keeper's */
    uint64_t seed;   /* the users' */
    enum wire wire;
    /* the ends of writer and reader, and of the echo; for a pipe: written and read */
    int near, far;
    uint32_t salt;
    size_t total, written, read;
    uint32_t is_doomed;                 /* set before it is killed */
    uint32_t users;                     /* that still run */
    bool is_near_closed, is_far_closed; /* the keeper's */
};

static struct {
    struct rouse_rwlock opening; /* read lock: to open; write lock: to close a descriptor in use */
    uint32_t rounds;
    uint32_t deaths[DEATHS], cancels, cancelled, timeouts;
} town;

static uint64_t draw(uint64_t *random, uint64_t below)
{
    return rsi_random_next(random) % below;
}

static char byte_at(const struct line *line, size_t offset)
{
    return (char)(offset * 31 + (offset >> 8) * 7 + line->salt);
}

static uint64_t some_deadline(uint64_t *random)
{
    switch (draw(random, 4)) {
    case 0: return 0;
    case 1: return rouse_now_ns() + draw(random, 300000);
    default: return ROUSE_FOREVER;
    }
}

static ssize_t read_somehow(int fd, char *bytes, size_t count, uint64_t *random)
{
    struct iovec iov[2] = { { bytes, count / 2 }, { bytes + count / 2, count - count / 2 } };
    struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
    uint64_t deadline_ns = some_deadline(random);
    switch (draw(random, 4)) {
    case 0: return rouse_read_until(fd, bytes, count, deadline_ns);
    case 1: return rouse_readv_until(fd, iov, 2, deadline_ns);
    case 2: {
        ssize_t got = rouse_recv_until(fd, bytes, count, 0, deadline_ns);
        return got != -ENOTSOCK ? got : rouse_read_until(fd, bytes, count, deadline_ns);
    }
    default: {
        ssize_t got = rouse_recvmsg_until(fd, &message, 0, deadline_ns);
        return got != -ENOTSOCK ? got : rouse_readv_until(fd, iov, 2, deadline_ns);
    }
    }
}

static ssize_t write_somehow(int fd, char *bytes, size_t count, uint64_t *random)
{
    struct iovec iov[2] = { { bytes, count / 2 }, { bytes + count / 2, count - count / 2 } };
    struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
    uint64_t deadline_ns = some_deadline(random);
    switch (draw(random, 4)) {
    case 0: return rouse_write_until(fd, bytes, count, deadline_ns);
    case 1: return rouse_writev_until(fd, iov, 2, deadline_ns);
    case 2: {
        ssize_t sent = rouse_send_until(fd, bytes, count, 0, deadline_ns);
        return sent != -ENOTSOCK ? sent : rouse_write_until(fd, bytes, count, deadline_ns);
    }
    default: {
        ssize_t sent = rouse_sendmsg_until(fd, &message, 0, deadline_ns);
        return sent != -ENOTSOCK ? sent : rouse_writev_until(fd, iov, 2, deadline_ns);
    }
    }
}

/* Whether to go on after a failure. Errors occur only on lines that have been killed. */
static bool goes_on(const struct line *line, ssize_t result)
{
    if (result == -ETIMEDOUT || result == -ECANCELED) {
        rsi_fetch_add_relaxed(result == -ETIMEDOUT ? &town.timeouts : &town.cancelled, 1u);
        return true;
    }
    CHECK(rsi_load_acquire(&line->is_doomed));
    if (result != -EBADF && result != -EPIPE && result != -ECONNRESET)
        EQUALS(result, 0);
    return false;
}

static bool keeps_boundaries(const struct line *line)
{
    return line->wire == WIRE_SEQPACKET;
}

static void user_leaves(struct line *line)
{
    rsi_fetch_add_acq_rel(&line->users, -1u);
}

static void write_line(void *arg, unsigned index)
{
    struct line *line = arg;
    uint64_t random = line->seed + 1;
    char bytes[PIECE];
    (void)index;
    while (line->written < line->total) {
        size_t count = 1 + draw(&random, PIECE);
        if (count > line->total - line->written)
            count = line->total - line->written;
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(line, line->written + i);
        ssize_t sent = write_somehow(line->near, bytes, count, &random);
        if (sent <= 0 && !goes_on(line, sent))
            break;
        line->written += sent > 0 ? (size_t)sent : 0;
    }
    user_leaves(line);
}

static void read_line(void *arg, unsigned index)
{
    struct line *line = arg;
    uint64_t random = line->seed + 2;
    char bytes[PIECE];
    int fd = line->wire == WIRE_PIPE ? line->far : line->near;
    (void)index;
    while (line->read < line->total) {
        size_t count = keeps_boundaries(line) ? PIECE : 1 + draw(&random, PIECE);
        ssize_t got = read_somehow(fd, bytes, count, &random);
        if (got <= 0 && !goes_on(line, got))
            break;
        for (ssize_t i = 0; i < got; i++, line->read++)
            CHECK(bytes[i] == byte_at(line, line->read));
    }
    user_leaves(line);
}

static void echo_line(void *arg, unsigned index)
{
    struct line *line = arg;
    uint64_t random = line->seed + 3;
    char bytes[PIECE];
    ssize_t got = 1, sent = 1;
    (void)index;
    for (size_t echoed = 0; echoed < line->total && got != 0;) {
        got = read_somehow(line->far, bytes, PIECE, &random);
        if (got <= 0 && !goes_on(line, got))
            break;
        for (ssize_t at = 0; at<got; at += sent> 0 ? sent : 0) {
            sent = write_somehow(line->far, bytes + at, (size_t)(got - at), &random);
            if (sent <= 0 && !goes_on(line, sent))
                goto out;
        }
        echoed += got > 0 ? (size_t)got : 0;
    }
out:
    user_leaves(line);
}

static void open_line(struct line *line)
{
    static const enum wire wires[] = { WIRE_TCP, WIRE_TCP, WIRE_UNIX, WIRE_SEQPACKET, WIRE_PIPE };
    int ends[2];
    line->wire = wires[draw(&line->random, LENGTH(wires))];
    line->salt = (uint32_t)draw(&line->random, 256);
    line->seed = rsi_random_next(&line->random);
    line->total = draw(&line->random, 4) == 0 ? 200000 : draw(&line->random, 20000);
    line->written = line->read = 0;
    line->is_doomed = 0;
    line->is_near_closed = line->is_far_closed = false;
    rouse_rwlock_read_lock(&town.opening);
    wire_open(line->wire, ends);
    line->near = out_of_reach(ends[1]);
    line->far = out_of_reach(ends[0]);
    rouse_rwlock_read_unlock(&town.opening);
    /*
     * TCP's receive buffers stay large: with tiny ones and traffic both ways, Linux can shrink a
     * window below the data in flight, and then neither side accepts the other's updates.
     */
    const int bytes = 8192;
    if (wire_is_socket(line->wire) && draw(&line->random, 2) == 0)
        for (int i = 0; i < 2; i++)
            CHECK(setsockopt(i == 0 ? line->near : line->far, SOL_SOCKET, SO_SNDBUF, &bytes,
                             sizeof bytes) == 0);
}

/*
 * Close a descriptor in use so that its number stays free until all of its users have turned away.
 */
static void close_under_them(struct line *line, bool is_near)
{
    bool is_pipe = line->wire == WIRE_PIPE;
    int other = is_near ? line->far : line->near;
    rouse_rwlock_write_lock(&town.opening);
    EQUALS(rouse_close(is_near ? line->near : line->far), 0);
    /* The threads at the other end may be waiting. They are notified in their turn. */
    if (is_pipe)
        EQUALS(rouse_close(other), 0);
    else
        (void)rouse_shutdown(other, SHUT_RDWR);
    while (rsi_load_acquire(&line->users) > 0)
        rouse_thread_yield();
    rouse_rwlock_write_unlock(&town.opening);
    line->is_near_closed = is_near || is_pipe;
    line->is_far_closed = !is_near || is_pipe;
}

static void kill_line(struct line *line, enum death death)
{
    const struct linger hard = { .l_onoff = 1, .l_linger = 0 };
    if (death == DEATH_RESET && line->wire != WIRE_TCP)
        death = DEATH_SHUTDOWN;
    if (death == DEATH_SHUTDOWN && line->wire == WIRE_PIPE)
        death = DEATH_CLOSE_NEAR;
    if (death != DEATH_NONE)
        rsi_store_release(&line->is_doomed, 1);
    rsi_fetch_add_relaxed(&town.deaths[death], 1u);
    if (death == DEATH_RESET)
        CHECK(setsockopt(line->far, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
    /* both ends, since TCP goes on waiting for room at the other end */
    if (death == DEATH_SHUTDOWN) {
        (void)rouse_shutdown(line->far, SHUT_RDWR);
        (void)rouse_shutdown(line->near, SHUT_RDWR);
    } else if (death != DEATH_NONE) {
        close_under_them(line, death == DEATH_CLOSE_NEAR);
    }
}

static enum crew_kind some_kind(uint64_t *random)
{
    uint64_t r = draw(random, 16);
    return r < 13 ? CREW_USER : r < 15 ? CREW_KERNEL : CREW_FOREIGN;
}

/* Kill it or not, after a while in which its users are cancelled now and then. */
static void disturb(struct line *line, struct crew *crew)
{
    enum death death = draw(&line->random, 2) ? DEATH_NONE
                                              : (enum death)draw(&line->random, DEATHS);
    uint64_t while_ns = draw(&line->random, 2000000), end_ns = rouse_now_ns() + while_ns;
    while (rsi_load_acquire(&line->users) > 0 && rouse_now_ns() < end_ns) {
        const struct member *member = &crew->members[draw(&line->random, crew->count)];
        /* A foreign thread's handle ends with it, so foreign threads are not cancelled. */
        if (member->kind != CREW_FOREIGN && rouse_thread_cancel(member->thread) == 0)
            rsi_fetch_add_relaxed(&town.cancels, 1u);
        (void)rouse_sleep(draw(&line->random, 200000));
    }
    kill_line(line, death);
}

static void keep_line(void *arg, unsigned index)
{
    struct line *line = (struct line *)arg + index;
    static struct crew crews[LINES];
    for (uint32_t round = 0; round < town.rounds; round++) {
        struct crew *crew = &crews[index];
        open_line(line);
        bool has_echo = line->wire != WIRE_PIPE;
        line->users = has_echo ? 3 : 2;
        (void)crew_add(crew, some_kind(&line->random), write_line, line);
        (void)crew_add(crew, some_kind(&line->random), read_line, line);
        if (has_echo)
            (void)crew_add(crew, some_kind(&line->random), echo_line, line);
        disturb(line, crew);
        crew_join(crew);
        if (!line->is_doomed)
            CHECK(line->written == line->total && line->read == line->total);
        if (!line->is_near_closed)
            EQUALS(rouse_close(line->near), 0);
        if (!line->is_far_closed)
            EQUALS(rouse_close(line->far), 0);
    }
}

static void conversations(void **state)
{
    (void)state;
    static struct line lines[LINES];
    const char *scale = getenv("ROUSE_SCALE");
    town.rounds = (uint32_t)(100 * (scale ? strtoul(scale, NULL, 10) : 100) / 100 / SCALE) + 1;
    for (unsigned i = 0; i < LINES; i++)
        lines[i].random = seed_of_run() * (2 * i + 1);
    make_epoll_set();
    unsigned before = open_descriptors();
    crew_run(CREW_KERNEL, LINES, keep_line, lines); /* they join pthreads, which blocks a worker */
    EQUALS(open_descriptors(), before);
    CHECK(!rsi_fdtable_has_waiters());
    printf("%u lines, %u rounds; deaths: %u none, %u shutdown, %u reset, %u near, %u far; "
           "%u cancels, %u taken, %u time-outs\n",
           LINES, town.rounds, town.deaths[0], town.deaths[1], town.deaths[2], town.deaths[3],
           town.deaths[4], town.cancels, town.cancelled, town.timeouts);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(conversations) };
    signal(SIGPIPE, SIG_IGN); /* for the pipes */
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
