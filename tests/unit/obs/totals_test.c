/* SPDX-License-Identifier: MIT */
/*
 * totals_test.c - the sums that a process reads about itself, compared with known programs and with
 * a reader of the file.
 */
#include "ledger_read.h"
#include "obs_test.h"

#define WAITERS 10u
#define HELD_NS (10 * MS)

static struct {
    struct rouse_mutex mutex;
    struct rouse_cond cond;
    struct rouse_sem sem, back;
    uint32_t ended;
} scene;

static struct rouse_totals totals_get(void)
{
    struct rouse_totals totals;
    CHECK_EQUAL(rouse_obs_totals(&totals), 0);
    return totals;
}

static void *lock_and_unlock(void *unused)
{
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

static void *time_out(void *deadline)
{
    CHECK_EQUAL(rouse_sem_wait_until(&scene.sem, *(uint64_t *)deadline), -ETIMEDOUT);
    return NULL;
}

static void *take_one(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    return unused;
}

/*
 * 10 threads wait 10 ms each for a lock: 10 contests, and a sum of at least 100 ms and no more than
 * the elapsed time allows.
 */
static void contests_add_up(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct rouse_thread *threads[WAITERS];
        memset(&scene, 0, sizeof scene);
        uint64_t begin_ns = rouse_now_ns();
        rouse_mutex_lock(&scene.mutex);
        struct rouse_totals before = totals_get();
        for (unsigned i = 0; i < WAITERS; i++)
            threads[i] = start((enum rouse_kind)kind, lock_and_unlock, NULL);
        for (unsigned i = 0; i < WAITERS; i++)
            UNTIL(waits(threads[i]));
        rouse_sleep(HELD_NS);
        rouse_mutex_unlock(&scene.mutex);
        for (unsigned i = 0; i < WAITERS; i++)
            join(threads[i]);
        struct rouse_totals after = totals_get();
        uint64_t all_ns = rouse_now_ns() - begin_ns;
        uint64_t waited_ns = after.lock_wait_ns[ROUSE_WAIT_MUTEX] -
                             before.lock_wait_ns[ROUSE_WAIT_MUTEX];
        CHECK_EQUAL(after.lock_contested[ROUSE_WAIT_MUTEX] -
                        before.lock_contested[ROUSE_WAIT_MUTEX],
                    WAITERS);
        CHECK(waited_ns >= WAITERS * HELD_NS / 100 * 99);
        CHECK(waited_ns <= WAITERS * all_ns / 100 * 101);
        CHECK(after.lock_spin_ns[ROUSE_WAIT_MUTEX] <= after.lock_wait_ns[ROUSE_WAIT_MUTEX]);
        CHECK_EQUAL(after.threads_ended - before.threads_ended, WAITERS);
        CHECK_EQUAL(after.lock_contested[ROUSE_WAIT_READ_LOCK], 0);
    }
}

static void *hold_asleep(void *unused)
{
    rouse_mutex_lock(&scene.mutex);
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

/* The mutex reads the clock for a spin only if there is one: most waits for a lock would have two stamps more. */
static void who_waits_spins_only_for_a_holder_that_runs(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++)
        for (unsigned runs = 0; runs < 2; runs++) {
            struct rouse_thread *holder = NULL;
            memset(&scene, 0, sizeof scene);
            struct contests before = contests_of(&scene.mutex);
            if (runs) {
                rouse_mutex_lock(&scene.mutex);
            } else {
                holder = start(ROUSE_KIND_USER, hold_asleep, NULL);
                UNTIL(waits(holder));
            }
            struct rouse_thread *waiter = start((enum rouse_kind)kind, lock_and_unlock, NULL);
            UNTIL(waits(waiter));
            if (runs)
                rouse_mutex_unlock(&scene.mutex);
            else
                CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
            join(waiter);
            if (holder)
                join(holder);
            struct contests after = contests_of(&scene.mutex);
            CHECK_EQUAL(after.contested - before.contested, 1);
            CHECK_EQUAL(after.spin_ticks > before.spin_ticks, runs);
        }
}

static void wakes_and_threads_are_counted(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct rouse_thread *threads[WAITERS];
        memset(&scene, 0, sizeof scene);
        struct rouse_totals before = totals_get();
        for (unsigned i = 0; i < WAITERS; i++)
            threads[i] = start((enum rouse_kind)kind, take_one, NULL);
        for (unsigned i = 0; i < WAITERS; i++)
            UNTIL(waits(threads[i]));
        CHECK_EQUAL(totals_get().threads - before.threads, WAITERS);
        for (unsigned i = 0; i < WAITERS; i++)
            CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
        for (unsigned i = 0; i < WAITERS; i++)
            join(threads[i]);
        uint64_t deadline = rouse_now_ns() + 20 * MS;
        struct rouse_thread *late = start((enum rouse_kind)kind, time_out, &deadline);
        UNTIL(waits(late) || rouse_now_ns() >= deadline);
        uint64_t seen_ns = rouse_now_ns(); /* its wait began before */
        uint64_t least_ns = seen_ns < deadline ? deadline - seen_ns : 0;
        join(late);
        struct rouse_totals after = totals_get();
        uint64_t useful = after.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_USEFUL] -
                          before.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_USEFUL];
        CHECK_EQUAL(after.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_TIMEOUT] -
                        before.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_TIMEOUT],
                    1);
        CHECK_EQUAL(useful, WAITERS);
        CHECK(after.wait_ns[ROUSE_WAIT_SEM] - before.wait_ns[ROUSE_WAIT_SEM] >=
              least_ns / 100 * 99);
        CHECK_EQUAL(after.threads, before.threads);
    }
}

