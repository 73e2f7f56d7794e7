/* SPDX-License-Identifier: MIT */
/*
 * sleep_lead_test.c - how a worker waits for its next deadline: it asks the kernel to wake it early
 * and spins for the rest. It spins seldom and never for long.
 *
 * The workers here are not the runtime's.
 */
#include "core_test.h"
#include "core/core.h"

#define SHARE 16 /* as in sleep_lead.c */
#define MOST_NS (500 * US)

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
    CHECK(lead > 20 * US && lead < 300 * US); /* no lead can make up for this */
    for (int i = 0; i < 1000; i++)
        rsi_sleep_lead_ended(&w, rouse_now_ns()); /* not late at all */
    CHECK(w.lead_ns < lead / 2);
    lead = w.lead_ns;
    for (int i = 0; i < 1000; i++)
        rsi_sleep_lead_ended(&w, rouse_now_ns() + SECOND); /* woken early: no information */
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
    /* nearer than the lead: no sleep, for it would end at once */
    uint64_t past = rouse_now_ns();
    CHECK_EQUAL(rsi_sleep_lead_deadline(&w, past), past);
}

/* Wait for a deadline 20 us away. Returns whether the worker spun until then. */
static bool nap(struct rsi_worker *w, uint64_t *spent_ns)
{
    uint64_t deadline = rouse_now_ns() + 20 * US;
    rsi_store_relaxed(&w->timer_next_ns, deadline);
    uint64_t begin = rouse_now_ns(); /* on a slow machine the rest is well below 20 us */
    bool is_awake = rsi_sleep_lead_spin(w, w->timer_next_ns);
    if (is_awake) {
        CHECK(rouse_now_ns() >= deadline);
        *spent_ns += begin < deadline ? deadline - begin : 0;
    }
    return is_awake;
}

static void spinning_takes_a_small_share_of_the_time(void **state)
{
    (void)state;
    if (is_emulated()) {
        puts("not run: to an emulator the time between two instructions is long");
        return;
    }
    struct rsi_worker w = worker_of(60 * US);
    uint64_t begin = rouse_now_ns(), spent = 0;
    unsigned slept = 0;
    /* The first spin is allowed at once, unless the thread is preempted before each one begins. */
    for (uint64_t end = begin + SECOND; !nap(&w, &spent);)
        CHECK(rouse_now_ns() < end);
    while (rouse_now_ns() - begin < 20 * MS)
        slept += !nap(&w, &spent);
    CHECK(slept > 0);
    /*
     * The runtime charges a longer spin as longer. Up to five may be preempted before the runtime
     * first reads the clock.
     */
    CHECK(spent <= MOST_NS + (rouse_now_ns() - begin) / SHARE + 5 * 20 * US);
}

static void a_far_deadline_is_not_spun_for(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(10 * US);
    CHECK(!rsi_sleep_lead_spin(&w, w.timer_next_ns));
    w.timer_next_ns = rouse_now_ns() + SECOND;
    CHECK(!rsi_sleep_lead_spin(&w, w.timer_next_ns));
    w.timer_next_ns = rouse_now_ns(); /* due already, so there is nothing to wait for */
    CHECK(!rsi_sleep_lead_spin(&w, w.timer_next_ns));
}

static void a_woken_worker_stops_spinning(void **state)
{
    (void)state;
    struct rsi_worker w = worker_of(1000 * SECOND);
    w.spin_credit_ns = MOST_NS;
    w.spin_seen_ns = rouse_now_ns();
    w.wake_word = 1;
    for (bool was_early = false; !was_early;) { /* unless the thread is preempted there each time */
        w.timer_next_ns = rouse_now_ns() + MOST_NS / 2;
        was_early = rsi_sleep_lead_spin(&w, w.timer_next_ns) && rouse_now_ns() < w.timer_next_ns;
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernels_lateness_is_learned),
        cmocka_unit_test(a_sleep_is_asked_for_ahead_of_its_deadline),
        cmocka_unit_test(spinning_takes_a_small_share_of_the_time),
        cmocka_unit_test(a_far_deadline_is_not_spun_for),
        cmocka_unit_test(a_woken_worker_stops_spinning),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
