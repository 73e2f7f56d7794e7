/* SPDX-License-Identifier: MIT */
/*
 * sleep_lead_test.c - how a worker awaits its next deadline: asks early, waits the rest awake, seldom and not for long.
 *
 * The workers here are none of the runtime's.
 */
#include "core_test.h"
#include "core/core.h"

#define SHARE 16 /* as in sleep_lead.c */
#define MOST_NS (200 * US)

static struct rsi_worker worker_of(uint64_t lead_ns)
{
    struct rsi_worker w = { .lead_ns = lead_ns, .timer_next_ns = UINT64_MAX };
    return w;
}

static void the_kernels_lateness_is_learned(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(0);
    uint64_t lead = 0;
    for (int i = 0; i < 1000; i++) { /* always a second late */
        rsi_sleep_lead_ended(&w, rouse_now_ns() - SECOND);
        CHECK(w.lead_ns >= lead);
        lead = w.lead_ns;
    }
    CHECK(lead > 20 * US && lead < 200 * US); /* that is not to be made good */
    for (int i = 0; i < 1000; i++)
        rsi_sleep_lead_ended(&w, rouse_now_ns()); /* not late at all */
    CHECK(w.lead_ns < lead / 2);
    lead = w.lead_ns;
    for (int i = 0; i < 1000; i++)
        rsi_sleep_lead_ended(&w, rouse_now_ns() + SECOND); /* woken before: says nothing */
    rsi_sleep_lead_ended(&w, UINT64_MAX);
    CHECK_EQUAL(w.lead_ns, lead);
}

static void a_sleep_is_asked_for_ahead_of_its_deadline(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(30 * US);
    uint64_t far = rouse_now_ns() + SECOND;
    CHECK_EQUAL(rsi_sleep_lead_deadline(&w, far), far - 30 * US);
    CHECK_EQUAL(rsi_sleep_lead_deadline(&w, UINT64_MAX), UINT64_MAX);
    uint64_t past =
        rouse_now_ns(); /* nearer than the lead: a sleep that would end at once is none */
    CHECK_EQUAL(rsi_sleep_lead_deadline(&w, past), past);
}

/* Wait for a deadline 20 us away; returns whether it was awake. */
static bool nap(struct rsi_worker *w, uint64_t *spent_ns)
{
    uint64_t deadline = rouse_now_ns() + 20 * US;
    rsi_store_relaxed(&w->timer_next_ns, deadline);
    uint64_t begin = rouse_now_ns(); /* on a slow machine the rest is well below 20 us */
    bool is_awake = rsi_sleep_lead_spin(w);
    if (is_awake) {
        CHECK(rouse_now_ns() >= deadline);
        *spent_ns += begin < deadline ? deadline - begin : 0;
    }
    return is_awake;
}

static void waiting_awake_takes_a_small_share_of_the_time(void **state)
{
    (void)state;
    if (is_emulated()) {
        puts("not run: to an emulator the time between two instructions is long");
        return;
    }
    struct rsi_worker w = worker_of(60 * US);
    uint64_t begin = rouse_now_ns(), spent = 0;
    unsigned slept = 0;
    /* The first is had at once, unless it is preempted before it begins each time. */
    for (uint64_t end = begin + SECOND; !nap(&w, &spent);)
        CHECK(rouse_now_ns() < end);
    while (rouse_now_ns() - begin < 20 * MS)
        slept += !nap(&w, &spent);
    CHECK(slept > 0);
    /* The runtime counts a longer nap as longer. Five may be preempted before the runtime's first look at the clock. */
    CHECK(spent <= MOST_NS + (rouse_now_ns() - begin) / SHARE + 5 * 20 * US);
}

static void what_is_far_is_not_awaited_awake(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(10 * US);
    CHECK(!rsi_sleep_lead_spin(&w));
    w.timer_next_ns = rouse_now_ns() + SECOND;
    CHECK(!rsi_sleep_lead_spin(&w));
    w.timer_next_ns = rouse_now_ns(); /* due: there is nothing to wait for */
    CHECK(!rsi_sleep_lead_spin(&w));
}

static void who_is_woken_stops_waiting(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(1000 * SECOND);
    w.spin_credit_ns = MOST_NS;
    w.spin_seen_ns = rouse_now_ns();
    w.wake_word = 1;
    for (bool was_early = false; !was_early;) { /* unless it is preempted there each time */
        w.timer_next_ns = rouse_now_ns() + MOST_NS / 2;
        was_early = rsi_sleep_lead_spin(&w) && rouse_now_ns() < w.timer_next_ns;
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernels_lateness_is_learned),
        cmocka_unit_test(a_sleep_is_asked_for_ahead_of_its_deadline),
        cmocka_unit_test(waiting_awake_takes_a_small_share_of_the_time),
        cmocka_unit_test(what_is_far_is_not_awaited_awake),
        cmocka_unit_test(who_is_woken_stops_waiting),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
