/* SPDX-License-Identifier: MIT */
/*
 * poll_test.c - rouse_poll by every kind of thread: each requested event wakes it and no other
 * does; deadlines, cancels, closes; pollers and readers of one descriptor.
 */
#include "poll_test.h"

#include <sys/mman.h>
#include <sys/resource.h>

static struct crew crew;

/* An action that makes a descriptor ready, and the events that poll then reports. */
struct happening {
    const char *name;
    enum wire wire;
    int end; /* of the wire that is polled */
    bool is_full;
    short events;
    void (*happen)(const int ends[2]);
    short revents;
};

static void byte_comes(const int ends[2])
{
    EQUALS(send(ends[1], "x", 1, 0), 1);
}

static void pipe_byte_comes(const int ends[2])
{
    put_bytes(ends[1], 1);
}

static void number_comes(const int ends[2])
{
    eventfd_add(ends[1], 1);
}

static void urgent_byte_comes(const int ends[2])
{
    EQUALS(send(ends[1], "u", 1, MSG_OOB), 1);
}

static void peer_ends(const int ends[2])
{
    EQUALS(shutdown(ends[1], SHUT_WR), 0);
}

static void peer_closes(const int ends[2])
{
    EQUALS(rouse_close(ends[1]), 0);
}

static void reader_closes(const int ends[2])
{
    EQUALS(rouse_close(ends[0]), 0);
}

static void reader_drains(const int ends[2])
{
    drain(ends[0]);
}

static const struct happening happenings[] = {
    { "in", WIRE_TCP, 0, false, POLLIN, byte_comes, POLLIN },
    { "in", WIRE_UNIX, 0, false, POLLIN, byte_comes, POLLIN },
    { "in", WIRE_SEQPACKET, 0, false, POLLIN | POLLPRI, byte_comes, POLLIN },
    { "in", WIRE_UNIX_DATAGRAM, 0, false, POLLIN, byte_comes, POLLIN },
    { "in", WIRE_UDP, 0, false, POLLIN, byte_comes, POLLIN },
    { "in", WIRE_PIPE, 0, false, POLLIN, pipe_byte_comes, POLLIN },
    { "in", WIRE_EVENTFD, 0, false, POLLIN, number_comes, POLLIN },
    { "rdnorm", WIRE_TCP, 0, false, POLLRDNORM, byte_comes, POLLRDNORM },
    { "urgent", WIRE_TCP, 0, false, POLLPRI, urgent_byte_comes, POLLPRI },
    { "end of the stream", WIRE_TCP, 0, false, POLLIN, peer_ends, POLLIN },
    { "rdhup", WIRE_TCP, 0, false, POLLRDHUP, peer_ends, POLLRDHUP },
    { "rdhup", WIRE_UNIX, 0, false, POLLRDHUP, peer_ends, POLLRDHUP },
    { "hang-up, unasked", WIRE_PIPE, 0, false, 0, peer_closes, POLLHUP },
    { "hang-up, unasked", WIRE_UNIX, 0, false, 0, peer_closes, POLLHUP },
    { "error, unasked", WIRE_PIPE, 1, true, 0, reader_closes, POLLERR },
    { "room", WIRE_TCP, 1, true, POLLOUT, reader_drains, POLLOUT },
    { "room", WIRE_UNIX, 1, true, POLLOUT | POLLIN, reader_drains, POLLOUT },
    { "room", WIRE_PIPE, 1, true, POLLWRNORM, reader_drains, POLLWRNORM },
};

static void each_event_wakes(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(happenings); i++)
        for (enum crew_kind kind = 0; kind < KINDS; kind++) {
            const struct happening *h = &happenings[i];
            int ends[2];
            wire_open(h->wire, ends);
            DOING("%s on %s by a %s thread", h->name, wire_names[h->wire], kind_names[kind]);
            struct wish wish = WISH(ends[h->end], h->events);
            if (h->is_full)
                fill(ends[1]);
            (void)crew_add(&crew, kind, wish_main, &wish);
            bool is_out = (h->events & (POLLOUT | POLLWRNORM)) != 0;
            /* TCP frees room by itself now and then. */
            UNTIL(is_awaited(wish.fds[0].fd, is_out ? RSI_FD_WRITE : RSI_FD_READ) ||
                  rsi_load_acquire(&wish.is_done)); /* pairs with wish_main */
            h->happen(ends);
            crew_join(&crew);
            EQUALS(wish.result, 1);
            EQUALS(wish.fds[0].revents, h->revents);
            CHECK(!is_awaited(wish.fds[0].fd, RSI_FD_READ));
            CHECK(!is_awaited(wish.fds[0].fd, RSI_FD_WRITE));
            wire_close(ends);
        }
}

