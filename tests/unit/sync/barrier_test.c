/* SPDX-License-Identifier: MIT */
/* barrier_test.c - either all threads pass or none; withdrawn arrivals, lifetime, misuse. */
#include "sync_test.h"

static void lets_the_last_pass(void **state)
{
    (void)state;
    struct rouse_barrier alone = ROUSE_BARRIER_INIT(1), b = ROUSE_BARRIER_INIT_NAMED(2, "pair");
    assert_int_equal(rouse_barrier_wait(&alone), 1);
    assert_int_equal(rouse_barrier_wait_try(&alone), 1);
    assert_int_equal(rouse_barrier_wait_until(&alone, 0), 1);
    assert_int_equal(rouse_barrier_wait_try(&b), -EBUSY);
    assert_int_equal(rouse_barrier_wait_until(&b, 0), -ETIMEDOUT);
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    assert_int_equal(rouse_barrier_wait_until(&b, deadline_ns), -ETIMEDOUT);
    assert_true(rouse_now_ns() >= deadline_ns);
    assert_int_equal(b.arrived, 0); /* both arrivals were withdrawn */
    assert_string_equal(b.name, "pair");
    rouse_barrier_destroy(&alone);
    rouse_barrier_destroy(&b);
    rouse_barrier_init(&b, 3, "again");
    assert_int_equal(b.parties, 3);
    assert_string_equal(b.name, "again");
}

#define ROUNDS 2000
struct team {
    struct rouse_barrier b;
    unsigned parties, rounds;
    uint32_t arrived[ROUNDS], last[ROUNDS];
    bool is_impatient, cancels;
    struct crew crew;
};

static int wait_somehow(struct team *team, uint64_t *random)
{
    if (!team->is_impatient)
        return rouse_barrier_wait(&team->b);
    uint64_t r = rsi_random_next(random) >> 8;
    if (r % 8 == 0)
        return rouse_barrier_wait_try(&team->b);
    return rouse_barrier_wait_until(&team->b, rouse_now_ns() + r % 50000);
}

static void pass_all_rounds(void *arg, unsigned index)
{
    struct team *team = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned round = 0; round < team->rounds; round++) {
        rsi_fetch_add_relaxed(&team->arrived[round], 1u);
        int result;
        while ((result = wait_somehow(team, &random)) < 0) {
            CHECK(team->is_impatient);
            CHECK(result == -ETIMEDOUT || result == -EBUSY ||
                  (team->cancels && result == -ECANCELED));
        }
        CHECK(rsi_load_relaxed(&team->arrived[round]) == team->parties);
        if (result == 1)
            CHECK(rsi_fetch_add_relaxed(&team->last[round], 1u) == 0);
    }
}

static void team_check(struct team *team)
{
    for (unsigned round = 0; round < team->rounds; round++)
        assert_int_equal(team->last[round], 1);
    assert_int_equal(team->b.arrived, 0);
    assert_int_equal(team->b.leaving, 0);
    rouse_barrier_destroy(&team->b);
}

static void team_begin(struct team *team, unsigned parties, unsigned rounds)
{
    memset(team, 0, sizeof *team);
    team->parties = parties;
    team->rounds = rounds / SCALE;
    rouse_barrier_init(&team->b, parties, "team");
}

static void nobody_passes_before_the_last_has_come(void **state)
{
    (void)state;
    static struct team team;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        team_begin(&team, 8, kind == CREW_USER ? ROUNDS : 300);
        crew_add_many(&team.crew, (enum crew_kind)kind, 8, pass_all_rounds, &team);
        crew_join(&team.crew);
        team_check(&team);
    }
}

static void arrivals_are_withdrawn(void **state)
{
    (void)state;
    static struct team team;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        team_begin(&team, 4, kind == CREW_USER ? ROUNDS : 200);
        team.is_impatient = true;
        crew_add_many(&team.crew, (enum crew_kind)kind, 4, pass_all_rounds, &team);
        crew_join(&team.crew);
        team_check(&team);
    }
}

static void cancels_withdraw_arrivals(void **state)
{
    (void)state;
    static struct team team;
    uint64_t random = seed_of_run();
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        team_begin(&team, 4, 400);
        team.is_impatient = team.cancels = true;
        team.parties = 5;
        rouse_barrier_init(&team.b, 5, "team");
        crew_add_many(&team.crew, (enum crew_kind)kind, 4, pass_all_rounds, &team);
        for (unsigned round = 0; round < team.rounds; round++) {
            /* all waiters are there; the fifth thread is still to come */
            for (unsigned i = 0; i < 2; i++)
                (void)rouse_thread_cancel(team.crew.members[rsi_random_next(&random) % 4].thread);
            rsi_fetch_add_relaxed(&team.arrived[round], 1u);
            if (rouse_barrier_wait(&team.b) == 1)
                CHECK(rsi_fetch_add_relaxed(&team.last[round], 1u) == 0);
            CHECK(rsi_load_relaxed(&team.arrived[round]) == 5);
        }
        crew_join(&team.crew);
        team_check(&team);
    }
}

