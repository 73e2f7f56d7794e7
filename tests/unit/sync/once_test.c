/* SPDX-License-Identifier: MIT */
/*
 * once_test.c - one thread runs the function and the others wait for it; time-outs, cancelling,
 * misuse.
 */
#include "sync_test.h"

struct task {
    struct rouse_once o;
    struct rouse_sem go;
    uint32_t started, seen;
    uint64_t value; /* not atomic: once orders it */
    int result;
};

static void work(void *arg)
{
    struct task *task = arg;
    CHECK(rsi_fetch_add_relaxed(&task->started, 1u) == 0);
    for (unsigned i = 0; i < 3; i++)
        rouse_thread_yield();
    task->value = 42;
}

static void wait_then_work(void *arg)
{
    struct task *task = arg;
    rsi_fetch_add_relaxed(&task->started, 1u);
    while (rouse_sem_wait(&task->go) < 0)
        continue;
    task->value = 42;
}

static void must_not_run(void *arg)
{
    (void)arg;
    CHECK(false);
}

static void runs_once_for_one(void **state)
{
    (void)state;
    struct task first = { .o = ROUSE_ONCE_INIT }, second = { .value = 0 }, third = { .value = 0 };
    rouse_once_call(&first.o, work, &first);
    assert_int_equal(first.value, 42);
    rouse_once_call(&first.o, must_not_run, NULL);
    assert_int_equal(rouse_once_call_try(&first.o, must_not_run, NULL), 0);
    assert_int_equal(rouse_once_call_until(&first.o, must_not_run, NULL, 0), 0);
    assert_int_equal(rouse_once_call_try(&second.o, work, &second), 0);
    assert_int_equal(second.value, 42);
    assert_int_equal(rouse_once_call_until(&third.o, work, &third, 0), 0);
    assert_int_equal(third.value, 42);
}

static void call(void *arg, unsigned index)
{
    struct task *task = arg;
    if (index % 3 == 0)
        rouse_once_call(&task->o, work, task);
    else if (index % 3 == 1)
        while (rouse_once_call_until(&task->o, work, task, rouse_now_ns() + 2000) < 0)
            continue;
    else
        while (rouse_once_call_try(&task->o, work, task) < 0)
            continue;
    CHECK(task->value == 42);
    rsi_fetch_add_relaxed(&task->seen, 1u);
}

static void all_threads_see_its_effects(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        for (unsigned i = 0; i < (kind == CREW_USER ? 2000u : 200u) / SCALE; i++) {
            struct task task = { .value = 0 };
            crew_run((enum crew_kind)kind, 6, call, &task);
            assert_int_equal(task.started, 1);
            assert_int_equal(task.seen, 6);
            assert_null(task.o.waiters.first);
        }
    }
}

static void begin(void *arg, unsigned index)
{
    (void)index;
    struct task *task = arg;
    rouse_once_call(&task->o, wait_then_work, task);
    rsi_fetch_add_relaxed(&task->seen, 1u);
}

static void give_up(void *arg, unsigned index)
{
    (void)index;
    struct task *task = arg;
    CHECK(rouse_once_call_try(&task->o, must_not_run, NULL) == -EBUSY);
    CHECK(rouse_once_call_until(&task->o, must_not_run, NULL, 0) == -ETIMEDOUT);
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    CHECK(rouse_once_call_until(&task->o, must_not_run, NULL, deadline_ns) == -ETIMEDOUT);
    CHECK(rouse_now_ns() >= deadline_ns);
}

static void gives_up_while_it_runs(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct task task = { .value = 0 };
        (void)crew_add(&crew, CREW_USER, begin, &task);
        UNTIL(rsi_load_relaxed(&task.started) == 1);
        crew_run((enum crew_kind)kind, 4, give_up, &task);
        crew_add_many(&crew, (enum crew_kind)kind, 10, begin, &task);
        UNTIL(WAITING(&task.o) == 10);
        assert_int_equal(task.seen, 0);
        assert_int_equal(rouse_sem_post(&task.go), 0);
        crew_join(&crew);
        assert_int_equal(task.seen, 11);
        assert_int_equal(task.started, 1);
    }
}

static void wait_cancelled(void *arg, unsigned index)
{
    (void)index;
    struct task *task = arg;
    CHECK(rouse_once_call_until(&task->o, must_not_run, NULL, ROUSE_FOREVER) == -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
    rsi_fetch_add_relaxed(&task->seen, 1u);
    rouse_once_call(&task->o, must_not_run, NULL); /* cannot be cancelled */
    CHECK(rouse_thread_cancel_pending());
    CHECK(task->value == 42);
}

static void cancel_ends_until_and_not_the_plain_call(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct task task = { .value = 0 };
        (void)crew_add(&crew, CREW_KERNEL, begin, &task);
        UNTIL(rsi_load_relaxed(&task.started) == 1);
        struct rouse_thread *t = crew_add(&crew, (enum crew_kind)kind, wait_cancelled, &task);
        UNTIL(WAITING(&task.o) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        UNTIL(rsi_load_relaxed(&task.seen) == 1 && WAITING(&task.o) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        for (unsigned i = 0; i < 100; i++)
            rouse_thread_yield();
        assert_int_equal(WAITING(&task.o), 1);
        assert_int_equal(rouse_sem_post(&task.go), 0);
        crew_join(&crew);
    }
}

static void wait_recorded(void *arg, unsigned index)
{
    (void)index;
    struct task *task = arg;
    struct rouse_wait_record record;
    rouse_once_call(&task->o, must_not_run, NULL);
    rouse_obs_last_wait(&record);
    CHECK(record.kind == ROUSE_WAIT_ONCE && record.object == &task->o);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL && record.wait_site && record.wake_site);
}

static void waits_are_recorded(void **state)
{
    (void)state;
    static struct crew crew;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct task task = { .value = 0 };
        (void)crew_add(&crew, CREW_USER, begin, &task);
        UNTIL(rsi_load_relaxed(&task.started) == 1);
        crew_add_many(&crew, (enum crew_kind)kind, 3, wait_recorded, &task);
        UNTIL(WAITING(&task.o) == 3);
        assert_int_equal(rouse_sem_post(&task.go), 0);
        crew_join(&crew);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static struct rouse_once start = ROUSE_ONCE_INIT;

static void call_again(void *arg)
{
    (void)arg;
    rouse_once_call(&start, call_again, NULL);
}

static void try_again(void *arg)
{
    (void)arg;
    (void)rouse_once_call_try(&start, try_again, NULL);
}

static void call_until_again(void *arg)
{
    (void)arg;
    (void)rouse_once_call_until(&start, call_until_again, NULL, 0);
}

static void call_from_within(void)
{
    rouse_once_call(&start, call_again, NULL);
}

static void try_from_within(void)
{
    rouse_once_call(&start, try_again, NULL);
}

static void call_until_from_within(void)
{
    rouse_once_call(&start, call_until_again, NULL);
}

int main(int argc, char **argv)
{
    static const char within[] = "called from within its own function";
    static const struct misuse misuses[] = {
        { "call_from_within", within, call_from_within },
        { "try_from_within", within, try_from_within },
        { "call_until_from_within", within, call_until_from_within },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_once_for_one),
        cmocka_unit_test(all_threads_see_its_effects),
        cmocka_unit_test(gives_up_while_it_runs),
        cmocka_unit_test(cancel_ends_until_and_not_the_plain_call),
        cmocka_unit_test(waits_are_recorded),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
