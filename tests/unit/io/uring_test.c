/* SPDX-License-Identifier: MIT */
/*
 * uring_test.c - failures that only rings can have: running out of buffers, buffers that stay in
 * use, a worker that does not reap completions, and operations that are stopped without need.
 */
#include "io_test.h"

#include "io/uring/ring.h"
#include "obs/store.h"

#define STREAMS 96
#define PIECES 4
#define PIECE_BYTES 1500

struct stream {
    int ends[2];
    uint32_t seen; /* bytes read, and correct */
    uint32_t goes_on;
};

static char byte_at(unsigned index, size_t at)
{
    return (char)(at * 7 + index);
}

/* Reads a little, so that a ring receives from then on. Reads the rest on request. */
static void read_stream(void *arg, unsigned index)
{
    struct stream *stream = &((struct stream *)arg)[index];
    char bytes[PIECES * PIECE_BYTES];
    EQUALS(rouse_read(stream->ends[0], bytes, sizeof bytes), 1);
    EQUALS(rouse_read(stream->ends[0], bytes, sizeof bytes), 1);
    rsi_store_release(&stream->seen, 2);
    while (!rsi_load_acquire(&stream->goes_on))
        CHECK(rouse_sleep(1000000) == 0);
    for (;;) {
        ssize_t got = rouse_read(stream->ends[0], bytes, sizeof bytes);
        if (got == 0)
            break;
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++, stream->seen++)
            CHECK(bytes[i] == byte_at(index, stream->seen - 2));
    }
    EQUALS(stream->seen, 2 + PIECES * PIECE_BYTES);
}

static void say(struct stream *stream, unsigned index, unsigned piece)
{
    char bytes[PIECE_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_at(index, piece * sizeof bytes + i);
    EQUALS(send(stream->ends[1], bytes, sizeof bytes, 0), (long)sizeof bytes);
}

/*
 * More data comes than the initial buffers hold, and no thread reads: no byte is lost or out of
 * order.
 */
static void buffers_are_used_up(void **state)
{
    (void)state;
    static struct stream streams[STREAMS];
    static struct crew crew;
    for (unsigned i = 0; i < STREAMS; i++)
        wire_open(WIRE_TCP, streams[i].ends);
    for (unsigned i = 0; i < STREAMS; i++)
        (void)crew_add(&crew, CREW_USER, read_stream, streams);
    for (unsigned i = 0; i < STREAMS; i++) {
        UNTIL(is_awaited(streams[i].ends[0], RSI_FD_READ));
        EQUALS(send(streams[i].ends[1], "1", 1, 0), 1);
        UNTIL(rsi_load_relaxed(&rsi_fdtable_peek(streams[i].ends[0])->sides[0].edges) > 0);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        UNTIL(is_awaited(streams[i].ends[0], RSI_FD_READ));
        EQUALS(send(streams[i].ends[1], "2", 1, 0), 1);
        UNTIL(rsi_load_acquire(&streams[i].seen) == 2);
    }
    for (unsigned piece = 0; piece < PIECES; piece++)
        for (unsigned i = 0; i < STREAMS; i++)
            say(&streams[i], i, piece);
    for (unsigned i = 0; i < STREAMS; i++) {
        CHECK(shutdown(streams[i].ends[1], SHUT_WR) == 0);
        rsi_store_release(&streams[i].goes_on, 1);
    }
    crew_join(&crew);
    for (unsigned i = 0; i < STREAMS; i++) {
        streams[i].seen = streams[i].goes_on = 0;
        wire_close(streams[i].ends);
    }
}

static void wait_and_leave(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1);
}

static size_t resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return (size_t)resident * RSI_PAGE;
}

