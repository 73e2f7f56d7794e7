/* SPDX-License-Identifier: MIT */
/*
 * cancel_test.c - each cancel request is delivered once, at a blocking call, and no wake-up is lost
 * with it.
 */
#include "core_test.h"

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };
static struct rouse_sem gate = ROUSE_SEM_INIT(0);

static void *give_back(void *arg)
{
    return arg;
}

static void *wait_at_gate(void *arg)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    return arg;
}

static void *cancel_before(void *unused)
{
    struct rouse_thread *self = rouse_thread_self();
    CHECK(!rouse_thread_cancel_pending());
    for (int requests = 1; requests <= 3; requests++) {
        for (int i = 0; i < requests; i++)
            CHECK_EQUAL(rouse_thread_cancel(self), 0);
        for (int i = 0; i < requests; i++) {
            CHECK(rouse_thread_cancel_pending());
            rouse_thread_yield(); /* takes no unit */
            CHECK_EQUAL(rouse_sleep(SECOND * 1000), -ECANCELED);
        }
        CHECK(!rouse_thread_cancel_pending());
        CHECK_EQUAL(rouse_sleep(1), 0);
    }
    CHECK_EQUAL(rouse_thread_cancel(self), 0);
    CHECK_EQUAL(rouse_sleep(0), -ECANCELED);
    CHECK_EQUAL(rouse_thread_cancel(self), 0);
    CHECK_EQUAL(rouse_sleep_until(0), -ECANCELED);
    return unused;
}

static void each_request_ends_one_later_call(void **state)
{
    (void)state;
    in_every_kind(cancel_before, NULL);
}

static void *sleep_cancelled(void *unused)
{
    CHECK_EQUAL(rouse_sleep_until(ROUSE_FOREVER), -ECANCELED);
    CHECK_EQUAL(rouse_sleep(1000 * SECOND), -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
    CHECK_EQUAL(rouse_sleep(1000), 0);
    return unused;
}

static void *cancel_sleepers(void *unused)
{
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t = start(kinds[k], sleep_cancelled, NULL);
        for (int i = 0; i < 2; i++) {
            UNTIL(waits(t));
            CHECK_EQUAL(rouse_thread_cancel(t), 0);
        }
        join(t);
    }
    return unused;
}

static void a_sleeper_wakes_when_cancelled(void **state)
{
    (void)state;
    in_every_kind(cancel_sleepers, NULL);
}

static void *never_stopped(void *arg)
{
    CHECK_EQUAL(rouse_sleep(1000 * SECOND), -ECANCELED);
    return arg;
}

static void a_thread_may_be_cancelled_before_it_begins(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, never_stopped, &gate);
        CHECK_EQUAL(rouse_thread_cancel(t), 0);
        CHECK(join(t) == &gate);
    }
}

static void *join_cancelled(void *arg)
{
    struct rouse_thread *t = arg;
    CHECK_EQUAL(rouse_thread_join(t, NULL), -ECANCELED);
    CHECK_EQUAL(rouse_thread_join_until(t, NULL, rouse_now_ns() + 1000 * SECOND), -ECANCELED);
    rouse_sem_post(&gate);
    CHECK(join(t) == &gate);
    return t;
}

static void a_cancelled_join_leaves_the_thread_to_be_joined(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t = start(kinds[k], wait_at_gate, &gate);
        struct rouse_thread *joiner = start(kinds[k], join_cancelled, t);
        for (int i = 0; i < 2; i++) {
            UNTIL(waits(joiner));
            CHECK_EQUAL(rouse_thread_cancel(joiner), 0);
            UNTIL(rsi_load_acquire(&joiner->waiter.cancel) == 0);
        }
        join(joiner);
    }
}

static void *join_the_ended(void *arg)
{
    struct rouse_thread *t = arg;
    UNTIL(rsi_load_acquire(&t->join_word) == RSI_JOIN_ENDED);
    CHECK_EQUAL(rouse_thread_cancel(rouse_thread_self()), 0);
    CHECK_EQUAL(rouse_thread_join(t, NULL), 0);
    CHECK(rouse_thread_cancel_pending());
    CHECK_EQUAL(rouse_sleep(1), -ECANCELED);
    return arg;
}

static void a_wait_that_has_already_ended_is_not_cancelled(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t = start(kinds[k], give_back, NULL);
        join(start(kinds[k], join_the_ended, t));
    }
}

static void cancelling_an_ended_thread_reports_that_there_is_none(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t = start(kinds[k], give_back, NULL);
        UNTIL(rsi_load_acquire(&t->join_word) == RSI_JOIN_ENDED);
        CHECK_EQUAL(rouse_thread_cancel(t), -ESRCH);
        join(t);
    }
}

