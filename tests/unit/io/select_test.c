/* SPDX-License-Identifier: MIT */
/*
 * select_test.c - rouse_select by every kind of thread: the bits that are left in the sets, events
 * that count and events that do not, sets longer than an fd_set, deadlines, cancels and closes.
 */
#include "poll_test.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>

static struct crew crew;

struct selection {
    int nfds;
    fd_set in, out, except;
    uint64_t deadline_ns;
    int result;
    uint32_t is_done;
};

static void selection_open(struct selection *s)
{
    FD_ZERO(&s->in);
    FD_ZERO(&s->out);
    FD_ZERO(&s->except);
    s->nfds = FD_SETSIZE;
    s->deadline_ns = ROUSE_FOREVER;
    s->result = 99;
    s->is_done = 0;
}

static void select_main(void *arg, unsigned index)
{
    struct selection *s = arg;
    (void)index;
    s->result = rouse_select_until(s->nfds, &s->in, &s->out, &s->except, s->deadline_ns);
    rsi_store_release(&s->is_done, 1u); /* pairs with the acquire of the thread that looks */
}

static bool is_empty(const fd_set *set)
{
    static const fd_set none;
    return memcmp(set, &none, sizeof none) == 0;
}

/* The data may still be on the way: wait until the sender has nothing left. */
static void drain_all(const int ends[2])
{
    int left;
    do {
        drain(ends[0]);
        CHECK(ioctl(ends[1], SIOCOUTQ, &left) == 0);
    } while (left > 0);
    drain(ends[0]);
}

static void each_set_is_answered(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int set = 0; set < 3; set++) {
            struct selection s;
            int ends[2];
            tcp_pair(ends);
            selection_open(&s);
            FD_SET(ends[0], &s.in);
            FD_SET(ends[0], &s.except);
            FD_SET(ends[1], &s.out);
            fill(ends[1]);
            if (set < 2)
                drain_all(ends);
            if (set == 0 || set == 2)
                FD_ZERO(&s.out);
            if (set == 2)
                FD_ZERO(&s.in);
            DOING("set %d by a %s thread", set, kind_names[kind]);
            (void)crew_add(&crew, kind, select_main, &s);
            if (set == 0) {
                UNTIL(is_awaited(ends[0], RSI_FD_READ));
                EQUALS(send(ends[1], "x", 1, 0), 1);
            } else if (set == 2) {
                UNTIL(is_awaited(ends[0], RSI_FD_READ));
                drain(ends[0]);
                EQUALS(send(ends[1], "u", 1, MSG_OOB), 1);
            } else {
                UNTIL(rsi_load_acquire(&s.is_done)); /* pairs with select_main */
            }
            crew_join(&crew);
            EQUALS(s.result, 1);
            EQUALS(FD_ISSET(ends[0], &s.in) != 0, set == 0);
            EQUALS(FD_ISSET(ends[1], &s.out) != 0, set == 1);
            EQUALS(FD_ISSET(ends[0], &s.except) != 0, set == 2);
            wire_close(ends);
        }
}

/* A hang-up is there from the start. Only readers see it. */
static void events_that_do_not_count_do_not_end_it(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        struct selection s;
        int ends[2], other[2];
        wire_open(WIRE_PIPE, ends);
        wire_open(WIRE_PIPE, other);
        EQUALS(rouse_close(ends[1]), 0);
        selection_open(&s);
        FD_SET(ends[0], &s.except);
        FD_SET(ends[0], &s.out);
        DOING("a hang-up, by a %s thread", kind_names[kind]);
        s.deadline_ns = rouse_now_ns() + 3 * MS;
        select_main(&s, 0);
        EQUALS(s.result, 0);
        CHECK(rouse_now_ns() >= s.deadline_ns);
        selection_open(&s);
        FD_SET(ends[0], &s.except);
        FD_SET(other[0], &s.in);
        (void)crew_add(&crew, kind, select_main, &s);
        UNTIL(is_awaited(other[0], RSI_FD_READ));
        put_bytes(other[1], 1);
        crew_join(&crew);
        EQUALS(s.result, 1);
        CHECK(FD_ISSET(other[0], &s.in) && is_empty(&s.except));
        selection_open(&s);
        FD_SET(ends[0], &s.in);
        FD_SET(ends[0], &s.except);
        select_main(&s, 0);
        EQUALS(s.result, 1);
        CHECK(FD_ISSET(ends[0], &s.in) && is_empty(&s.except));
        close(ends[0]);
        wire_close(other);
    }
}

static void in_ways_of_time(void *arg, unsigned index)
{
    static const struct timeval times[] = { { 0, 0 }, { 0, 1 }, { 0, 1500 }, { 0, 3000 } };
    int *ends = arg;
    (void)index;
    for (size_t i = 0; i < LENGTH(times); i++) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(ends[0], &in);
        struct timeval time = times[i];
        uint64_t until_ns = rouse_now_ns() + (uint64_t)time.tv_usec * 1000;
        EQUALS(rouse_select(ends[0] + 1, &in, NULL, NULL, &time), 0);
        CHECK(rouse_now_ns() >= until_ns);
        CHECK(is_empty(&in) && memcmp(&time, &times[i], sizeof time) == 0);
        EQUALS(rouse_select(0, NULL, NULL, NULL, &time), 0);
    }
    const struct timeval bad[] = { { -1, 0 }, { 0, -1 } };
    for (size_t i = 0; i < LENGTH(bad); i++)
        EQUALS(rouse_select(0, NULL, NULL, NULL, &bad[i]), -EINVAL);
    EQUALS(rouse_select(-1, NULL, NULL, NULL, NULL), -EINVAL);
}

