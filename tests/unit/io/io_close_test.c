/* SPDX-License-Identifier: MIT */
/*
 * io_close_test.c - close notifies every waiter, and the next descriptor with the same number never
 * meets the old one's waiters.
 */
#include "io_test.h"

#include <sys/epoll.h>

struct reader {
    int fd;
    bool writes;
    char byte;
    long result;
};

static void read_one(void *arg, unsigned index)
{
    struct reader *reader = arg;
    (void)index;
    reader->result = reader->writes ? rouse_write(reader->fd, "w", 1)
                                    : rouse_read(reader->fd, &reader->byte, 1);
}

static void put_byte(int fd, char byte)
{
    EQUALS(write(fd, &byte, 1), 1);
}

/*
 * For tests that close ends[0] and use its number again: the library itself may take a low number in
 * between, and dup3 refuses a number that is about to be opened (EBUSY).
 */
static void open_out_of_reach(int ends[2])
{
    wire_open(WIRE_UNIX, ends);
    ends[0] = out_of_reach(ends[0]);
}

/* Move the ends to the chosen numbers, as happens in a program that reuses numbers. */
static void reopen_at(int number, int ends[2])
{
    wire_open(WIRE_UNIX, ends);
    if (ends[0] != number) {
        CHECK(dup3(ends[0], number, O_CLOEXEC) == number);
        close(ends[0]);
        ends[0] = number;
    }
}

#define CROWD 12
static void every_waiter_in_both_directions_is_notified(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind closer = 0; closer < KINDS; closer++) {
        struct reader readers[CROWD];
        int ends[2], full = 0;
        wire_open(WIRE_UNIX, ends);
        while (send(ends[0], &full, sizeof full, MSG_DONTWAIT) > 0)
            ;
        for (int i = 0; i < CROWD; i++) {
            readers[i] = (struct reader){ .fd = ends[0], .writes = i < CROWD / 2, .result = 7 };
            (void)crew_add(&crew, (enum crew_kind)(i % KINDS), read_one, &readers[i]);
        }
        UNTIL(await_count(ends[0], RSI_FD_READ) == CROWD / 2);
        UNTIL(await_count(ends[0], RSI_FD_WRITE) == CROWD / 2);
        EQUALS(rouse_close(ends[0]), 0);
        crew_join(&crew);
        for (int i = 0; i < CROWD; i++)
            EQUALS(readers[i].result, -EBADF);
        close(ends[1]);
    }
}

/*
 * An event has ended the wait, but the number belongs to another descriptor before the thread runs.
 */
static void woken_reader_does_not_meet_the_next_descriptor(void **state)
{
    (void)state;
    static struct crew crew;
    struct rsi_fd_batch batch = { NULL, NULL };
    struct reader reader = { .result = 7 };
    int old[2], new[2];
    char byte = 0;
    open_out_of_reach(old);
    reader.fd = old[0];
    (void)crew_add(&crew, CREW_USER, read_one, &reader);
    UNTIL(is_awaited(old[0], RSI_FD_READ));
    struct rsi_fd *entry = entry_of(old[0]);
    CHECK(!rsi_ready_event(entry, entry->generation, EPOLLIN, &batch));
    CHECK(batch.first);
    EQUALS(rouse_close(old[0]), 0);
    reopen_at(reader.fd, new);
    put_byte(new[1], 'n');
    rsi_fdtable_publish(&batch);
    crew_join(&crew);
    EQUALS(reader.result, -EBADF);
    EQUALS(rouse_read(new[0], &byte, 1), 1);
    EQUALS(byte, 'n');
    close(old[1]);
    wire_close(new);
}

