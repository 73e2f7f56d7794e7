/* SPDX-License-Identifier: MIT */
/* cond_record_test.c - the wait record of a condition's waiters and of spurious wake-ups. */
#include "sync_test.h"

struct gate {
    struct rouse_mutex m;
    struct rouse_cond c;
    unsigned passed, tickets;
    unsigned turns[64];
};

static bool is_shut(void *arg)
{
    return ((struct gate *)arg)->tickets == 0;
}

static void gate_check_left(struct gate *gate)
{
    assert_int_equal(gate->c.waiting, 0);
    rouse_cond_destroy(&gate->c);
    rouse_mutex_destroy(&gate->m);
}

/* The verdicts where the mutex is free when the woken thread locks it. */
static void wait_judged(void *arg, unsigned index)
{
    (void)index;
    struct gate *gate = arg;
    struct rouse_wait_record record;
    rouse_mutex_lock(&gate->m);
    CHECK(rouse_cond_wait_while(&gate->c, &gate->m, is_shut, gate) == 0);
    rouse_obs_last_wait(&record);
    CHECK(record.kind == ROUSE_WAIT_COND && record.object == &gate->c);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL && record.useless_count == 3);
    CHECK(record.wake_site && record.wait_site);
    gate->tickets = 0;
    CHECK(rouse_cond_wait_while_until(&gate->c, &gate->m, is_shut, gate, rouse_now_ns() + MS) ==
          -ETIMEDOUT);
    rouse_obs_last_wait(&record);
    CHECK(record.verdict == ROUSE_VERDICT_TIMEOUT && record.useless_count == 3);
    rouse_mutex_unlock(&gate->m);
}

static void useless_wakeups_are_counted(void **state)
{
    (void)state;
    static struct crew crew;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct gate gate = { .tickets = 0 };
        (void)crew_add(&crew, (enum crew_kind)kind, wait_judged, &gate);
        for (unsigned i = 0; i < 4; i++) {
            UNTIL(WAITING(&gate.c) == 1);
            rouse_mutex_lock(&gate.m);
            gate.tickets = i == 3;
            rouse_mutex_unlock(&gate.m);
            rouse_cond_signal(&gate.c);
        }
        crew_join(&crew);
        gate_check_left(&gate);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static void wait_in_herd(void *arg, unsigned index)
{
    (void)index;
    struct gate *gate = arg;
    struct rouse_wait_record record;
    rouse_mutex_lock(&gate->m);
    CHECK(rouse_cond_wait_while(&gate->c, &gate->m, is_shut, gate) == 0);
    gate->tickets--;
    rouse_obs_last_wait(&record);
    gate->turns[gate->passed++] = (unsigned)record.useless_count;
    rouse_mutex_unlock(&gate->m);
}

/* Each broadcast is of use to one thread. Most of the others also have to wait for the mutex. */
static void useless_wakeups_of_a_herd_are_counted(void **state)
{
    (void)state;
    static struct crew crew;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct gate gate = { .tickets = 0 };
        crew_add_many(&crew, (enum crew_kind)kind, 20, wait_in_herd, &gate);
        for (unsigned left = 20; left > 0; left--) {
            UNTIL(WAITING(&gate.c) == left);
            rouse_mutex_lock(&gate.m);
            gate.tickets++;
            rouse_cond_broadcast(&gate.c);
            rouse_mutex_unlock(&gate.m);
        }
        crew_join(&crew);
        for (unsigned i = 0; i < 20; i++)
            assert_true(gate.turns[i] >= i); /* more if it lost races for the mutex */
        gate_check_left(&gate);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(useless_wakeups_are_counted),
        cmocka_unit_test(useless_wakeups_of_a_herd_are_counted),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