/* Events that this thread did not ask for: it sleeps on. Others that asked for them wake. */
static void other_events_do_not_wake(void **state)
{
    (void)state;
    int ends[2];
    tcp_pair(ends);
    struct wish urgent = WISH(ends[0], POLLPRI);
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    (void)crew_add(&crew, CREW_USER, wish_main, &urgent);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    for (unsigned i = 0; i < 20; i++) {
        struct wish in = WISH(ends[0], POLLIN);
        static struct crew others;
        (void)crew_add(&others, CREW_USER, wish_main, &in);
        UNTIL((awaited_events(ends[0], RSI_FD_READ) & EPOLLIN) != 0);
        put_bytes(ends[1], 1);
        crew_join(&others);
        EQUALS(in.result, 1);
        drain(ends[0]);
        CHECK(!rsi_load_acquire(&urgent.is_done)); /* pairs with wish_main */
    }
    urgent_byte_comes(ends);
    crew_join(&crew);
    rouse_obs_set_mode(ROUSE_OBS_OFF);
    EQUALS(urgent.fds[0].revents, POLLPRI);
    EQUALS(urgent.record.wait_count, 1);
    EQUALS(urgent.record.useless_count, 0);
    EQUALS(urgent.record.verdict, ROUSE_VERDICT_USEFUL);
    wire_close(ends);
}

#define HERD 9
static void every_poller_wakes(void **state)
{
    (void)state;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    struct wish wishes[HERD];
    for (int i = 0; i < HERD; i++) {
        wishes[i] = (struct wish)WISH(ends[0], POLLIN);
        (void)crew_add(&crew, CREW_MIXED, wish_main, &wishes[i]);
    }
    UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
    put_bytes(ends[1], 1);
    crew_join(&crew);
    for (int i = 0; i < HERD; i++)
        EQUALS(wishes[i].result, 1);
    wire_close(ends);
}

static void read_byte(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1);
}

/* Pollers stand before, between and behind the readers in the list. Each byte serves one reader. */
static void pollers_take_no_reader_s_wake_up(void **state)
{
    (void)state;
    int ends[2];
    struct wish wishes[HERD];
    wire_open(WIRE_UNIX, ends);
    for (unsigned i = 0; i < HERD; i++) {
        wishes[i] = (struct wish)WISH(ends[0], i % 3 == 0 ? POLLPRI : POLLIN);
        (void)crew_add(&crew, CREW_USER, wish_main, &wishes[i]);
        (void)crew_add(&crew, CREW_USER, read_byte, &ends[0]);
        UNTIL(await_count(ends[0], RSI_FD_READ) == 2 * i + 2);
    }
    for (unsigned left = HERD; left > 0; left--)
        put_bytes(ends[1], 1);
    /* Readers wait for the same descriptor. A woken poller may find that a reader was faster. */
    UNTIL((awaited_events(ends[0], RSI_FD_READ) & EPOLLOUT) == 0);
    EQUALS(shutdown(ends[1], SHUT_RDWR), 0);
    crew_join(&crew);
    for (unsigned i = 0; i < HERD; i++)
        EQUALS(wishes[i].result, 1);
    wire_close(ends);
}

static void deadlines_end_it(void *arg, unsigned index)
{
    const uint64_t times_ns[] = { 0, 1, 1000, 50 * 1000, MS, 3 * MS };
    int ends[2];
    (void)arg;
    (void)index;
    wire_open(WIRE_PIPE, ends);
    for (nfds_t count = 0; count <= 1; count++)
        for (size_t i = 0; i < LENGTH(times_ns); i++) {
            struct pollfd one = { .fd = ends[0], .events = POLLIN, .revents = 77 };
            uint64_t deadline_ns = rouse_now_ns() + times_ns[i];
            EQUALS(rouse_poll_until(&one, count, deadline_ns), 0);
            CHECK(rouse_now_ns() >= deadline_ns);
            EQUALS(one.revents, count == 0 ? 77 : 0);
            uint64_t began_ns = rouse_now_ns();
            EQUALS(rouse_poll(&one, count, (int)(times_ns[i] / MS)), 0);
            CHECK(rouse_now_ns() >= began_ns + times_ns[i] / MS * MS);
        }
    CHECK(!is_awaited(ends[0], RSI_FD_READ));
    wire_close(ends);
}

static void deadlines(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, deadlines_end_it, NULL);
}