static void wait_cancelled(void *arg, unsigned index)
{
    (void)index;
    struct team *team = arg;
    CHECK(rouse_barrier_wait_until(&team->b, ROUSE_FOREVER) == -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
    rsi_store_relaxed(&team->arrived[0], 1u);
    CHECK(rouse_barrier_wait(&team->b) == 0); /* cannot be cancelled */
    CHECK(rouse_thread_cancel_pending());
}

static void cancel_ends_until_and_not_the_plain_wait(void **state)
{
    (void)state;
    static struct team team;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        team_begin(&team, 2, 0);
        struct rouse_thread *t = crew_add(&team.crew, (enum crew_kind)kind, wait_cancelled, &team);
        UNTIL(WAITING(&team.b) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        UNTIL(rsi_load_relaxed(&team.arrived[0]) == 1 && WAITING(&team.b) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        for (unsigned i = 0; i < 100; i++)
            rouse_thread_yield();
        assert_int_equal(WAITING(&team.b), 1);
        assert_int_equal(rouse_barrier_wait(&team.b), 1);
        crew_join(&team.crew);
        team_check(&team);
    }
}

/*
 * The last thread to arrive destroys and frees the barrier while others still find out that they
 * passed.
 */
struct freeing {
    unsigned rounds;
    struct rouse_barrier **barriers;
    struct grave grave;
};

static void pass_and_free(void *arg, unsigned index)
{
    struct freeing *f = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned i = 0; i < f->rounds; i++) {
        struct rouse_barrier *b = f->barriers[i];
        int result;
        do
            result = rouse_barrier_wait_until(b, rouse_now_ns() + rsi_random_next(&random) % 20000);
        while (result < 0);
        if (result == 1) {
            rouse_barrier_destroy(b);
            grave_release(&f->grave, b, sizeof *b);
        }
    }
}

static void barrier_freed_by_the_last_is_not_touched(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct freeing f = { .rounds = (kind == CREW_USER ? 5000 : 1000) / SCALE };
        f.barriers = calloc(f.rounds, sizeof *f.barriers);
        assert_non_null(f.barriers);
        grave_open(&f.grave, f.rounds, sizeof(struct rouse_barrier));
        for (unsigned i = 0; i < f.rounds; i++) {
            f.barriers[i] = grave_new(sizeof(struct rouse_barrier));
            rouse_barrier_init(f.barriers[i], 3, NULL);
        }
        crew_run((enum crew_kind)kind, 3, pass_and_free, &f);
        grave_check(&f.grave);
        free(f.barriers);
    }
}

static void wait_recorded(void *arg, unsigned index)
{
    (void)index;
    struct team *team = arg;
    struct rouse_wait_record record;
    CHECK(rouse_barrier_wait(&team->b) == 0);
    rouse_obs_last_wait(&record);
    CHECK(record.kind == ROUSE_WAIT_BARRIER && record.object == &team->b);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL && record.wait_site && record.wake_site);
}

static void waits_are_recorded(void **state)
{
    (void)state;
    static struct team team;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        team_begin(&team, 4, 0);
        crew_add_many(&team.crew, (enum crew_kind)kind, 3, wait_recorded, &team);
        UNTIL(WAITING(&team.b) == 3);
        assert_int_equal(rouse_barrier_wait(&team.b), 1);
        crew_join(&team.crew);
        team_check(&team);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static struct rouse_barrier gate = ROUSE_BARRIER_INIT_NAMED(2, "gate");
static struct crew other;

static void wait_for_ever(void *arg, unsigned index)
{
    (void)index;
    (void)rouse_barrier_wait(arg);
}

static void destroy_waited_for(void)
{
    (void)crew_add(&other, CREW_USER, wait_for_ever, &gate);
    UNTIL(WAITING(&gate) == 1);
    rouse_barrier_destroy(&gate);
}

int main(int argc, char **argv)
{
    static const struct misuse misuses[] = {
        { "destroy_waited_for", "barrier \"gate\"", destroy_waited_for },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lets_the_last_pass),
        cmocka_unit_test(nobody_passes_before_the_last_has_come),
        cmocka_unit_test(arrivals_are_withdrawn),
        cmocka_unit_test(cancels_withdraw_arrivals),
        cmocka_unit_test(cancel_ends_until_and_not_the_plain_wait),
        cmocka_unit_test(barrier_freed_by_the_last_is_not_touched),
        cmocka_unit_test(waits_are_recorded),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