static void *park_uncancellable(void *unused)
{
    struct rouse_thread *self = rouse_thread_self();
    CHECK_EQUAL(rouse_thread_cancel(self), 0);
    uint64_t ticket = rsi_park_prepare(self, ROUSE_WAIT_NONE, NULL, NULL, rouse_now_ns() + MS, 0);
    CHECK_EQUAL(rsi_park_commit(self, ticket), -ETIMEDOUT);
    CHECK(rouse_thread_cancel_pending());
    ticket =
        rsi_park_prepare(self, ROUSE_WAIT_NONE, NULL, NULL, ROUSE_FOREVER, RSI_PARK_CANCELLABLE);
    CHECK_EQUAL(rsi_park_commit(self, ticket), -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
    return unused;
}

static void waits_that_are_not_cancelled_keep_the_request(void **state)
{
    (void)state;
    in_every_kind(park_uncancellable, NULL);
}

static void *call_blocking(void *unused)
{
    void *result = NULL;
    CHECK_EQUAL(rouse_thread_cancel(rouse_thread_self()), 0);
    CHECK_EQUAL(rouse_blocking(give_back, &gate, &result), 0);
    CHECK(result == &gate);
    CHECK(rouse_thread_cancel_pending());
    CHECK_EQUAL(rouse_sleep(1), -ECANCELED);
    return unused;
}

static void a_blocking_call_is_not_cancelled(void **state)
{
    (void)state;
    in_every_kind(call_blocking, NULL);
}

/* Every request is delivered exactly once, however the calls end. */
struct tally {
    uint32_t stop, delivered;
};

static void *count_requests(void *arg)
{
    struct tally *tally = arg;
    uint64_t random = rouse_thread_id(rouse_thread_self()) * 7919 | 1;
    while (!rsi_load_acquire(&tally->stop) || rouse_thread_cancel_pending()) {
        int result = rouse_sleep(rsi_random_next(&random) % (20 * US));
        CHECK(result == 0 || result == -ECANCELED);
        if (result)
            rsi_fetch_add_relaxed(&tally->delivered, 1u);
    }
    return NULL;
}

static void requests_at_any_moment_are_neither_lost_nor_doubled(void **state)
{
    (void)state;
    enum { COUNT = 8, REQUESTS = 20000 / SLOWER };
    struct tally tally = { 0 };
    struct rouse_thread *threads[COUNT];
    uint64_t random = seed_of_run();
    for (int i = 0; i < COUNT; i++)
        threads[i] = start(kinds[i % 2], count_requests, &tally);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK_EQUAL(rouse_thread_cancel(threads[rsi_random_next(&random) % COUNT]), 0);
        if (i % 16 == 0)
            rouse_thread_yield();
    }
    rsi_store_release(&tally.stop, 1u);
    for (int i = 0; i < COUNT; i++)
        join(threads[i]);
    CHECK_EQUAL(tally.delivered, REQUESTS);
}

struct meeting {
    struct rouse_thread *t;
    uint32_t cancelled;
};

static void *join_until_done(void *arg)
{
    struct meeting *meeting = arg;
    void *result = NULL;
    int error;
    while ((error = rouse_thread_join(meeting->t, &result)) == -ECANCELED)
        meeting->cancelled++;
    CHECK_EQUAL(error, 0);
    CHECK(result == meeting);
    /*
     * A long deadline: a canceller that is already at work may lose against a short one and then
     * leave its request pending.
     */
    while (rouse_thread_cancel_pending()) {
        CHECK_EQUAL(rouse_sleep(SECOND), -ECANCELED);
        meeting->cancelled++;
    }
    return NULL;
}

static void a_thread_end_that_meets_a_cancel_loses_neither(void **state)
{
    (void)state;
    for (int i = 0; i < 4000 / SLOWER; i++) {
        struct meeting meeting = { 0 };
        meeting.t = start(kinds[i & 1], wait_at_gate, &meeting);
        struct rouse_thread *joiner = start(kinds[i >> 1 & 1], join_until_done, &meeting);
        int sent = 0;
        if (i & 4)
            sent += rouse_thread_cancel(joiner) == 0;
        rouse_sem_post(&gate);
        sent += rouse_thread_cancel(joiner) == 0;
        /*
         * A request that arrives after the thread's last check stays pending and ends with the
         * thread.
         */
        join(joiner);
        CHECK(meeting.cancelled <= (unsigned)sent);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_ends_one_later_call),
        cmocka_unit_test(a_sleeper_wakes_when_cancelled),
        cmocka_unit_test(a_thread_may_be_cancelled_before_it_begins),
        cmocka_unit_test(a_cancelled_join_leaves_the_thread_to_be_joined),
        cmocka_unit_test(a_wait_that_has_already_ended_is_not_cancelled),
        cmocka_unit_test(cancelling_an_ended_thread_reports_that_there_is_none),
        cmocka_unit_test(waits_that_are_not_cancelled_keep_the_request),
        cmocka_unit_test(a_blocking_call_is_not_cancelled),
        cmocka_unit_test(requests_at_any_moment_are_neither_lost_nor_doubled),
        cmocka_unit_test(a_thread_end_that_meets_a_cancel_loses_neither),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
