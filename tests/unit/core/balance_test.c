/* SPDX-License-Identifier: MIT */
/* balance_test.c - a worker with few busy threads takes over some of a crowded worker's threads. */
#include "unit/sync/sync_test.h"

#define MANY 200

struct crowd {
    uint32_t places[MANY + 1]; /* the worker of each thread's last turn, plus 1 */
    bool is_over;
};

static void yield_on(void *arg, unsigned index)
{
    struct crowd *crowd = arg;
    while (!rsi_load_relaxed(&crowd->is_over)) {
        rsi_store_relaxed(&crowd->places[index], (uint32_t)rouse_worker_index() + 1);
        rouse_thread_yield();
    }
}

static unsigned count_at(struct crowd *crowd, uint32_t place)
{
    unsigned count = 0;
    for (unsigned i = 1; i <= MANY; i++)
        count += rsi_load_relaxed(&crowd->places[i]) == place;
    return count;
}

/*
 * The first thread keeps the other worker from becoming idle. The others start on the worker that
 * creates them.
 */
static void make_crowd(void *arg, unsigned index)
{
    struct crowd *crowd = arg;
    static struct crew crew;
    (void)index;
    (void)crew_add(&crew, CREW_USER, yield_on, crowd);
    UNTIL(rsi_load_relaxed(&crowd->places[0]) &&
          rsi_load_relaxed(&crowd->places[0]) != (uint32_t)rouse_worker_index() + 1);
    crew_add_many(&crew, CREW_USER, MANY, yield_on, crowd);
    UNTIL(count_at(crowd, 1) >= MANY / 4 && count_at(crowd, 2) >= MANY / 4);
    rsi_store_relaxed(&crowd->is_over, true);
    crew_join(&crew);
}

static void busy_worker_takes_over_from_a_crowded_one(void **state)
{
    (void)state;
    assert_int_equal(rouse_worker_count(), 2);
    for (unsigned i = 0; i < 20; i++) {
        struct crowd crowd = { .is_over = false };
        crew_run(CREW_USER, 1, make_crowd, &crowd);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(busy_worker_takes_over_from_a_crowded_one),
    };
    setenv("ROUSE_WORKERS", "2", 1);
    setenv("ROUSE_SPARES", "0", 1); /* a spare would take threads too */
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
