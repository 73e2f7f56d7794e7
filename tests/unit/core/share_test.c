/* SPDX-License-Identifier: MIT */
/* share_test.c - which queues are short, by the turns and costs that were measured. */
#include "core_test.h"
#include "core/core.h"
#include "core/idle.h"

static struct rsi_worker worker;

static void set_up(uint32_t cost_ns)
{
    memset(&worker, 0, sizeof worker);
    worker.turn_ns = UINT32_MAX;
    rsi_rt.watching = 1;
    rsi_rt.share_ns = rsi_rt.wake_cost_ns = rsi_rt.search_cost_ns = 0;
    for (int i = 0; i < 1000; i++)
        rsi_share_measure_search(cost_ns);
}

/* The worker has had turns of this length, and looks. */
static void have_turns(uint64_t turns, uint64_t each_ns)
{
    worker.turns += turns;
    rsi_share_measure_turns(&worker, turns * each_ns);
}

static bool is_short(uint32_t length)
{
    worker.queue_length = length;
    return rsi_share_not(&worker);
}

static void a_queue_is_short_if_its_turns_take_less_than_sharing_it_twice(void **state)
{
    (void)state;
    set_up(10000);
    have_turns(100, 100);
    CHECK(is_short(0));
    CHECK(is_short(150));
    CHECK(!is_short(250));
}

static void no_queue_is_short_before_turns_are_measured(void **state)
{
    (void)state;
    set_up(10000);
    CHECK(is_short(0));
    CHECK(!is_short(1));
}

static void no_queue_is_short_while_nobody_watches(void **state)
{
    (void)state;
    set_up(10000);
    have_turns(100, 100);
    rsi_rt.watching = 0;
    CHECK(!is_short(1));
}

static void a_long_turn_after_short_ones_counts_at_once(void **state)
{
    (void)state;
    set_up(10000);
    for (int i = 0; i < 100; i++)
        have_turns(1000, 20);
    CHECK(is_short(500));
    have_turns(1, 10000000);
    CHECK(!is_short(1));
}

/* As those of a program that a debugger stops soon after its start. */
static void first_turns_may_take_longer_than_4_seconds(void **state)
{
    (void)state;
    for (uint64_t each_ns = UINT32_MAX - 1; each_ns <= UINT64_C(10000000000);
         each_ns += UINT64_C(1000000000)) {
        set_up(10000);
        have_turns(64, each_ns);
        CHECK(!is_short(1));
        for (int i = 0; i < 200; i++)
            have_turns(1000, 20);
        CHECK(is_short(500));
    }
    set_up(10000);
    have_turns(64, UINT32_MAX);
    CHECK(!is_short(1));
}

static void a_look_without_a_turn_changes_nothing(void **state)
{
    (void)state;
    set_up(10000);
    have_turns(100, 100);
    have_turns(0, 1000000);
    rsi_share_measure_turns(&worker, 1000000);
    CHECK(is_short(150));
}

static void no_queue_that_takes_longer_than_120_us_is_short(void **state)
{
    (void)state;
    set_up(1000000000);
    for (int i = 0; i < 1000; i++)
        rsi_share_measure_wake(1000000000);
    have_turns(100, 1000);
    CHECK(is_short(110));
    CHECK(!is_short(121));
}

static void one_worker_may_search_and_another_one_for_every_8(void **state)
{
    static struct rouse_cluster cluster;
    (void)state;
    for (uint32_t workers = 1; workers < 100; workers++) {
        cluster.worker_count = workers;
        cluster.searching = 0;
        CHECK(!rsi_idle_is_searched(&cluster));
        cluster.searching = workers / 8;
        CHECK(!rsi_idle_is_searched(&cluster));
        cluster.searching = workers / 8 + 1;
        CHECK(rsi_idle_is_searched(&cluster));
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_queue_is_short_if_its_turns_take_less_than_sharing_it_twice),
        cmocka_unit_test(no_queue_is_short_before_turns_are_measured),
        cmocka_unit_test(no_queue_is_short_while_nobody_watches),
        cmocka_unit_test(a_long_turn_after_short_ones_counts_at_once),
        cmocka_unit_test(first_turns_may_take_longer_than_4_seconds),
        cmocka_unit_test(a_look_without_a_turn_changes_nothing),
        cmocka_unit_test(no_queue_that_takes_longer_than_120_us_is_short),
        cmocka_unit_test(one_worker_may_search_and_another_one_for_every_8),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