/* Closed with unread bytes, again and again: the buffers return to the pool. */
static void unread_buffers_come_back(void **state)
{
    (void)state;
    static struct crew crew;
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    size_t before = 0;
    int ends[2];
    for (unsigned i = 0; i < 3000; i++) {
        if (i == 1000)
            before = resident_bytes();
        wire_open(WIRE_TCP, ends);
        for (unsigned end = 0; end < 2; end++) /* no port is to stay in use */
            CHECK(setsockopt(ends[end], SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
        (void)crew_add(&crew, CREW_USER, wait_and_leave, &ends[0]);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        EQUALS(send(ends[1], "12345", 5, 0), 5);
        crew_join(&crew);
        EQUALS(send(ends[1], "12345", 5, 0), 5);
        wire_close(ends);
    }
    CHECK(resident_bytes() < before + 3500000); /* 1,700 lost buffers would touch as much */
}

static struct {
    int stale[2], fresh[2];
} reuse;

static void *read_until_closed(void *arg)
{
    char byte;
    EQUALS(rouse_read(reuse.stale[0], &byte, 1), -EBADF);
    return arg;
}

/*
 * The reader runs, and waits, before its worker has a scheduling round: the worker has only these
 * two threads to run.
 */
static void close_and_reuse(void *arg, unsigned index)
{
    struct rouse_thread *reader;
    int number = reuse.stale[0];
    (void)arg, (void)index;
    EQUALS(rouse_thread_create(&reader, NULL, read_until_closed, NULL), 0);
    while (!is_awaited(number, RSI_FD_READ))
        rouse_thread_yield();
    EQUALS(rouse_close(number), 0);
    EQUALS(dup2(reuse.fresh[0], number), number);
    EQUALS(rouse_thread_join(reader, NULL), 0);
}

/*
 * A receive was to be submitted in the next round. By then its number belongs to another
 * descriptor.
 */
static void a_number_reused_before_the_round(void **state)
{
    (void)state;
    static struct crew crew;
    int left = 0;
    wire_open(WIRE_TCP, reuse.stale);
    reuse.stale[0] = out_of_reach(reuse.stale[0]);
    wire_open(WIRE_TCP, reuse.fresh);
    EQUALS(send(reuse.fresh[1], "12345", 5, 0), 5);
    (void)crew_add(&crew, CREW_USER, close_and_reuse, NULL);
    crew_join(&crew);
    CHECK(ioctl(reuse.stale[0], FIONREAD, &left) == 0);
    EQUALS(left, 5);
    wire_close(reuse.stale);
    wire_close(reuse.fresh);
}

static struct {
    int held[2], other[2];
    uint32_t began, is_over, got;
} stuck;

static void read_held(void *arg, unsigned index)
{
    char byte;
    (void)arg, (void)index;
    for (uint32_t i = 1; i <= 3; i++) {
        EQUALS(rouse_read(stuck.held[0], &byte, 1), 1);
        rsi_store_release(&stuck.got, i);
    }
}

static void hold_the_worker(void *arg, unsigned index)
{
    (void)arg, (void)index;
    rsi_store_release(&stuck.began, 1);
    while (!rsi_load_acquire(&stuck.is_over))
        rsi_cpu_relax();
}

/* On the worker that was added, and by its ring. */
static void converse(void *arg, unsigned index)
{
    char byte = 0;
    (void)arg;
    for (unsigned i = 0; i < 100; i++) {
        if (index == 0)
            EQUALS(rouse_send(stuck.other[0], &byte, 1, 0), 1);
        EQUALS(rouse_recv(stuck.other[index], &byte, 1, 0), 1);
        if (index != 0)
            EQUALS(rouse_send(stuck.other[1], &byte, 1, 0), 1);
    }
}

/*
 * While a thread holds its worker, the other threads run elsewhere. So do those that wait for completions
 * of that worker's ring.
 */
static void a_ring_does_not_wait_for_its_worker(void **state)
{
    (void)state;
    static struct crew held, others;
    if (rouse_worker_count() != 1)
        return; /* otherwise the test cannot know whose ring it is */
    wire_open(WIRE_TCP, stuck.held);
    wire_open(WIRE_TCP, stuck.other);
    (void)crew_add(&held, CREW_USER, read_held, NULL);
    for (uint32_t i = 1; i <= 2; i++) { /* the ring delivers the second, as its receive goes on */
        UNTIL(is_awaited(stuck.held[0], RSI_FD_READ));
        EQUALS(send(stuck.held[1], "1", 1, 0), 1);
        UNTIL(rsi_load_acquire(&stuck.got) == i);
    }
    UNTIL(is_awaited(stuck.held[0], RSI_FD_READ));
    (void)crew_add(&held, CREW_USER, hold_the_worker, NULL);
    UNTIL(rsi_load_acquire(&stuck.began));
    EQUALS(send(stuck.held[1], "1", 1, 0), 1);
    for (unsigned i = 0; i < 2; i++)
        (void)crew_add(&others, CREW_USER, converse, NULL);
    crew_join(&others);
    UNTIL(rsi_load_acquire(&stuck.got) == 3);
    rsi_store_release(&stuck.is_over, 1);
    crew_join(&held);
    EQUALS(stuck.got, 3);
    wire_close(stuck.held);
    wire_close(stuck.other);
}

static int asked[2];

static void *read_one(void *arg)
{
    char byte;
    EQUALS(rouse_read(asked[0], &byte, 1), 1);
    EQUALS(rouse_read(asked[0], &byte, 1), 0);
    return arg;
}

static void *attempt(void *arg)
{
    char byte;
    EQUALS(rouse_read_until(asked[0], &byte, 1, 1), -ETIMEDOUT);
    EQUALS(rouse_recv(asked[0], &byte, 1, MSG_DONTWAIT), -EAGAIN);
    return arg;
}

/*
 * One cluster's worker receives a stream for threads of another cluster, which has workers of its
 * own.
 */
struct abroad {
    struct rouse_cluster *clusters[2];
    struct rouse_thread *owner;
};

static struct rouse_thread *start_in(struct rouse_cluster *cluster, void *(*fn)(void *))
{
    struct rouse_thread *thread;
    EQUALS(
        rouse_thread_create(&thread, &(struct rouse_thread_attr){ .cluster = cluster }, fn, NULL),
        0);
    return thread;
}

static void abroad_begin(struct abroad *abroad, void *(*owner)(void *))
{
    for (unsigned i = 0; i < 2; i++)
        EQUALS(rouse_cluster_create(&abroad->clusters[i], NULL), 0);
    wire_open(WIRE_TCP, asked);
    abroad->owner = start_in(abroad->clusters[0], owner);
    UNTIL(is_awaited(asked[0], RSI_FD_READ));
}

static void abroad_end(struct abroad *abroad)
{
    EQUALS(rouse_thread_join(abroad->owner, NULL), 0);
    wire_close(asked);
    for (unsigned i = 0; i < 2; i++)
        UNTIL(rouse_cluster_destroy(abroad->clusters[i]) == 0);
}

/*
 * An attempt on a stream that another worker's ring receives. That worker sleeps and must be asked.
 */
static void a_sleeping_worker_is_asked(void **state)
{
    (void)state;
    struct abroad abroad;
    abroad_begin(&abroad, read_one);
    for (unsigned i = 0; i < 100; i++)
        EQUALS(rouse_thread_join(start_in(abroad.clusters[1], attempt), NULL), 0);
    EQUALS(send(asked[1], "1", 1, 0), 1);
    CHECK(shutdown(asked[1], SHUT_WR) == 0);
    abroad_end(&abroad);
}

#define BULK_BYTES 300000

static int bulk[2];

static void *send_bulk(void *arg)
{
    static char bytes[BULK_BYTES];
    for (size_t at = 0; at < sizeof bytes;) {
        ssize_t sent = rouse_write(bulk[1], bytes + at, sizeof bytes - at);
        CHECK(sent > 0);
        at += (size_t)sent;
    }
    return arg;
}

/* The ring has given up the stream, which was read to its end: there is nothing to report. */
static void read_bulk(void *arg, unsigned index)
{
    static char bytes[20000];
    struct rouse_thread *sender;
    (void)arg, (void)index;
    EQUALS(rouse_thread_create(&sender, NULL, send_bulk, NULL), 0);
    for (size_t at = 0; at < BULK_BYTES;) {
        ssize_t got = rouse_read(bulk[0], bytes, sizeof bytes);
        CHECK(got > 0);
        at += (size_t)got;
    }
    EQUALS(rouse_thread_join(sender, NULL), 0);
    struct pollfd one = { .fd = bulk[0], .events = POLLIN };
    EQUALS(rouse_poll(&one, 1, 0), 0);
    EQUALS(rouse_poll(&one, 1, 2), 0);
    EQUALS(rouse_recv(bulk[0], bytes, 1, MSG_DONTWAIT), -EAGAIN);
}

static void a_stream_read_to_its_end_is_not_ready(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 50; i++) {
        wire_open(WIRE_TCP, bulk);
        (void)crew_add(&crew, CREW_USER, read_bulk, NULL);
        crew_join(&crew);
        wire_close(bulk);
    }
}

static void *hold_until_told(void *arg)
{
    char byte;
    EQUALS(rouse_read(asked[0], &byte, 1), 1);
    rsi_store_release(&stuck.is_over, 2);
    while (rsi_load_acquire(&stuck.is_over) != 3)
        rsi_cpu_relax();
    return arg;
}

/* A thread keeps the ring's worker for good. An attempt elsewhere ends all the same. */
static void an_attempt_ends_though_the_worker_is_stuck(void **state)
{
    (void)state;
    struct abroad abroad;
    abroad_begin(&abroad, hold_until_told);
    EQUALS(send(asked[1], "1", 1, 0), 1);
    UNTIL(rsi_load_acquire(&stuck.is_over) == 2);
    EQUALS(rouse_thread_join(start_in(abroad.clusters[1], attempt), NULL), 0);
    rsi_store_release(&stuck.is_over, 3);
    abroad_end(&abroad);
}

#define FLOOD 6000u /* submission entries; the completion queue has room for 4,096 */
#define AMID 32u

static int amid[AMID][2];

static void read_amid(void *arg, unsigned index)
{
    char byte;
    (void)arg;
    EQUALS(rouse_read(amid[index][0], &byte, 1), 1);
    EQUALS(byte, byte_at(index, 1));
}

/* Inside the ring's lock, so that the completion queue is not emptied meanwhile. */
static void flood(void *arg, unsigned index)
{
    struct rsi_ring *ring;
    (void)arg, (void)index;
    while ((ring = rsi_ring_self()) ==
           NULL) /* on an earlier test's spare worker, which leaves when it is idle */
        CHECK(rouse_sleep(1000000) == 0);
    rsi_ring_enter(ring);
    for (uint32_t i = 0; i < FLOOD; i++) {
        struct io_uring_sqe *entry = rsi_ring_entry(ring, NULL, RSI_RING_CANCEL);
        CHECK(entry != NULL);
        entry->opcode = IORING_OP_NOP;
    }
    CHECK((rsi_load_relaxed(ring->sq_flags) & IORING_SQ_CQ_OVERFLOW) != 0);
    rsi_ring_leave(ring);
    for (unsigned i = 0; i < AMID; i++) {
        char byte = byte_at(i, 1);
        EQUALS(send(amid[i][1], &byte, 1, 0), 1);
    }
    rsi_ring_round(true);
    EQUALS(rsi_load_relaxed(ring->sq_flags) & IORING_SQ_CQ_OVERFLOW, 0);
    CHECK(!rsi_ring_has_entries(ring));
}

/*
 * More requests complete than the completion queue holds: none is lost, and none is left for later.
 */
static void completions_overflow(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < AMID; i++) {
        wire_open(WIRE_TCP, amid[i]);
        (void)crew_add(&crew, CREW_USER, read_amid, NULL);
        UNTIL(is_awaited(amid[i][0], RSI_FD_READ));
    }
    (void)crew_add(&crew, CREW_USER, flood, NULL);
    crew_join(&crew);
    for (unsigned i = 0; i < AMID; i++)
        wire_close(amid[i]);
}