static void times(void **state)
{
    (void)state;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        crew_run(kind, 1, in_ways_of_time, ends);
    wire_close(ends);
}

static void select_for_ever(void *arg, unsigned index)
{
    static const struct timeval times[] = { { INT64_MAX, 999999 }, { INT64_MAX, INT64_MAX } };
    int *ends = arg;
    fd_set in;
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    EQUALS(rouse_select(ends[0] + 1, &in, NULL, NULL, index % 3 == 2 ? NULL : &times[index % 3]),
           1);
}

static void enormous_times(void **state)
{
    (void)state;
    int ends[2];
    wire_open(WIRE_PIPE, ends);
    crew_add_many(&crew, CREW_MIXED, 9, select_for_ever, ends);
    UNTIL(await_count(ends[0], RSI_FD_READ) == 9);
    put_bytes(ends[1], 1);
    crew_join(&crew);
    wire_close(ends);
}

static void close_and_cancel(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++)
        for (int closes = 0; closes < 2; closes++) {
            struct selection s;
            int ends[2];
            wire_open(WIRE_UNIX, ends);
            ends[0] = out_of_reach(ends[0]);
            selection_open(&s);
            FD_SET(ends[0], &s.in);
            fd_set before = s.in;
            DOING("%s of a %s thread", closes ? "close" : "cancel", kind_names[kind]);
            struct rouse_thread *t = crew_add(&crew, kind, select_main, &s);
            UNTIL(is_awaited(ends[0], RSI_FD_READ));
            EQUALS(closes ? rouse_close(ends[0]) : rouse_thread_cancel(t), 0);
            crew_join(&crew);
            EQUALS(s.result, closes ? -EBADF : -ECANCELED);
            CHECK(memcmp(&before, &s.in, sizeof before) == 0);
            if (closes)
                EQUALS(rouse_select(ends[0] + 1, &s.in, NULL, NULL, NULL), -EBADF);
            else
                close(ends[0]);
            close(ends[1]);
        }
}

/* The call neither reads nor writes bits at and above nfds, nor memory behind the last word. */
static void only_nfds_bits_are_looked_at(void **state)
{
    (void)state;
    unsigned long set[2] = { ~0ul, ~0ul };
    fd_set *in = (fd_set *)(void *)set;
    EQUALS(rouse_select(0, in, in, in, &(struct timeval){ 0, 0 }), 0);
    CHECK(set[0] == ~0ul && set[1] == ~0ul);
    set[0] = 0;
    set[0] = 1ul << 63; /* number 63 is no descriptor, nor is 64 */
    EQUALS(rouse_select(63, in, NULL, NULL, &(struct timeval){ 0, 0 }), 0);
    CHECK(set[0] == 0 && set[1] == ~0ul);
    set[0] = 1ul << 63;
    EQUALS(rouse_select(64, in, NULL, NULL, NULL), -EBADF);
    CHECK(set[0] == 1ul << 63 && set[1] == ~0ul);
}

#define HIGH 3000
static void numbers_above_an_fd_set(void **state)
{
    (void)state;
    struct rlimit limit;
    int ends[2];
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur <= HIGH) {
        print_message("not run: only %lu descriptors\n", (unsigned long)limit.rlim_cur);
        return;
    }
    size_t bytes = (HIGH + 64) / 64 * sizeof(unsigned long);
    unsigned long *set = calloc(1, bytes);
    CHECK(set);
    wire_open(WIRE_PIPE, ends);
    for (int i = 0; i < 100; i++) {
        EQUALS(dup2(ends[0], HIGH - i * 7), HIGH - i * 7);
        set[(HIGH - i * 7) / 64] |= 1ul << (HIGH - i * 7) % 64;
    }
    unsigned long *before = malloc(bytes);
    CHECK(before);
    memcpy(before, set, bytes);
    put_bytes(ends[1], 1);
    EQUALS(rouse_select(HIGH + 1, (fd_set *)(void *)set, NULL, NULL, NULL), 100);
    CHECK(memcmp(set, before, bytes) == 0);
    drain(ends[0]);
    EQUALS(rouse_select(HIGH + 1, (fd_set *)(void *)set, NULL, NULL, &(struct timeval){ 0, 10 }),
           0);
    for (size_t i = 0; i < bytes / sizeof *set; i++)
        EQUALS(set[i], 0);
    for (int i = 0; i < 100; i++)
        EQUALS(rouse_close(HIGH - i * 7), 0);
    wire_close(ends);
    free(set);
    free(before);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_set_is_answered),
        cmocka_unit_test(events_that_do_not_count_do_not_end_it),
        cmocka_unit_test(times),
        cmocka_unit_test(enormous_times),
        cmocka_unit_test(close_and_cancel),
        cmocka_unit_test(only_nfds_bits_are_looked_at),
        cmocka_unit_test(numbers_above_an_fd_set),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
