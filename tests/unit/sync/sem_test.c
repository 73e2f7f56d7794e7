/* SPDX-License-Identifier: MIT */
/*
 * sem_test.c - units are neither lost nor created, waiters are served in their order; lifetime,
 * misuse.
 */
#include "sync_test.h"

static void counts(void **state)
{
    (void)state;
    struct rouse_sem s = ROUSE_SEM_INIT(2);
    assert_int_equal(rouse_sem_wait(&s), 0);
    assert_int_equal(rouse_sem_value(&s), 1);
    assert_int_equal(rouse_sem_wait_try(&s), 0);
    assert_int_equal(rouse_sem_wait_try(&s), -EAGAIN);
    assert_int_equal(rouse_sem_wait_until(&s, 0), -ETIMEDOUT);
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    assert_int_equal(rouse_sem_wait_until(&s, deadline_ns), -ETIMEDOUT);
    assert_true(rouse_now_ns() >= deadline_ns);
    assert_int_equal(rouse_sem_post(&s), 0);
    assert_int_equal(rouse_sem_wait_until(&s, 0), 0);
    assert_int_equal(rouse_sem_value(&s), 0);
    rouse_sem_destroy(&s);
    rouse_sem_init(&s, UINT32_MAX, "full");
    assert_int_equal(rouse_sem_post(&s), -EOVERFLOW);
    assert_int_equal(rouse_sem_value(&s), UINT32_MAX);
    assert_string_equal(s.name, "full");
}

struct order {
    struct rouse_sem s;
    unsigned served;
    struct rouse_mutex m;
    unsigned turns[64];
};

static void wait_and_sign(void *arg, unsigned index)
{
    struct order *o = arg;
    CHECK(rouse_sem_wait(&o->s) == 0);
    rouse_mutex_lock(&o->m);
    o->turns[o->served] = index;
    rsi_store_relaxed(&o->served, o->served + 1);
    rouse_mutex_unlock(&o->m);
}

static void serves_in_order_of_arrival(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct order o = { .served = 0 };
        for (unsigned i = 0; i < 30; i++) {
            (void)crew_add(&crew, (enum crew_kind)kind, wait_and_sign, &o);
            UNTIL(WAITING(&o.s) == i + 1);
        }
        for (unsigned i = 0; i < 30; i++) {
            assert_int_equal(rouse_sem_post(&o.s), 0);
            assert_int_equal(rouse_sem_value(&o.s), 0); /* handed over, not added to the count */
            UNTIL(rsi_load_relaxed(&o.served) == i + 1);
        }
        crew_join(&crew);
        for (unsigned i = 0; i < 30; i++)
            assert_int_equal(o.turns[i], i);
    }
}

#define RING 16
struct ring {
    struct rouse_sem sems[RING];
    unsigned rounds;
};

static void pass_on(void *arg, unsigned index)
{
    struct ring *ring = arg;
    for (unsigned i = 0; i < ring->rounds; i++) {
        CHECK(rouse_sem_wait(&ring->sems[index]) == 0);
        CHECK(rouse_sem_post(&ring->sems[(index + 1) % RING]) == 0);
    }
}

static void ring_goes_round(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct ring ring = { .rounds = (kind == CREW_USER ? 20000 : 300) / SCALE };
        rouse_sem_post(&ring.sems[0]);
        crew_run((enum crew_kind)kind, RING, pass_on, &ring);
        for (unsigned i = 0; i < RING; i++) {
            assert_int_equal(rouse_sem_value(&ring.sems[i]), i == 0);
            rouse_sem_destroy(&ring.sems[i]);
        }
    }
}

/* Units go round between threads that wait with short time-outs: none is lost or created. */
struct bank {
    struct rouse_sem s;
    unsigned rounds;
    uint32_t held, most;
};

static void borrow(void *arg, unsigned index)
{
    struct bank *bank = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned i = 0; i < bank->rounds;) {
        uint64_t patience_ns = rsi_random_next(&random) % 30000;
        int result = i % 3 == 0 ? rouse_sem_wait(&bank->s)
                                : rouse_sem_wait_until(&bank->s, rouse_now_ns() + patience_ns);
        if (result == -ETIMEDOUT)
            continue;
        CHECK(result == 0);
        CHECK(rsi_fetch_add_relaxed(&bank->held, 1u) < bank->most);
        if (patience_ns % 4 == 0)
            rouse_thread_yield();
        rsi_fetch_add_relaxed(&bank->held, -1u);
        CHECK(rouse_sem_post(&bank->s) == 0);
        i++;
    }
}

static void keeps_its_units(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct bank bank = { .rounds = (kind == CREW_USER ? 5000 : 500) / SCALE, .most = 3 };
        rouse_sem_init(&bank.s, bank.most, NULL);
        crew_run((enum crew_kind)kind, 10, borrow, &bank);
        assert_int_equal(rouse_sem_value(&bank.s), bank.most);
        rouse_sem_destroy(&bank.s);
    }
}