/* A thread that begins to read between the wake-ups and close(2) waits for the outcome. */
static void reader_that_comes_amid_a_close(enum crew_kind kind, bool is_given_out)
{
    static struct crew crew;
    struct reader reader = { .result = 7 };
    struct rsi_multishot *receive;
    struct rsi_fd_ref ref;
    int old[2], new[2];
    open_out_of_reach(old);
    reader.fd = old[0];
    EQUALS(rsi_fdtable_close_begin(old[0], &ref, &receive, NULL), 0);
    (void)crew_add(&crew, kind, read_one, &reader);
    for (int i = 0; i < 100; i++) {
        CHECK(!is_awaited(old[0], RSI_FD_READ));
        rouse_thread_yield();
    }
    if (!is_given_out) {
        close(old[0]);
    } else {
        reopen_at(reader.fd, new); /* closes the old one and leaves no moment without one */
        EQUALS(rsi_fdtable_fresh(reader.fd, RSI_FD_STREAM, 0), 0);
    }
    rsi_fdtable_close_end(&ref);
    if (is_given_out) {
        put_byte(new[1], 'n');
        crew_join(&crew);
        EQUALS(reader.result, 1);
        EQUALS(reader.byte, 'n');
        wire_close(new);
    } else {
        crew_join(&crew);
        EQUALS(reader.result, -EBADF);
    }
    close(old[1]);
}

static void reader_amid_a_close_does_not_sleep_for_ever(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 2; i++)
            reader_that_comes_amid_a_close(kind, i == 1);
}

/* Two closes of one number overlap: the first must not unmark what the second has marked. */
static void overlapping_closes_keep_apart(void **state)
{
    (void)state;
    struct rsi_fd_ref first, second;
    struct rsi_multishot *receive;
    int ends[2];
    wire_open(WIRE_UNIX, ends);
    EQUALS(rsi_fdtable_close_begin(ends[0], &first, &receive, NULL), 0);
    EQUALS(rsi_fdtable_fresh(ends[0], RSI_FD_STREAM, 0), 0);
    EQUALS(rsi_fdtable_close_begin(ends[0], &second, &receive, NULL), 0);
    rsi_fdtable_close_end(&first);
    EQUALS(entry_of(ends[0])->type, RSI_FD_CLOSING);
    close(ends[0]);
    rsi_fdtable_close_end(&second);
    EQUALS(entry_of(ends[0])->type, RSI_FD_UNKNOWN);
    close(ends[1]);
}

static void numbers_are_reused(void **state)
{
    (void)state;
    static struct crew old_crew, new_crew;
    int ends[2];
    open_out_of_reach(ends);
    for (unsigned i = 0; i < 600 / SCALE; i++) {
        struct reader old = { .fd = ends[0] }, new = { .fd = ends[0] };
        (void)crew_add(&old_crew, (enum crew_kind)(i % KINDS), read_one, &old);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        EQUALS(rouse_close(ends[0]), 0);
        close(ends[1]);
        reopen_at(new.fd, ends);
        (void)crew_add(&new_crew, (enum crew_kind)(i / KINDS % KINDS), read_one, &new);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        crew_join(&old_crew);
        EQUALS(old.result, -EBADF);
        put_byte(ends[1], 'n');
        crew_join(&new_crew);
        EQUALS(new.result, 1);
    }
    wire_close(ends);
}

/* The old descriptor lives on in a copy. Events of the copy must not reach the new descriptor. */
static void events_of_a_copy_do_not_reach_the_next_descriptor(void **state)
{
    (void)state;
    static struct crew crew;
    struct reader old = { .result = 7 }, new = { .result = 7 };
    int ends[2], next[2], copy;
    open_out_of_reach(ends);
    copy = dup(ends[0]);
    old.fd = new.fd = ends[0];
    (void)crew_add(&crew, CREW_USER, read_one, &old);
    UNTIL(is_awaited(old.fd, RSI_FD_READ));
    EQUALS(rouse_close(ends[0]), 0);
    crew_join(&crew);
    EQUALS(old.result, -EBADF);
    reopen_at(new.fd, next);
    (void)crew_add(&crew, CREW_USER, read_one, &new);
    UNTIL(is_awaited(new.fd, RSI_FD_READ));
    put_byte(ends[1], 'o'); /* an event of the old generation */
    EQUALS(rouse_read(copy, &old.byte, 1), 1);
    EQUALS(old.byte, 'o');
    CHECK(is_awaited(new.fd, RSI_FD_READ));
    put_byte(next[1], 'n');
    crew_join(&crew);
    EQUALS(new.result, 1);
    EQUALS(new.byte, 'n');
    EQUALS(rouse_close(copy), 0);
    close(ends[1]);
    wire_close(next);
}