static void enormous_times_do_not_end_it(void **state)
{
    (void)state;
    const uint64_t far[] = { ROUSE_FOREVER, ROUSE_FOREVER - 1, UINT64_C(1) << 63,
                             (UINT64_C(1) << 63) - 1 };
    for (size_t i = 0; i < LENGTH(far); i++)
        for (enum crew_kind kind = 0; kind < KINDS; kind++) {
            int ends[2];
            wire_open(WIRE_PIPE, ends);
            struct wish wish = WISH(ends[0], POLLIN);
            wish.deadline_ns = far[i];
            DOING("deadline %lx by a %s thread", (unsigned long)far[i], kind_names[kind]);
            (void)crew_add(&crew, kind, wish_main, &wish);
            UNTIL(is_awaited(ends[0], RSI_FD_READ));
            put_bytes(ends[1], 1);
            crew_join(&crew);
            EQUALS(wish.result, 1);
            wire_close(ends);
        }
}

static void poll_in_ms(void *arg, unsigned index)
{
    struct wish *wish = arg;
    const int times_ms[] = { -1, INT_MIN, INT_MAX };
    wish->result = rouse_poll(wish->fds, wish->count, times_ms[index % LENGTH(times_ms)]);
}

static void infinite_times(void **state)
{
    (void)state;
    struct wish wishes[HERD];
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    for (int i = 0; i < HERD; i++) {
        wishes[i] = (struct wish)WISH(ends[0], POLLIN);
        (void)crew_add(&crew, (enum crew_kind)(i / 3), poll_in_ms, &wishes[i]);
    }
    UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
    put_bytes(ends[1], 1);
    crew_join(&crew);
    for (int i = 0; i < HERD; i++)
        EQUALS(wishes[i].result, 1);
    wire_close(ends);
}

static void cancel_ends_it(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        int ends[2];
        wire_open(WIRE_UNIX, ends);
        struct wish wish = WISH(ends[0], POLLIN);
        struct rouse_thread *t = crew_add(&crew, kind, wish_main, &wish);
        DOING("cancel of a %s thread", kind_names[kind]);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        EQUALS(rouse_thread_cancel(t), 0);
        crew_join(&crew);
        EQUALS(wish.result, -ECANCELED);
        CHECK(!is_awaited(ends[0], RSI_FD_READ));
        wire_close(ends);
    }
}

static void cancelled_before(void *arg, unsigned index)
{
    int *ends = arg;
    struct pollfd one = { .fd = ends[0], .events = POLLIN };
    (void)index;
    for (int i = 0; i < 2; i++) {
        EQUALS(rouse_thread_cancel(rouse_thread_self()), 0);
        EQUALS(rouse_poll(&one, 1, i == 0 ? 0 : -1), -ECANCELED);
        EQUALS(rouse_poll(&one, 1, 0), 0);
    }
    one.fd = ends[1];
    one.events = POLLOUT; /* ready events are reported first; the request is for the next wait */
    EQUALS(rouse_thread_cancel(rouse_thread_self()), 0);
    EQUALS(rouse_poll(&one, 1, -1), 1);
    EQUALS(rouse_sleep(0), -ECANCELED);
}

static void cancel_before_it_begins(void **state)
{
    (void)state;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, cancelled_before, ends);
    wire_close(ends);
}

static void close_arg(void *arg, unsigned index)
{
    (void)index;
    EQUALS(rouse_close(*(int *)arg), 0);
}

/* The number is given out again, to a ready descriptor, before the thread that polled it runs. */
static void close_is_reported(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (enum crew_kind closer = 0; closer < KINDS; closer++) {
            static struct crew closers;
            int ends[2], next[2], other[2];
            wire_open(WIRE_UNIX, ends);
            wire_open(WIRE_PIPE, other);
            struct wish wish = WISH(other[0], POLLIN);
            wish.fds[1] = (struct pollfd){ .fd = ends[0], .events = POLLIN | POLLPRI };
            wish.count = 2;
            DOING("polled by a %s thread, closed by a %s thread", kind_names[kind],
                  kind_names[closer]);
            (void)crew_add(&crew, kind, wish_main, &wish);
            UNTIL(is_awaited(ends[0], RSI_FD_READ) && is_awaited(other[0], RSI_FD_READ));
            (void)crew_add(&closers, closer, close_arg, &ends[0]);
            crew_join(&closers);
            wire_open(WIRE_UNIX, next);
            put_bytes(next[1], 1);
            crew_join(&crew);
            EQUALS(wish.result, 1);
            EQUALS(wish.fds[0].revents, 0);
            EQUALS(wish.fds[1].revents, POLLNVAL);
            close(ends[1]);
            wire_close(next);
            wire_close(other);
        }
}