struct cancelled {
    struct rouse_sem s;
    int result;
};

static void wait_cancelled(void *arg, unsigned index)
{
    (void)index;
    struct cancelled *c = arg;
    c->result = rouse_sem_wait(&c->s);
    CHECK(!rouse_thread_cancel_pending());
}

static void cancel_ends_a_wait(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct cancelled c = { .result = 1 };
        struct rouse_thread *t = crew_add(&crew, (enum crew_kind)kind, wait_cancelled, &c);
        UNTIL(WAITING(&c.s) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        crew_join(&crew);
        assert_int_equal(c.result, -ECANCELED);
        assert_int_equal(rouse_sem_post(&c.s), 0);
        assert_int_equal(rouse_sem_value(&c.s), 1);
        rouse_sem_destroy(&c.s);
    }
}

/* The waiter that received the unit frees the semaphore while the poster is still inside post. */
struct reply {
    struct rouse_sem *s;
    struct rouse_sem ready, taken;
    unsigned rounds;
    struct grave grave;
};

static void ask(void *arg, unsigned index)
{
    (void)index;
    struct reply *r = arg;
    uint64_t random = seed_of_run();
    for (unsigned i = 0; i < r->rounds; i++) {
        struct rouse_sem *s = grave_new(sizeof *s);
        r->s = s;
        rouse_sem_post(&r->ready);
        unsigned pauses = (unsigned)(rsi_random_next(&random) % 64);
        for (unsigned j = 0; j < pauses; j++)
            rsi_cpu_relax();
        if (i % 2)
            while (rouse_sem_wait_try(s) < 0)
                rouse_thread_yield();
        else
            CHECK(rouse_sem_wait(s) == 0);
        grave_release(&r->grave, s, sizeof *s);
        CHECK(rouse_sem_wait(&r->taken) == 0);
    }
}

static void answer(void *arg, unsigned index)
{
    (void)index;
    struct reply *r = arg;
    for (unsigned i = 0; i < r->rounds; i++) {
        CHECK(rouse_sem_wait(&r->ready) == 0);
        CHECK(rouse_sem_post(r->s) == 0);
        CHECK(rouse_sem_post(&r->taken) == 0);
    }
}

static void semaphore_freed_by_the_waiter_is_not_touched(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct reply r = { .rounds = (kind == CREW_USER ? 20000 : 1000) / SCALE };
        grave_open(&r.grave, r.rounds, sizeof(struct rouse_sem));
        (void)crew_add(&crew, (enum crew_kind)kind, ask, &r);
        (void)crew_add(&crew, CREW_USER, answer, &r);
        crew_join(&crew);
        grave_check(&r.grave);
    }
}

static void wait_recorded(void *arg, unsigned index)
{
    (void)index;
    struct rouse_wait_record record;
    CHECK(rouse_sem_wait(arg) == 0);
    rouse_obs_last_wait(&record);
    CHECK(record.kind == ROUSE_WAIT_SEM && record.object == arg);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL);
    CHECK(record.wait_site && record.wake_site && record.wake_tsc >= record.since_tsc);
    CHECK(record.wait_count >= 1);
    CHECK(rouse_sem_wait_until(arg, rouse_now_ns() + MS) == -ETIMEDOUT);
    rouse_obs_last_wait(&record);
    CHECK(record.verdict == ROUSE_VERDICT_TIMEOUT && !record.wake_site);
}

static void wait_is_recorded(void **state)
{
    (void)state;
    static struct crew crew;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct rouse_sem s = ROUSE_SEM_INIT(0);
        (void)crew_add(&crew, (enum crew_kind)kind, wait_recorded, &s);
        UNTIL(WAITING(&s) == 1);
        rouse_sem_post(&s);
        crew_join(&crew);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static struct rouse_sem slots = ROUSE_SEM_INIT_NAMED(0, "slots");
static struct crew other;

static void wait_for_ever(void *arg, unsigned index)
{
    (void)index;
    (void)rouse_sem_wait(arg);
}

static void destroy_waited_for(void)
{
    (void)crew_add(&other, CREW_USER, wait_for_ever, &slots);
    UNTIL(WAITING(&slots) == 1);
    rouse_sem_destroy(&slots);
}

int main(int argc, char **argv)
{
    static const struct misuse misuses[] = {
        { "destroy_waited_for", "semaphore \"slots\"", destroy_waited_for },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(serves_in_order_of_arrival),
        cmocka_unit_test(ring_goes_round),
        cmocka_unit_test(keeps_its_units),
        cmocka_unit_test(cancel_ends_a_wait),
        cmocka_unit_test(semaphore_freed_by_the_waiter_is_not_touched),
        cmocka_unit_test(wait_is_recorded),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
