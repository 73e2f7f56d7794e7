/* SPDX-License-Identifier: MIT */
/*
 * timer_storm.c - deadlines by the million: met, never early, whichever threads move or are woken
 * before.
 *
 * The environment sets ROUSE_SEED and ROUSE_SCALE (rounds and threads in percent).
 */
#include "unit/core/core_test.h"

#include <sys/sysinfo.h>

static uint64_t draw(uint64_t *random, uint64_t below)
{
    return rsi_random_next(random) % below;
}

/* Waits that the deadline or a waker ends, whichever is first. The threads change their workers. */

#define PLAYERS 400

struct player {
    struct rouse_sem mine;
    uint64_t random, posted, woken, timed_out, late_most_ns;
};

static struct player players[PLAYERS];
static unsigned rounds;
static uint32_t playing;

static uint64_t some_wait_ns(uint64_t *random)
{
    switch (draw(random, 8)) {
    case 0: return 0;
    case 1: return 20 * MS + draw(random, MS);
    case 2: return 5 * MS + draw(random, 5 * MS);
    default: return draw(random, 400 * US);
    }
}

static void post_to_somebody(struct player *player)
{
    struct player *other = &players[draw(&player->random, PLAYERS)];
    rsi_fetch_add_relaxed(&other->posted, 1u);
    rouse_sem_post(&other->mine);
}

static void *play(void *arg)
{
    struct player *player = arg;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t ns = some_wait_ns(&player->random), deadline = rouse_now_ns() + ns;
        for (int j = 0; j < 2; j++)
            post_to_somebody(player);
        int result = rouse_sem_wait_until(&player->mine, deadline);
        uint64_t now = rouse_now_ns();
        CHECK(result == 0 || result == -ETIMEDOUT);
        if (result == 0)
            player->woken++;
        else {
            CHECK(now >= deadline);
            player->timed_out++;
        }
    }
    rsi_fetch_add_seq_cst(&playing, (uint32_t)-1);
    return NULL;
}

static void deadlines_and_wake_ups_at_once(void **state)
{
    (void)state;
    struct rouse_thread *threads[PLAYERS];
    uint64_t random = seed_of_run(), posted = 0, woken = 0, left = 0, timed_out = 0;
    rounds = rounds_of(400);
    rsi_store_relaxed(&playing, PLAYERS);
    for (size_t i = 0; i < PLAYERS; i++)
        players[i] =
            (struct player){ .mine = ROUSE_SEM_INIT(0), .random = rsi_random_next(&random) | 1 };
    for (size_t i = 0; i < PLAYERS; i++)
        threads[i] = start(i % 16 == 0 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, play, &players[i]);
    for (size_t i = 0; i < PLAYERS; i++)
        join(threads[i]);
    for (size_t i = 0; i < PLAYERS; i++) {
        posted += players[i].posted;
        woken += players[i].woken;
        timed_out += players[i].timed_out;
        left += rouse_sem_value(&players[i].mine);
    }
    printf("%lu woken, %lu timed out\n", (unsigned long)woken, (unsigned long)timed_out);
    CHECK_EQUAL(woken + left, posted);
    CHECK_EQUAL(woken + timed_out, (uint64_t)PLAYERS * rounds);
}

/* A million threads, each with a deadline of its own, all pending at the same time. */

static uint64_t base_ns, spread_ns;
static uint32_t sleeping, woken_early, woken_all, sleeping_most;

static void *sleep_once(void *arg)
{
    uint64_t random = (uintptr_t)arg | 1;
    rsi_random_next(&random);
    uint64_t deadline = rsi_load_relaxed(&base_ns) + draw(&random, spread_ns);
    uint32_t now = rsi_fetch_add_relaxed(&sleeping, 1u) + 1;
    if (now > rsi_load_relaxed(&sleeping_most))
        rsi_store_relaxed(&sleeping_most, now);
    CHECK_EQUAL(rouse_sleep_until(deadline), 0);
    if (rouse_now_ns() < deadline)
        rsi_fetch_add_relaxed(&woken_early, 1u);
    rsi_fetch_add_relaxed(&sleeping, (uint32_t)-1);
    rsi_fetch_add_relaxed(&woken_all, 1u);
    return NULL;
}

/* How many threads with a touched stack fit into the memory here, with room for others. */
static uint32_t threads_possible(void)
{
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0);
    uint64_t bytes = (uint64_t)(info.freeram + info.bufferram) * info.mem_unit / 2;
    uint64_t possible = bytes / 10000, wanted = 10000 * (uint64_t)rounds_of(100);
    if (rouse_worker_count() != 2) /* once is enough */
        wanted /= 10;
    if (!rsi_stack_guards_are_light() && wanted > 20000)
        wanted = 20000;
#ifdef RSI_TSAN
    wanted = 3000; /* it crashes at 8,128 fibers */
#endif
    return (uint32_t)(possible < wanted ? possible : wanted);
}

static void a_million_deadlines_pending_at_once(void **state)
{
    (void)state;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.detached = true;
    attr.stack_bytes = 16384;
    uint32_t count = threads_possible();
    uint64_t begin = rouse_now_ns();
    spread_ns = SECOND;
    /*
     * Far enough in the future for all threads to exist. How far that is follows from the first tenth of
     * them, which have 1 s, and 40 us each.
     */
    rsi_store_relaxed(&base_ns, begin + SECOND + count / 10 * 40000ull);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQUAL(rouse_thread_create(NULL, &attr, sleep_once, (void *)(uintptr_t)(i * 2 + 1)),
                    0);
        if (i == count / 10) {
            UNTIL(rsi_load_relaxed(&sleeping) == i + 1);
            uint64_t all_ns = (rouse_now_ns() - begin) * 12;
            rsi_store_relaxed(&base_ns, begin + all_ns + 200 * MS);
        }
    }
    UNTIL(rsi_load_relaxed(&woken_all) == count);
    printf("%u threads, at most %u of them asleep at once\n", count,
           rsi_load_relaxed(&sleeping_most));
    CHECK_EQUAL(woken_early, 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(deadlines_and_wake_ups_at_once),
        cmocka_unit_test(a_million_deadlines_pending_at_once),
    };
    static const struct program program = { 200, true, tests, LENGTH(tests), NULL, 0 };
    if (argc == 1)
        stress_set_up();
    return program_run(&program, argc, argv);
}
