/* SPDX-License-Identifier: MIT */
/*
 * poll_exclusive_test.c - an event wakes one exclusive poller. If that thread turns to something
 * else before it has handled the event, it hands the wake-up on.
 */
#include "poll_test.h"

#define HERD 8

static struct crew crew;
static struct rouse_sem gate; /* only the thread that starts the test posts it */
static int ends[2], elsewhere[2];
static uint32_t woken, finished;

static void polls_again(void)
{
    struct pollfd other = { .fd = -1 };
    EQUALS(rouse_poll(&other, 1, 0), 0);
    UNTIL(rsi_load_relaxed(&woken) == HERD); /* does not park */
}

static void waits_for_a_semaphore(void)
{
    rouse_sem_wait(&gate);
}

static void sleeps(void)
{
    EQUALS(rouse_sleep(1), 0);
    rouse_sem_wait(&gate);
}

static void reads_elsewhere(void)
{
    char byte;
    EQUALS(rouse_read(elsewhere[0], &byte, 1), 1);
}

static void ends_itself(void)
{
}

static void *nothing(void *arg)
{
    return arg;
}

static void joins(void)
{
    struct rouse_thread *t;
    EQUALS(rouse_thread_create(&t, NULL, nothing, NULL), 0);
    EQUALS(rouse_thread_join(t, NULL), 0);
    rouse_sem_wait(&gate);
}

static const struct {
    const char *name;
    void (*turn_away)(void);
} ways[] = {
    { "polls again", polls_again }, { "waits for a semaphore", waits_for_a_semaphore },
    { "sleeps", sleeps },           { "reads elsewhere", reads_elsewhere },
    { "joins a thread", joins },    { "ends", ends_itself },
};

static void poll_and_turn_away(void *arg, unsigned index)
{
    struct pollfd fds[] = { { .fd = ends[0], .events = POLLIN },
                            { .fd = elsewhere[1], .events = POLLPRI } };
    (void)index;
    EQUALS(rouse_poll_exclusive(fds, LENGTH(fds), -1), 1);
    EQUALS(fds[0].revents, POLLIN);
    rsi_fetch_add_relaxed(&woken, 1u);
    ways[*(size_t *)arg].turn_away();
    rsi_fetch_add_relaxed(&finished, 1u);
}

static void open_all(void)
{
    woken = finished = 0;
    wire_open(WIRE_UNIX, ends);
    wire_open(WIRE_UNIX, elsewhere);
}

static void let_all_go(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        rouse_sem_post(&gate);
        put_bytes(elsewhere[1], 1);
    }
    crew_join(&crew);
    while (rouse_sem_wait_try(&gate) == 0)
        ;
    wire_close(ends);
    wire_close(elsewhere);
}

/* No thread reads: one event is handed on until every poller has been woken by it. */
static void a_wake_up_is_handed_on(void **state)
{
    (void)state;
    for (size_t way = 0; way < LENGTH(ways); way++)
        for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
            open_all();
            DOING("who is woken %s, %s threads", ways[way].name, kind_names[kind]);
            crew_add_many(&crew, kind, HERD, poll_and_turn_away, &way);
            UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
            put_bytes(ends[1], 1);
            UNTIL(rsi_load_relaxed(&woken) == HERD);
            let_all_go(HERD);
        }
}

static struct rouse_sem taken;

static void poll_and_take(void *arg, unsigned index)
{
    struct pollfd one = { .fd = ends[0], .events = POLLIN };
    struct rouse_wait_record record;
    char byte;
    (void)arg;
    (void)index;
    EQUALS(rouse_poll_exclusive_until(&one, 1, ROUSE_FOREVER), 1);
    rouse_obs_last_wait(&record);
    if (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF)
        EQUALS(record.wait_count - record.useless_count, 1);
    EQUALS(rouse_read(ends[0], &byte, 1), 1);
    rsi_fetch_add_relaxed(&woken, 1u);
    rouse_sem_post(&taken);
    rouse_sem_wait(&gate);
}

/* Each byte wakes one poller. Their later calls wake no other. */
static void one_event_wakes_one(void **state)
{
    (void)state;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
        open_all();
        DOING("%s threads", kind_names[kind]);
        crew_add_many(&crew, kind, HERD, poll_and_take, NULL);
        UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
        for (unsigned i = 1; i <= HERD; i++) {
            put_bytes(ends[1], 1);
            EQUALS(rouse_sem_wait(&taken), 0);
            UNTIL(waiter_count(&gate.guard, &gate.waiters) == i); /* it has parked since */
            EQUALS(await_count(ends[0], RSI_FD_READ), HERD - i);
            EQUALS(rsi_load_relaxed(&woken), i);
        }
        let_all_go(HERD);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static void take_and_spin(void *arg, unsigned index)
{
    struct pollfd one = { .fd = ends[0], .events = POLLIN };
    char byte;
    (void)arg;
    (void)index;
    EQUALS(rouse_poll_exclusive(&one, 1, -1), 1);
    EQUALS(rouse_read(ends[0], &byte, 1), 1);
    rsi_fetch_add_relaxed(&woken, 1u);
    UNTIL(rsi_load_relaxed(&woken) == HERD); /* yields, and never parks */
}

/* One event brings data for every poller. The read passes on what is left; no later park does. */
static void a_read_passes_on_what_it_leaves(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
        open_all();
        DOING("%s threads", kind_names[kind]);
        crew_add_many(&crew, kind, HERD, take_and_spin, NULL);
        UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
        put_bytes(ends[1], HERD);
        let_all_go(0);
    }
}

static void read_byte(void *arg, unsigned index)
{
    char byte;
    (void)arg;
    (void)index;
    EQUALS(rouse_read(ends[0], &byte, 1), 1);
    rsi_fetch_add_relaxed(&finished, 1u);
}