static void copies_wait_each_for_themselves(void **state)
{
    (void)state;
    static struct crew crew, other_crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct reader first = { .result = 7 }, second = { .result = 7 };
        int ends[2];
        wire_open(WIRE_TCP, ends);
        first.fd = ends[0];
        second.fd = dup(ends[0]);
        (void)crew_add(&crew, kind, read_one, &first);
        (void)crew_add(&other_crew, kind, read_one, &second);
        UNTIL(is_awaited(first.fd, RSI_FD_READ) && is_awaited(second.fd, RSI_FD_READ));
        EQUALS(rouse_close(first.fd), 0);
        crew_join(&crew);
        EQUALS(first.result, -EBADF);
        CHECK(is_awaited(second.fd, RSI_FD_READ));
        put_byte(ends[1], 's');
        crew_join(&other_crew);
        EQUALS(second.result, 1);
        EQUALS(rouse_close(second.fd), 0);
        close(ends[1]);
    }
}

static int type_of(int fd)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    return entry ? rsi_load_acquire(&entry->type) : -1;
}

static uint32_t receiving;

static void receive_until_closed(void *arg, unsigned index)
{
    const int *fd = arg;
    char byte;
    ssize_t result;
    (void)index;
    rsi_fetch_add_relaxed(&receiving, 1u);
    do
        result = rouse_recv(*fd, &byte, 1, MSG_DONTWAIT);
    while (result == -EAGAIN || result == 0);
    EQUALS(result, -EBADF);
}

/*
 * A thread that determines the type of a descriptor while another one closes it must not leave that type to the next
 * descriptor of the number: taken for a TCP stream, it would lose wake-ups and the ends of messages.
 */
static void a_call_during_a_close_leaves_no_type_to_the_next_descriptor(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 400 / SCALE; i++) {
        int ends[2];
        wire_open(WIRE_TCP, ends);
        ends[0] = out_of_reach(ends[0]); /* of files that the library opens for a moment */
        receiving = 0;
        crew_add_many(&crew, CREW_KERNEL, 2, receive_until_closed, &ends[0]);
        UNTIL(rsi_load_relaxed(&receiving) == 2);
        EQUALS(rouse_close(ends[0]), 0);
        crew_join(&crew);
        EQUALS(type_of(ends[0]), RSI_FD_UNKNOWN);
        EQUALS(rouse_close(ends[1]), 0);
    }
}

/*
 * The number of a descriptor that was closed without rouse's knowledge is given out by socket and
 * passed to connect.
 */