#define SENDERS 16u
#define ATTEMPTS 2000u

static int paths[SENDERS][2];
static uint32_t attempts_that_wait, needless_waits, timeouts, wrong_verdicts;

static void attempt_often(void *unused, unsigned index)
{
    const struct rsi_store_thread *slot = rsi_waiter(rsi_self())->record.slot;
    char bytes[64] = { 0 };
    long sent;
    (void)unused;
    CHECK(slot);
    for (unsigned i = 0; i < ATTEMPTS / SCALE; i++) {
        uint64_t before = rsi_load_relaxed(&slot->waits);
        sent = rouse_send_until(paths[index][0], "!", 1, 0, 0);
        uint64_t waits = rsi_load_relaxed(&slot->waits) - before;
        CHECK(sent == 1 || sent == -ETIMEDOUT);
        rsi_fetch_add_relaxed(&attempts_that_wait, waits > 0);
        rsi_fetch_add_relaxed(&needless_waits, waits > 1 ? (uint32_t)waits - 1 : 0);
        while (i % 16 == 0 && recv(paths[index][1], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        rouse_thread_yield();
    }
    do {
        rouse_thread_yield();
        sent = rouse_send_until(paths[index][0], bytes, sizeof bytes, 0, 0);
    } while (sent > 0);
    EQUALS(sent, -ETIMEDOUT);
}

/* On a connection that is full. */
static void attempt_in_vain(void *unused, unsigned index)
{
    const struct rsi_store_thread *slot = rsi_waiter(rsi_self())->record.slot;
    (void)unused;
    for (unsigned i = 0; i < ATTEMPTS / 10 / SCALE; i++) {
        uint64_t before = rsi_load_relaxed(&slot->waits);
        long sent = rouse_send_until(paths[index][0], "!", 1, 0, 0);
        struct rouse_wait_record last;
        CHECK(sent == 1 || sent == -ETIMEDOUT);
        rouse_obs_last_wait(&last);
        if (sent == -ETIMEDOUT && rsi_load_relaxed(&slot->waits) == before + 1)
            rsi_fetch_add_relaxed(
                last.verdict == ROUSE_VERDICT_TIMEOUT ? &timeouts : &wrong_verdicts, 1u);
        rouse_thread_yield();
        EQUALS(rouse_thread_cancel(rsi_self()), 0);
        sent = rouse_send_until(paths[index][0], "!", 1, 0, 0);
        CHECK(sent == -ECANCELED || (sent == 1 && rouse_thread_cancel_pending()));
        while (rouse_thread_cancel_pending())
            (void)rouse_sleep(1);
    }
}

/*
 * It is over by the round's end, whether it sent something or not, so it is neither stopped nor waited for again. Only
 * an attempt that is taken back from a worker without a processor waits again, on another worker.
 */
static void an_attempt_to_send_waits_once(void **state)
{
    (void)state;
    static struct crew crew;
    EQUALS(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    rsi_store_relaxed(&attempts_that_wait, 0u);
    rsi_store_relaxed(&needless_waits, 0u);
    rsi_store_relaxed(&timeouts, 0u);
    rsi_store_relaxed(&wrong_verdicts, 0u);
    for (unsigned i = 0; i < SENDERS; i++) {
        wire_open(WIRE_TCP, paths[i]);
        set_buffers(paths[i][0], 4096);
        set_buffers(paths[i][1], 4096);
    }
    crew_add_many(&crew, CREW_USER, SENDERS, attempt_often, NULL);
    crew_join(&crew);
    uint32_t waited = rsi_load_relaxed(&attempts_that_wait);
    CHECK(waited > 0);
    CHECK(rsi_load_relaxed(&needless_waits) * 20 <= waited);
    crew_add_many(&crew, CREW_USER, SENDERS, attempt_in_vain, NULL);
    crew_join(&crew);
    CHECK(rsi_load_relaxed(&wrong_verdicts) * 20 <= rsi_load_relaxed(&timeouts));
    CHECK(rsi_load_relaxed(&timeouts) > 0);
    for (unsigned i = 0; i < SENDERS; i++)
        wire_close(paths[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_used_up),
        cmocka_unit_test(unread_buffers_come_back),
        cmocka_unit_test(a_ring_does_not_wait_for_its_worker),
        cmocka_unit_test(a_number_reused_before_the_round),
        cmocka_unit_test(a_sleeping_worker_is_asked),
        cmocka_unit_test(a_stream_read_to_its_end_is_not_ready),
        cmocka_unit_test(an_attempt_ends_though_the_worker_is_stuck),
        cmocka_unit_test(completions_overflow),
        cmocka_unit_test(an_attempt_to_send_waits_once),
    };
    CHECK(setenv("ROUSE_IO", "uring", 1) == 0);
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
