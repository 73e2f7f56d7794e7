/* SPDX-License-Identifier: MIT */
/*
 * io_fair_test.c - a thread whose calls never have to wait still lets others run: those of its own
 * worker and those that wait in the poller.
 */
#include "io_test.h"

struct busy {
    int ends[2];
    uint32_t calls, turns, is_over;
    uint32_t calls_before; /* time at which counting of turns began */
    uint32_t started;
};

/* A single worker, which one thread could keep. */
static bool has_one_worker(void)
{
    return rouse_worker_count() == 1;
}

static void call_without_waiting(void *arg, unsigned index)
{
    struct busy *busy = arg;
    char bytes[8] = { 1 };
    (void)index;
    while (!rsi_load_relaxed(&busy->is_over)) {
        EQUALS(rouse_write(busy->ends[1], bytes, 8), 8);
        EQUALS(rouse_read(busy->ends[0], bytes, 8), 8);
        rsi_store_relaxed(&busy->calls, busy->calls + 2);
    }
}

static void count_turns(void *arg, unsigned index)
{
    struct busy *busy = arg;
    (void)index;
    busy->calls_before = rsi_load_relaxed(&busy->calls);
    for (busy->turns = 0; busy->turns < 2000; busy->turns++)
        rouse_thread_yield();
    rsi_store_relaxed(&busy->is_over, 1);
}

/* Eight calls that did not wait make up a turn. */
static void others_get_their_turn(void **state)
{
    (void)state;
    static struct crew crew;
    for (enum wire wire = 0; wire < WIRES; wire++) {
        struct busy busy = { .calls = 0 };
        DOING("%s", wire_names[wire]);
        wire_open(wire, busy.ends);
        (void)crew_add(&crew, CREW_USER, call_without_waiting, &busy);
        (void)crew_add(&crew, CREW_USER, count_turns, &busy);
        crew_join(&crew);
        if (has_one_worker()) {
            CHECK(busy.calls - busy.calls_before <= 2000 * 8 + 16);
            CHECK(busy.calls - busy.calls_before >= 2000); /* and the busy thread gets its own */
        }
        wire_close(busy.ends);
    }
}

/* Several busy threads at once: each gets its share. */
#define BUSY 16
static void call_and_count(void *arg, unsigned index)
{
    struct busy *all = arg;
    struct busy *busy = &all[index];
    char bytes[8] = { 1 };
    rsi_fetch_add_relaxed(&all->started, 1u);
    while (rsi_load_relaxed(&all->started) < BUSY)
        rouse_thread_yield();
    while (!rsi_load_relaxed(&all->is_over)) {
        EQUALS(rouse_write(busy->ends[1], bytes, 8), 8);
        EQUALS(rouse_read(busy->ends[0], bytes, 8), 8);
        rsi_store_relaxed(&busy->calls, busy->calls + 2);
        if (busy->calls >= 20000)
            rsi_store_relaxed(&all->is_over, 1);
    }
}

static void busy_threads_share(void **state)
{
    (void)state;
    struct busy busy[BUSY];
    if (!has_one_worker())
        return;
    for (int i = 0; i < BUSY; i++) {
        busy[i] = (struct busy){ .calls = 0 };
        wire_open(WIRE_UNIX, busy[i].ends);
    }
    crew_run(CREW_USER, BUSY, call_and_count, busy);
    for (int i = 0; i < BUSY; i++) {
        CHECK(busy[i].calls >= 20000 - 24);
        wire_close(busy[i].ends);
    }
}

static void echo(void *arg, unsigned index)
{
    struct busy *busy = arg;
    char byte;
    (void)index;
    while (rouse_read(busy->ends[0], &byte, 1) == 1)
        EQUALS(rouse_write(busy->ends[0], &byte, 1), 1);
}

/*
 * One connection is always busy. The others, whose events the poller must fetch, are served
 * meanwhile.
 */
static void busy_connection_starves_nobody(void **state)
{
    (void)state;
    static struct crew crew;
    struct busy busy[4], others[BUSY];
    for (size_t i = 0; i < LENGTH(busy); i++) { /* at most as many as there are workers */
        busy[i] = (struct busy){ .calls = 0 };
        wire_open(WIRE_EVENTFD, busy[i].ends);
        (void)crew_add(&crew, CREW_USER, call_without_waiting, &busy[i]);
    }
    for (int i = 0; i < BUSY; i++) {
        others[i] = (struct busy){ .calls = 0 };
        wire_open(i % 2 ? WIRE_TCP : WIRE_UNIX, others[i].ends);
        (void)crew_add(&crew, CREW_USER, echo, &others[i]);
    }
    for (int round = 0; round < 100 / SCALE; round++)
        for (int i = 0; i < BUSY; i++) {
            char byte = 'x';
            EQUALS(write(others[i].ends[1], &byte, 1), 1);
            EQUALS(read(others[i].ends[1], &byte, 1), 1);
        }
    for (int i = 0; i < BUSY; i++)
        close(others[i].ends[1]);
    for (size_t i = 0; i < LENGTH(busy); i++)
        rsi_store_relaxed(&busy[i].is_over, 1);
    crew_join(&crew);
    for (int i = 0; i < BUSY; i++)
        EQUALS(rouse_close(others[i].ends[0]), 0);
    for (size_t i = 0; i < LENGTH(busy); i++)
        EQUALS(rouse_close(busy[i].ends[0]), 0);
}

/* A loop of attempts that all come too early also lets others run, and sees their results. */
static void attempt_in_vain(void *arg, unsigned index)
{
    struct busy *busy = arg;
    char byte;
    long result;
    (void)index;
    while ((result = rouse_recv_until(busy->ends[0], &byte, 1, 0, 0)) == -ETIMEDOUT)
        rsi_store_relaxed(&busy->calls, busy->calls + 1);
    EQUALS(result, 1);
}

static void count_and_send(void *arg, unsigned index)
{
    struct busy *busy = arg;
    (void)index;
    busy->calls_before = rsi_load_relaxed(&busy->calls);
    for (busy->turns = 0; busy->turns < 2000; busy->turns++)
        rouse_thread_yield();
    EQUALS(rouse_send(busy->ends[1], "x", 1, 0), 1);
}

static void failed_attempts_starve_nobody(void **state)
{
    (void)state;
    static struct crew crew;
    for (int was_armed = 0; was_armed < 2; was_armed++) {
        struct busy busy = { .calls = 0 };
        wire_open(WIRE_TCP, busy.ends);
        if (was_armed) {
            char byte;
            (void)crew_add(&crew, CREW_USER, echo, &busy);
            UNTIL(is_awaited(busy.ends[0], RSI_FD_READ));
            EQUALS(write(busy.ends[1], "y", 1), 1);
            EQUALS(read(busy.ends[1], &byte, 1), 1);
            EQUALS(rouse_thread_cancel(crew.members[0].thread), 0);
            crew_join(&crew);
        }
        (void)crew_add(&crew, CREW_USER, attempt_in_vain, &busy);
        (void)crew_add(&crew, CREW_USER, count_and_send, &busy);
        crew_join(&crew);
        if (has_one_worker())
            CHECK(busy.calls - busy.calls_before <= 2000 * 8 + 16);
        wire_close(busy.ends);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_get_their_turn),
        cmocka_unit_test(busy_threads_share),
        cmocka_unit_test(busy_connection_starves_nobody),
        cmocka_unit_test(failed_attempts_starve_nobody),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
