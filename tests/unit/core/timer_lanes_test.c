/* SPDX-License-Identifier: MIT */
/*
 * timer_lanes_test.c - a worker's lanes and heap compared with a simple list: the same waits end,
 * in the same order.
 *
 * The worker does not belong to the runtime, so its timers hold nothing else, and the test sets the
 * time.
 */
#include "core_test.h"
#include "core/core.h"

#define THREADS 1500
#define STEPS 40000
#define INDEX (RSI_WORKERS_MAX - 1) /* no worker that runs */

static struct rouse_thread threads[THREADS];
static uint64_t deadlines[THREADS]; /* of the wait; 0 if it does not wait */
static struct rsi_worker *worker;

static void worker_set_up(void)
{
    worker = calloc(1, sizeof *worker);
    CHECK(worker);
    worker->index = INDEX;
    CHECK(rsi_timer_setup(worker));
    rsi_rt.workers[INDEX] = worker;
    memset(threads, 0, sizeof threads);
    memset(deadlines, 0, sizeof deadlines);
}

static void worker_tear_down(void)
{
    rsi_rt.workers[INDEX] = NULL;
    rsi_unmap(worker->heap, RSI_HEAP_BYTES);
    rsi_unmap(worker->lanes[0].ring, RSI_LANES_BYTES);
    free(worker);
}

static void wait_begin(size_t i, uint64_t deadline_ns)
{
    rsi_park_prepare(&threads[i], ROUSE_WAIT_SLEEP, NULL, NULL, deadline_ns, 0);
    rsi_timer_arm(worker, &threads[i], deadline_ns);
    deadlines[i] = deadline_ns;
}

/* Something else ends the wait, without telling the timers. */
static void wait_end(size_t i)
{
    CHECK(rsi_park_claim(&threads[i], threads[i].waiter.claim, 0, NULL));
    deadlines[i] = 0;
}

static uint64_t earliest(void)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < THREADS; i++)
        if (deadlines[i] != 0 && deadlines[i] < least)
            least = deadlines[i];
    return least;
}

/* All due waits end in order of deadline, and no others. Returns how many. */
static size_t expire(uint64_t now_ns)
{
    uint64_t last_ns = 0;
    size_t count = 0;
    for (struct rouse_thread *t = rsi_timer_expire(worker, now_ns); t; t = t->queue_link) {
        size_t i = (size_t)(t - threads);
        CHECK(deadlines[i] != 0 && deadlines[i] <= now_ns);
        CHECK(deadlines[i] >= last_ns);
        CHECK_EQUAL(t->waiter.result, -ETIMEDOUT);
        last_ns = deadlines[i];
        deadlines[i] = 0;
        count++;
    }
    CHECK(earliest() > now_ns);
    CHECK(worker->timer_next_ns <= earliest()); /* else the worker that sleeps until then is late */
    return count;
}

/* The waits of typical programs: a few lengths again and again, and some of any length. */
static uint64_t some_length(uint64_t *random)
{
    static const uint64_t lengths[] = { MS, 10 * MS, 5 * SECOND, 30 * SECOND, 60 * SECOND, 7 * MS };
    uint64_t drawn = rsi_random_next(random) % 16;
    if (drawn < 12)
        return lengths[drawn / 2];
    return rsi_random_next(random) % (drawn == 12 ? 100 * SECOND : 20 * MS);
}

static void all_armed_deadlines_come_up_in_order(void **state)
{
    (void)state;
    uint64_t random = seed_of_run(), now_ns = SECOND;
    size_t ended = 0;
    worker_set_up();
    for (unsigned step = 0; step < STEPS / SLOWER; step++) {
        size_t i = rsi_random_next(&random) % THREADS;
        if (deadlines[i] == 0)
            wait_begin(i, now_ns + some_length(&random));
        else if (step % 3 == 0)
            wait_end(i);
        if (step % 16 == 0) {
            now_ns += rsi_random_next(&random) % (step % 512 == 0 ? 2 * SECOND : MS);
            ended += expire(now_ns);
        }
        /* Twice the threads, and the stale entries that may exist before a sweep. */
        CHECK(worker->timer_count <= 2 * THREADS + 256);
    }
    CHECK(ended > 0);
    expire(now_ns + 1000 * SECOND);
    CHECK_EQUAL(earliest(), UINT64_MAX);
    worker_tear_down();
}

static void equal_deadlines_come_up_in_one_pass(void **state)
{
    (void)state;
    const uint64_t base_ns = SECOND;
    worker_set_up();
    for (size_t i = 0; i < THREADS; i++) /* on lanes and heap */
        wait_begin(i, base_ns + (i % 7) * US);
    for (size_t k = 0; k < 7; k++) {
        size_t due = THREADS / 7 + (k < THREADS % 7);
        CHECK_EQUAL(expire(base_ns + k * US - 1), 0);
        CHECK_EQUAL(expire(base_ns + k * US), due);
    }
    worker_tear_down();
}

/* The ring has wrapped around when it grows: the entries before the first must follow the last. */
static void a_lane_grows_with_its_entries(void **state)
{
    (void)state;
    const uint64_t base_ns = SECOND;
    worker_set_up();
    for (size_t i = 0; i < 200; i++)
        wait_begin(i, base_ns + i);
    CHECK_EQUAL(expire(base_ns + 149), 150);
    for (size_t i = 200; i < THREADS; i++)
        wait_begin(i, base_ns + i);
    CHECK_EQUAL(worker->heap_length, 0);
    CHECK_EQUAL(worker->timer_count, THREADS - 150);
    for (size_t i = 150; i < THREADS; i += 50)
        CHECK_EQUAL(expire(base_ns + i + 49), 50);
    CHECK_EQUAL(worker->timer_count, 0);
    worker_tear_down();
}

static void an_ended_thread_leaves_no_live_entry(void **state)
{
    (void)state;
    worker_set_up();
    for (unsigned round = 0; round < 10; round++)
        for (size_t i = 0; i < THREADS; i++) {
            wait_begin(i, SECOND + rsi_random_next(&(uint64_t){ i + 1 }) % SECOND);
            wait_end(i);
            rsi_timer_forget(&threads[i]);
        }
    CHECK(worker->timer_count <= THREADS + 256);
    CHECK_EQUAL(expire(10 * SECOND), 0);
    CHECK_EQUAL(worker->timer_count, 0);
    CHECK_EQUAL(worker->timer_stale, 0);
    worker_tear_down();
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_armed_deadlines_come_up_in_order),
        cmocka_unit_test(equal_deadlines_come_up_in_one_pass),
        cmocka_unit_test(a_lane_grows_with_its_entries),
        cmocka_unit_test(an_ended_thread_leaves_no_live_entry),
    };
    static const struct program program = { 60, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
