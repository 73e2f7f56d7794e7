/* SPDX-License-Identifier: MIT */
/*
 * join_races_test.c - the end of a thread races with joiners that give up, join again, detach, are
 * cancelled, or come two at a time. The environment sets ROUSE_SEED and ROUSE_SCALE (rounds in
 * percent).
 */
#include "unit/core/core_test.h"

static uint64_t random_state;
static uint64_t rounds;

static uint64_t below(uint64_t n)
{
    return rsi_random_next(&random_state) % n;
}

static void *end_soon(void *turns)
{
    for (uintptr_t i = 0; i < (uintptr_t)turns; i++)
        rouse_thread_yield();
    return turns;
}

static enum rouse_kind any_kind(void)
{
    return below(8) == 0 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER;
}

/* Joins with time-outs close to the thread's own run time. Counts how often the join gave up. */
static uint64_t join_impatiently(struct rouse_thread *t, uint64_t most)
{
    uint64_t given_up = 0;
    int result = -ETIMEDOUT;
    while (result == -ETIMEDOUT && given_up <= most) {
        result = rouse_thread_join_until(t, NULL, rouse_now_ns() + below(20 * US));
        given_up += result == -ETIMEDOUT;
    }
    CHECK(result == 0 || result == -ETIMEDOUT);
    return given_up;
}

static void *give_up_and_join_again(void *unused)
{
    for (uint64_t i = 0; i < rounds; i++)
        join_impatiently(start(any_kind(), end_soon, (void *)(uintptr_t)below(50)), UINT64_MAX);
    return unused;
}

static void a_joiner_that_gave_up_joins_again(void **state)
{
    (void)state;
    in_every_kind(give_up_and_join_again, NULL);
}

static void *give_up_and_detach(void *unused)
{
    for (uint64_t i = 0; i < rounds; i++) {
        struct rouse_thread *t = start(any_kind(), end_soon, (void *)(uintptr_t)below(50));
        if (join_impatiently(t, 0) != 0)
            CHECK_EQUAL(rouse_thread_detach(t), 0);
    }
    return unused;
}

static void a_joiner_that_gave_up_detaches(void **state)
{
    (void)state;
    in_every_kind(give_up_and_detach, NULL);
}

/* Two threads join one thread, which ends only after one of them has received -EINVAL. */
struct pair {
    struct rouse_thread *target;
    struct rouse_barrier start;
    struct rouse_sem refused;
};

static void *end_after_refusal(void *arg)
{
    struct pair *pair = arg;
    CHECK_EQUAL(rouse_sem_wait(&pair->refused), 0);
    return arg;
}

static void *join_beside(void *arg)
{
    struct pair *pair = arg;
    rouse_barrier_wait(&pair->start);
    int result = rouse_thread_join(pair->target, NULL);
    CHECK(result == 0 || result == -EINVAL);
    if (result == -EINVAL)
        CHECK_EQUAL(rouse_sem_post(&pair->refused), 0);
    return (void *)(intptr_t)result;
}

static void of_two_joiners_one_is_refused(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < rounds; i++) {
        struct pair pair = { .start = ROUSE_BARRIER_INIT(2), .refused = ROUSE_SEM_INIT(0) };
        pair.target = start(any_kind(), end_after_refusal, &pair);
        struct rouse_thread *one = start(any_kind(), join_beside, &pair);
        struct rouse_thread *other = start(any_kind(), join_beside, &pair);
        CHECK_EQUAL((intptr_t)join(one) + (intptr_t)join(other), -EINVAL);
    }
}

/*
 * Each cancel request is reported by a join or stays pending. A join that reported one is repeated.
 */
struct cancelled {
    struct rouse_thread *target;
    uint64_t requests;
};

static void *join_while_cancelled(void *arg)
{
    struct cancelled *cancelled = arg;
    intptr_t told = 0;
    for (int result = -ECANCELED; result == -ECANCELED; told += result == -ECANCELED)
        result = rouse_thread_join(cancelled->target, NULL);
    while ((uint64_t)told < cancelled->requests) {
        CHECK_EQUAL(rouse_sleep_until(ROUSE_FOREVER), -ECANCELED);
        told++;
    }
    CHECK(!rouse_thread_cancel_pending());
    return NULL;
}

static void a_cancelled_join_loses_no_request(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < rounds; i++) {
        struct cancelled cancelled = { .requests = 1 + below(3) };
        cancelled.target = start(any_kind(), end_soon, (void *)(uintptr_t)below(50));
        struct rouse_thread *joiner = start(any_kind(), join_while_cancelled, &cancelled);
        for (uint64_t request = 0; request < cancelled.requests; request++)
            CHECK_EQUAL(rouse_thread_cancel(joiner), 0);
        join(joiner);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_joiner_that_gave_up_joins_again),
        cmocka_unit_test(a_joiner_that_gave_up_detaches),
        cmocka_unit_test(of_two_joiners_one_is_refused),
        cmocka_unit_test(a_cancelled_join_loses_no_request),
    };
    setenv("ROUSE_TEST_DELAY", "60", 0); /* for the runs that this one starts */
    random_state = seed_of_run();
    rounds = 3000 * number_from("ROUSE_SCALE", 100) / 100 / SLOWER;
    struct program program = {
        .limit_s = 120, .every_number = true, .tests = tests, .test_count = LENGTH(tests)
    };
    return program_run(&program, argc, argv);
}