/* Numbers that are no descriptor, negative ones, and one descriptor many times. */
static void odd_descriptors(void *arg, unsigned index)
{
    int ends[2], file = memfd_create("file", MFD_CLOEXEC);
    (void)arg;
    (void)index;
    CHECK(file >= 0);
    wire_open(WIRE_UNIX, ends);
    struct pollfd fds[] = {
        { .fd = -1, .events = POLLIN, .revents = 9 },
        { .fd = INT_MIN, .events = POLLOUT, .revents = 9 },
        { .fd = INT_MAX, .events = POLLOUT },
        { .fd = 1000000, .events = 0 },
        { .fd = file, .events = POLLIN | POLLOUT },
        { .fd = ends[0], .events = POLLIN | POLLOUT },
        { .fd = ends[0], .events = POLLIN },
        { .fd = ends[0], .events = POLLOUT },
    };
    const short expected[] = { 0, 0, POLLNVAL, POLLNVAL, POLLIN | POLLOUT, POLLOUT, 0, POLLOUT };
    for (int i = 0; i < 2; i++) {
        EQUALS(rouse_poll(fds, LENGTH(fds), i == 0 ? 0 : -1), 5);
        for (size_t j = 0; j < LENGTH(fds); j++)
            EQUALS(fds[j].revents, expected[j]);
    }
    EQUALS(rouse_poll(fds, 2, 1), 0);
    EQUALS(rouse_poll(NULL, 1, 0), -EFAULT);
    EQUALS(rouse_poll(fds, UINT64_C(1) << 40, 0), -EINVAL);
    fds[4].events = 0; /* no event will ever come */
    EQUALS(rouse_poll(&fds[4], 1, 1), 0);
    wire_close(ends);
    close(file);
}

static void arrays_with_repeated_and_invalid_numbers(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, odd_descriptors, NULL);
}

static void the_descriptor_s_flags_stay_unchanged(void **state)
{
    (void)state;
    for (enum wire wire = 0; wire < WIRES; wire++) {
        int ends[2];
        wire_open(wire, ends);
        struct wish wish = WISH(ends[0], POLLIN);
        (void)crew_add(&crew, CREW_USER, wish_main, &wish);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        if (wire == WIRE_EVENTFD)
            eventfd_add(ends[1], 1);
        else
            put_bytes(ends[1], 1);
        crew_join(&crew);
        EQUALS(wish.result, 1);
        CHECK(!is_nonblock(ends[0]));
        wire_close(ends);
    }
}

#define MANY 3000
static void a_set_of_thousands(void **state)
{
    (void)state;
    static struct pollfd fds[MANY];
    struct rlimit limit;
    int ends[2];
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < MANY + 64) {
        print_message("not run: only %lu descriptors\n", (unsigned long)limit.rlim_cur);
        return;
    }
    wire_open(WIRE_PIPE, ends);
    for (int i = 0; i < MANY; i++)
        fds[i] = (struct pollfd){ .fd = i == 0 ? ends[0] : dup(ends[0]), .events = POLLIN };
    for (int i = 0; i < MANY; i++)
        CHECK(fds[i].fd >= 0);
    struct wish wish = WISH(fds[MANY - 1].fd, POLLIN); /* its own descriptor is one of the many */
    (void)crew_add(&crew, CREW_USER, wish_main, &wish);
    UNTIL(is_awaited(wish.fds[0].fd, RSI_FD_READ));
    put_bytes(ends[1], 1);
    EQUALS(rouse_poll(fds, MANY, -1), MANY);
    crew_join(&crew);
    drain(ends[0]);
    EQUALS(rouse_poll_until(fds, MANY, rouse_now_ns() + MS), 0);
    for (int i = 0; i < MANY; i++)
        EQUALS(rouse_close(fds[i].fd), 0);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_wakes),
        cmocka_unit_test(other_events_do_not_wake),
        cmocka_unit_test(every_poller_wakes),
        cmocka_unit_test(pollers_take_no_reader_s_wake_up),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(enormous_times_do_not_end_it),
        cmocka_unit_test(infinite_times),
        cmocka_unit_test(cancel_ends_it),
        cmocka_unit_test(cancel_before_it_begins),
        cmocka_unit_test(close_is_reported),
        cmocka_unit_test(arrays_with_repeated_and_invalid_numbers),
        cmocka_unit_test(the_descriptor_s_flags_stay_unchanged),
        cmocka_unit_test(a_set_of_thousands),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