static void connect_does_not_trust_stale_table_entries(void **state)
{
    (void)state;
    static struct crew crew;
    struct sockaddr_in address;
    int listener = tcp_listen(4, &address), ends[2];
    open_out_of_reach(ends);
    struct reader reader = { .fd = ends[0] };
    (void)crew_add(&crew, CREW_USER, read_one, &reader);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    put_byte(ends[1], 'x');
    crew_join(&crew);
    close(ends[0]); /* not by rouse_close: the table still believes it in the epoll set */
    int unconnected = tcp_socket(), fd = dup3(unconnected, reader.fd, O_CLOEXEC);
    CHECK(fd == reader.fd);
    close(unconnected);
    EQUALS(rouse_connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    int peer = rouse_accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    (void)crew_add(&crew, CREW_USER, read_one, &reader);
    UNTIL(is_awaited(fd, RSI_FD_READ));
    put_byte(peer, 'y');
    crew_join(&crew);
    EQUALS(reader.byte, 'y');
    EQUALS(rouse_close(fd), 0);
    EQUALS(rouse_close(peer), 0);
    EQUALS(rouse_close(listener), 0);
    close(ends[1]);
}

/* A datagram socket is connected again while another thread reads from it or is about to. */
struct reconnect {
    int ends[2];
    struct sockaddr_in peer;
    uint32_t is_over;
};

static void read_until_over(void *arg, unsigned index)
{
    struct reconnect *r = arg;
    char byte;
    (void)index;
    do
        EQUALS(rouse_recv(r->ends[0], &byte, 1, 0), 1);
    while (byte != 'z');
    rsi_store_release(&r->is_over, 1);
}

static void connecting_again_does_not_disturb_a_reader(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct reconnect r = { .is_over = 0 };
        socklen_t length = sizeof r.peer;
        wire_open(WIRE_UDP, r.ends);
        CHECK(getsockname(r.ends[1], (struct sockaddr *)&r.peer, &length) == 0);
        (void)crew_add(&crew, kind, read_until_over, &r);
        for (unsigned i = 0; i < 300 / SCALE; i++) {
            put_byte(r.ends[1], 'a');
            EQUALS(rouse_connect(r.ends[0], (struct sockaddr *)&r.peer, length), 0);
        }
        while (!rsi_load_acquire(&r.is_over)) {
            (void)send(r.ends[1], "z", 1, MSG_DONTWAIT);
            rouse_thread_yield();
        }
        crew_join(&crew);
        wire_close(r.ends);
    }
}

static void numbers_that_are_no_descriptor(void **state)
{
    (void)state;
    char byte;
    static const int numbers[] = { -1, INT_MIN, 900, 1000000, 16777215, 16777216, INT_MAX };
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        DOING("number %d", numbers[i]);
        EQUALS(rouse_close(numbers[i]), -EBADF);
        EQUALS(rouse_read(numbers[i], &byte, 1), -EBADF);
        EQUALS(rouse_write(numbers[i], &byte, 1), -EBADF);
        EQUALS(rouse_recv(numbers[i], &byte, 1, 0), -EBADF);
        EQUALS(rouse_accept(numbers[i], NULL, NULL), -EBADF);
        EQUALS(rouse_connect(numbers[i], NULL, 0), -EBADF);
        EQUALS(rouse_sendfile(numbers[i], 0, NULL, 1), -EBADF);
        EQUALS(rouse_pread(numbers[i], &byte, 1, 0), -EBADF);
        EQUALS(rouse_pwrite(numbers[i], &byte, 1, 0), -EBADF);
        EQUALS(rouse_fsync(numbers[i]), -EBADF);
        EQUALS(rouse_shutdown(numbers[i], SHUT_RDWR), -EBADF);
    }
    CHECK(rsi_fdtable_peek(1000000) == NULL); /* and no memory was allocated */
}

static void read_one_byte(void *fd, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_recv(*(int *)fd, &byte, 1, 0), 1);
}

static void read_one_byte_and_close(void *fd, unsigned index)
{
    read_one_byte(fd, index);
    EQUALS(rouse_close(*(int *)fd), 0);
}

static void close_it(void *fd, unsigned index)
{
    (void)index;
    EQUALS(rouse_close(*(int *)fd), 0);
}

/*
 * A receive that the closed copy's thread has started takes no data of the other copy. The copy is closed by that
 * thread, by another one, and by a kernel thread.
 */
static void data_after_the_close_of_a_copy_is_the_others(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 300; i++) {
        int ends[2], copy;
        wire_open(WIRE_TCP, ends);
        CHECK((copy = dup(ends[0])) >= 0);
        (void)crew_add(&crew, CREW_USER, i % 4 == 0 ? read_one_byte_and_close : read_one_byte,
                       &copy);
        UNTIL(is_awaited(copy, RSI_FD_READ));
        EQUALS(send(ends[1], "1", 1, 0), 1);
        crew_join(&crew);
        if (i % 4 != 0)
            (void)crew_add(&crew, (enum crew_kind)(i % 4 - 1), close_it, &copy);
        crew_join(&crew);
        (void)crew_add(&crew, CREW_USER, read_one_byte, &ends[0]);
        EQUALS(send(ends[1], "2", 1, 0), 1);
        crew_join(&crew);
        wire_close(ends);
    }
}