/* Readers wait behind exclusive pollers that do not read. They receive their bytes all the same. */
static void readers_receive_bytes_that_exclusive_pollers_leave(void **state)
{
    (void)state;
    size_t way = 1;
    open_all();
    for (unsigned i = 0; i < HERD; i++) {
        (void)crew_add(&crew, CREW_MIXED, poll_and_turn_away, &way);
        UNTIL(await_count(ends[0], RSI_FD_READ) == 2 * i + 1);
        (void)crew_add(&crew, CREW_USER, read_byte, NULL);
        UNTIL(await_count(ends[0], RSI_FD_READ) == 2 * i + 2);
    }
    put_bytes(ends[1], HERD);
    UNTIL(rsi_load_relaxed(&finished) == HERD);
    put_bytes(ends[1], 1);
    UNTIL(rsi_load_relaxed(&woken) == HERD);
    let_all_go(HERD);
}

/* Pollers that are not exclusive wake at each event and take no part in handing it on. */
static void non_exclusive_pollers_are_notified_too(void **state)
{
    (void)state;
    size_t way = 1;
    struct wish wishes[HERD];
    open_all();
    for (unsigned i = 0; i < HERD; i++) {
        wishes[i] = (struct wish)WISH(ends[0], POLLIN);
        (void)crew_add(&crew, CREW_MIXED, wish_main, &wishes[i]);
        (void)crew_add(&crew, CREW_MIXED, poll_and_turn_away, &way);
    }
    UNTIL(await_count(ends[0], RSI_FD_READ) == 2 * HERD);
    put_bytes(ends[1], 1);
    UNTIL(rsi_load_relaxed(&woken) == HERD);
    let_all_go(HERD);
    for (unsigned i = 0; i < HERD; i++)
        EQUALS(wishes[i].result, 1);
}

/*
 * The end of a stream concerns every poller and is handed on from one to the next. A close notifies
 * all of them at once.
 */
static void everyone_learns_of_the_end(void **state)
{
    (void)state;
    size_t way = 5;
    open_all();
    crew_add_many(&crew, CREW_MIXED, HERD, poll_and_turn_away, &way);
    UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
    EQUALS(shutdown(ends[1], SHUT_WR), 0);
    UNTIL(rsi_load_relaxed(&woken) == HERD);
    let_all_go(0);
}

static void poll_until_closed(void *arg, unsigned index)
{
    struct pollfd one = { .fd = ends[0], .events = POLLIN };
    (void)arg;
    (void)index;
    EQUALS(rouse_poll_exclusive(&one, 1, -1), 1);
    EQUALS(one.revents, POLLNVAL);
}

static void everyone_learns_of_a_close(void **state)
{
    (void)state;
    open_all();
    crew_add_many(&crew, CREW_MIXED, HERD, poll_until_closed, NULL);
    UNTIL(await_count(ends[0], RSI_FD_READ) == HERD);
    EQUALS(rouse_close(ends[0]), 0);
    crew_join(&crew);
    close(ends[1]);
    wire_close(elsewhere);
}

/* The wake-up to hand on was for a number that is another descriptor by now. */
static void poll_then_wait(void *arg, unsigned index)
{
    struct pollfd one = { .fd = ends[0], .events = POLLIN };
    (void)arg;
    (void)index;
    EQUALS(rouse_poll_exclusive(&one, 1, -1), 1);
    rsi_fetch_add_relaxed(&woken, 1u);
    UNTIL(rsi_load_relaxed(&finished) == 1);
    rouse_sem_wait(&gate);
}

static void a_reused_number_is_not_harmed(void **state)
{
    (void)state;
    int next[2];
    open_all();
    (void)crew_add(&crew, CREW_USER, poll_then_wait, NULL);
    UNTIL(await_count(ends[0], RSI_FD_READ) == 1);
    put_bytes(ends[1], 1);
    UNTIL(rsi_load_relaxed(&woken) == 1);
    EQUALS(rouse_close(ends[0]), 0);
    wire_open(WIRE_PIPE, next);
    EQUALS(next[0], ends[0]);
    struct wish wish = WISH(next[0], POLLIN);
    static struct crew others;
    (void)crew_add(&others, CREW_USER, wish_main, &wish);
    UNTIL(await_count(next[0], RSI_FD_READ) == 1);
    rsi_store_relaxed(&finished, 1u);
    UNTIL(waiter_count(&gate.guard, &gate.waiters) == 1);
    EQUALS(await_count(next[0], RSI_FD_READ), 1);
    put_bytes(next[1], 1);
    crew_join(&others);
    EQUALS(wish.result, 1);
    close(next[1]);
    ends[0] = next[0];
    let_all_go(1);
}

/*
 * The first to wait in this process is a kernel thread: workers that sleep already must start to
 * poll.
 */
static void a_kernel_thread_may_be_the_first(void **state)
{
    (void)state;
    open_all();
    (void)crew_add(&crew, CREW_FOREIGN, poll_and_take, NULL);
    UNTIL(await_count(ends[0], RSI_FD_READ) == 1);
    put_bytes(ends[1], 1);
    EQUALS(rouse_sem_wait(&taken), 0);
    let_all_go(1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_thread_may_be_the_first),
        cmocka_unit_test(a_wake_up_is_handed_on),
        cmocka_unit_test(one_event_wakes_one),
        cmocka_unit_test(a_read_passes_on_what_it_leaves),
        cmocka_unit_test(readers_receive_bytes_that_exclusive_pollers_leave),
        cmocka_unit_test(non_exclusive_pollers_are_notified_too),
        cmocka_unit_test(everyone_learns_of_the_end),
        cmocka_unit_test(everyone_learns_of_a_close),
        cmocka_unit_test(a_reused_number_is_not_harmed),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