static void unheard_signals_and_calls_are_counted(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    struct rouse_totals before = totals_get();
    for (int i = 0; i < 5; i++)
        rouse_cond_signal(&scene.cond);
    for (int i = 0; i < 3; i++)
        rouse_cond_broadcast(&scene.cond);
    for (int i = 0; i < 4; i++)
        rouse_sleep(1);
    struct rouse_totals after = totals_get();
    CHECK_EQUAL(after.signals_unheard - before.signals_unheard, 5);
    CHECK_EQUAL(after.broadcasts_unheard - before.broadcasts_unheard, 3);
    CHECK_EQUAL(after.calls[ROUSE_WAIT_SLEEP] - before.calls[ROUSE_WAIT_SLEEP], 4);
    CHECK_EQUAL(after.lost_threads + after.lost_wakes + after.lost_locks, 0);
}

static uint64_t ns_of(uint64_t ticks)
{
    const struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head);
    return (uint64_t)((double)ticks * (double)(rouse_now_ns() - head->monotonic_ns) /
                      (double)(rsi_tsc() - head->tsc));
}

static bool is_near(uint64_t a, uint64_t b)
{
    return (a > b ? a - b : b - a) <= b / 1000 + 1;
}

/* All other threads have ended, so nothing changes between the two readers. */
static void sums_equal_those_of_a_reader_of_the_file(void **state)
{
    (void)state;
    struct rouse_totals totals = totals_get();
    struct totals writers = totals_now();
    uint64_t all = 0;
    for (unsigned kind = 0; kind < ROUSE_WAIT_KINDS; kind++) {
        struct wakes wakes = wakes_of((enum rouse_wait_kind)kind, NULL);
        for (unsigned i = 0; i < ROUSE_VERDICTS; i++)
            CHECK_EQUAL(totals.wakes[kind][i], wakes.count[i]);
        CHECK(is_near(totals.wait_ns[kind], ns_of(wakes.wait_ticks)));
        CHECK(is_near(totals.late_ns[kind], ns_of(wakes.late_ticks)));
        CHECK_EQUAL(totals.calls[kind], writers.calls[kind]);
        all += wakes.all;
    }
    CHECK(all > 0);
    CHECK_EQUAL(totals.signals_unheard, writers.signals_unheard);
    CHECK_EQUAL(totals.broadcasts_unheard, writers.broadcasts_unheard);
    CHECK_EQUAL(totals.threads_ended, writers.ended);
    CHECK(all <= totals.switches);
}

#define TURNS (20000u / SLOWER)

static void *play(void *is_first)
{
    struct rouse_sem *own = is_first ? &scene.sem : &scene.back,
                     *other = is_first ? &scene.back : &scene.sem;
    for (unsigned i = 0; i < TURNS; i++) {
        CHECK_EQUAL(rouse_sem_wait(own), 0);
        CHECK_EQUAL(rouse_sem_post(other), 0);
    }
    rsi_fetch_add_relaxed(&scene.ended, 1u);
    return NULL;
}

static void *sleep_a_little(void *unused)
{
    rouse_sleep(1);
    return unused;
}

/* A reader runs beside the threads that count, while writers and chunks are added. */
static void sums_can_be_read_while_others_count(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    struct rouse_totals first = totals_get();
    struct rouse_thread *a = start(ROUSE_KIND_USER, play, (void *)1);
    struct rouse_thread *b = start(ROUSE_KIND_KERNEL, play, NULL);
    CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
    uint64_t last = first.switches;
    while (rsi_load_relaxed(&scene.ended) < 2) {
        struct rouse_totals now = totals_get();
        CHECK(now.switches >= last);
        last = now.switches;
        join(start(ROUSE_KIND_KERNEL, sleep_a_little, NULL));
    }
    join(a);
    join(b);
    struct rouse_totals after = totals_get();
    CHECK(after.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_USEFUL] -
              first.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_USEFUL] <=
          2 * TURNS);
    CHECK(after.threads_ended - first.threads_ended >= 3);
}

static void ask_without_a_record(void)
{
    struct rouse_totals totals, none = { 0 };
    memset(&totals, 0xff, sizeof totals);
    rouse_thread_yield();
    CHECK_EQUAL(rouse_obs_totals(&totals), -ENODATA);
    CHECK(memcmp(&totals, &none, sizeof none) == 0);
}

static void ask_after_it_was_switched_off(void)
{
    rouse_sleep(1);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    rouse_sleep(1);
    CHECK_EQUAL(totals_get().calls[ROUSE_WAIT_SLEEP], 1);
}

static void without_a_record_there_is_no_data(void **state)
{
    (void)state;
    scenario_exits("ask_without_a_record", "ROUSE_OBS=off", 0);
    scenario_exits("ask_without_a_record", "ROUSE_OBS_DIR=/proc/nothing", 0);
    scenario_exits("ask_after_it_was_switched_off", NULL, 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(contests_add_up),
        cmocka_unit_test(who_waits_spins_only_for_a_holder_that_runs),
        cmocka_unit_test(wakes_and_threads_are_counted),
        cmocka_unit_test(unheard_signals_and_calls_are_counted),
        cmocka_unit_test(sums_equal_those_of_a_reader_of_the_file),
        cmocka_unit_test(sums_can_be_read_while_others_count),
        cmocka_unit_test(without_a_record_there_is_no_data),
    };
    static const struct scenario scenarios[] = {
        { "ask_without_a_record", ask_without_a_record },
        { "ask_after_it_was_switched_off", ask_after_it_was_switched_off },
    };
    const struct program program = { .limit_s = 120,
                                     .every_number = true,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    setenv("ROUSE_OBS", "counted", 0);
    return program_run(&program, argc, argv);
}