static void accept_one(void *arg, unsigned index)
{
    (void)index;
    int fd = rouse_accept(*(int *)arg, NULL, NULL);
    CHECK(fd >= 0);
    EQUALS(rouse_close(fd), 0);
}

static void connections_after_the_close_of_a_copy_are_the_others(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 100; i++) {
        struct sockaddr_in address;
        int listener = tcp_listen(4, &address), copy = dup(listener), fds[2];
        CHECK(copy >= 0);
        (void)crew_add(&crew, CREW_USER, accept_one, &copy);
        UNTIL(is_awaited(copy, RSI_FD_READ));
        fds[0] = tcp_connect(&address);
        crew_join(&crew);
        (void)crew_add(&crew, (enum crew_kind)(i % 3), close_it, &copy);
        crew_join(&crew);
        (void)crew_add(&crew, CREW_USER, accept_one, &listener);
        fds[1] = tcp_connect(&address);
        crew_join(&crew);
        EQUALS(rouse_close(listener), 0);
        wire_close(fds);
    }
}

static void *wait_for_a_byte(void *fd)
{
    char byte;
    (void)rouse_read(*(int *)fd, &byte, 1);
    return NULL;
}

/* As a daemon does that closes all descriptors, too late. Then one thread waits for I/O, and another is created. */
static void close_our_descriptors(const char *type)
{
    int ends[2];
    struct rouse_thread *reader, *other;
    char path[64], target[64] = "";
    wire_open(WIRE_PIPE, ends);
    EQUALS(rouse_thread_create(&reader, NULL, wait_for_a_byte, &ends[0]), 0);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (strstr(target, type))
            close(fd);
    }
    for (;;) {
        int none = -1;
        EQUALS(rouse_thread_create(&other, NULL, wait_for_a_byte, &none), 0);
        EQUALS(rouse_thread_join(other, NULL), 0);
    }
}

static void close_the_eventfd(void)
{
    setenv("ROUSE_WORKERS", "1", 1);
    setenv("ROUSE_IO", "epoll", 1);
    close_our_descriptors("[eventfd]");
}

static void close_the_set(void)
{
    setenv("ROUSE_WORKERS", "1", 1);
    setenv("ROUSE_IO", "epoll", 1);
    close_our_descriptors("[eventpoll]");
}

int main(int argc, char **argv)
{
    static const struct misuse misuses[] = {
        { "close the eventfd", "is no longer our eventfd (Bad file descriptor)",
          close_the_eventfd },
        { "close the set", "is no longer our epoll set (Bad file descriptor)", close_the_set },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_waiter_in_both_directions_is_notified),
        cmocka_unit_test(woken_reader_does_not_meet_the_next_descriptor),
        cmocka_unit_test(reader_amid_a_close_does_not_sleep_for_ever),
        cmocka_unit_test(overlapping_closes_keep_apart),
        cmocka_unit_test(numbers_are_reused),
        cmocka_unit_test(events_of_a_copy_do_not_reach_the_next_descriptor),
        cmocka_unit_test(copies_wait_each_for_themselves),
        cmocka_unit_test(a_call_during_a_close_leaves_no_type_to_the_next_descriptor),
        cmocka_unit_test(connect_does_not_trust_stale_table_entries),
        cmocka_unit_test(connecting_again_does_not_disturb_a_reader),
        cmocka_unit_test(numbers_that_are_no_descriptor),
        cmocka_unit_test(data_after_the_close_of_a_copy_is_the_others),
        cmocka_unit_test(connections_after_the_close_of_a_copy_are_the_others),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
