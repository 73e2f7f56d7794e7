/* SPDX-License-Identifier: MIT */
/*
 * fairness_test.c - among k runnable threads that all yield or block, none waits for more than 4k
 * turns of others. Turns are counted and not timed: with one worker no other thread touches the
 * counters.
 */
#include "core_test.h"

enum way { YIELD, SLEEP_0, PING_PONG, RING, SPAWN, WAYS };

struct member {
    enum way way;
    struct rouse_sem token;
    struct member *next; /* the member that it wakes */
    uint64_t ready_turn; /* when it became runnable */
    bool is_parked;
    struct rouse_thread *thread;
};

static struct {
    struct member members[1024];
    size_t count, begun;
    uint64_t turns, worst;
    /* all threads have started at this count; before it, those in a ring were runnable too */
    uint64_t steady_turn;
    enum way worst_way;
    unsigned rounds;
} crowd;

static void became_ready(struct member *m)
{
    m->is_parked = false;
    m->ready_turn = crowd.turns;
}

static void turn_began(struct member *m)
{
    uint64_t waited = crowd.turns++ - m->ready_turn;
    if (m->ready_turn >= crowd.steady_turn && waited > crowd.worst) {
        crowd.worst = waited;
        crowd.worst_way = m->way;
    }
}

static void wake(struct member *m)
{
    if (m->is_parked)
        became_ready(m);
    rouse_sem_post(&m->token);
}

static void wait_for_token(struct member *m)
{
    m->is_parked = true;
    CHECK_EQUAL(rouse_sem_wait(&m->token), 0);
    if (m->is_parked) /* the token was there already, so no turn ended */
        m->is_parked = false;
    else
        turn_began(m);
}

static void *child(void *m)
{
    turn_began(m);
    return NULL;
}

static void spawn_and_join(struct member *m)
{
    became_ready(m); /* its child, for which the member waits */
    join(start(ROUSE_KIND_USER, child, m));
}

static void *take_turns(void *arg)
{
    struct member *m = arg;
    turn_began(m);
    if (++crowd.begun == crowd.count)
        crowd.steady_turn = crowd.turns;
    for (unsigned i = 0; i < crowd.rounds; i++) {
        switch (m->way) {
        case YIELD:
            became_ready(m);
            rouse_thread_yield();
            turn_began(m);
            break;
        case SLEEP_0:
            became_ready(m);
            CHECK_EQUAL(rouse_sleep(0), 0);
            turn_began(m);
            break;
        case SPAWN: spawn_and_join(m); break;
        default:
            wait_for_token(m);
            wake(m->next);
            break;
        }
    }
    return NULL;
}

/* Count the members that pass tokens round in a ring. Returns how many can be runnable at once. */
static unsigned add_circle(enum way way, unsigned count, unsigned tokens)
{
    struct member *first = &crowd.members[crowd.count];
    for (unsigned i = 0; i < count; i++) {
        first[i] = (struct member){ .way = way, .token = ROUSE_SEM_INIT(0) };
        first[i].next = &first[(i + 1) % count];
    }
    for (unsigned i = 0; i < tokens; i++)
        rouse_sem_post(&first[i * (count / tokens)].token);
    crowd.count += count;
    return tokens;
}

static unsigned add(enum way way, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        crowd.members[crowd.count++] = (struct member){ .way = way };
    return count;
}

static void *let_them_run(void *unused)
{
    crowd.turns = crowd.worst = crowd.begun = 0;
    crowd.steady_turn = UINT64_MAX;
    for (size_t i = 0; i < crowd.count; i++) {
        became_ready(&crowd.members[i]);
        crowd.members[i].thread = start(ROUSE_KIND_USER, take_turns, &crowd.members[i]);
    }
    for (size_t i = 0; i < crowd.count; i++)
        join(crowd.members[i].thread);
    return unused;
}

/* runnable: how many threads can be runnable at once. */
static void check_crowd(const char *name, unsigned runnable)
{
    static const char *const names[WAYS] = { "yield", "sleep 0", "ping-pong", "ring", "spawn" };
    CHECK(crowd.count <= LENGTH(crowd.members));
    join(start(ROUSE_KIND_USER, let_them_run, NULL));
    printf("%s: %u runnable, the longest wait was %lu turns of others (%s)\n", name, runnable,
           (unsigned long)crowd.worst, names[crowd.worst_way]);
    CHECK(crowd.worst <= 4 * (uint64_t)runnable);
    crowd.count = 0;
}

static bool only_one_worker(void)
{
    crowd.count = 0;
    crowd.rounds = 3000 / SLOWER;
    return rouse_worker_count() == 1;
}

static void yielding_threads(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    check_crowd("100 that yield", add(YIELD, 100));
}

static void one_thread_beside_a_pair_that_wake_each_other(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(YIELD, 1);
    check_crowd("one beside a pair", runnable + add_circle(PING_PONG, 2, 1));
}

static void many_pairs_and_one_that_yields(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(YIELD, 1);
    for (int i = 0; i < 20; i++)
        runnable += add_circle(PING_PONG, 2, 1);
    check_crowd("one beside 20 pairs", runnable);
}

static void a_ring_beside_threads_that_yield(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(YIELD, 5) + add_circle(RING, 60, 1) + add_circle(RING, 60, 20);
    check_crowd("rings", runnable);
}

static void threads_that_sleep_until_the_past(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(SLEEP_0, 10);
    check_crowd("sleep 0", runnable + add(YIELD, 10));
}

static void threads_that_create_and_join(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(SPAWN, 20);
    check_crowd("create and join", runnable + add(YIELD, 10) + add_circle(PING_PONG, 2, 1));
}

static void all_of_these_loads_together(void **state)
{
    (void)state;
    if (!only_one_worker())
        return;
    unsigned runnable = add(YIELD, 50) + add(SPAWN, 10) + add(SLEEP_0, 5);
    for (int i = 0; i < 10; i++)
        runnable += add_circle(PING_PONG, 2, 1);
    runnable += add_circle(RING, 100, 1) + add_circle(RING, 100, 10);
    check_crowd("all", runnable);
}

/* A loop of calls that need not block must let the others run too. */
static struct rouse_sem plenty = ROUSE_SEM_INIT(1000000);
static uint32_t greedy_stop;

static void *be_greedy(void *unused)
{
    while (!rsi_load_relaxed(&greedy_stop)) {
        CHECK_EQUAL(rouse_sem_wait(&plenty), 0);
        rouse_sem_post(&plenty);
    }
    return unused;
}

static void *stop_the_greedy(void *unused)
{
    rsi_store_relaxed(&greedy_stop, 1u);
    return unused;
}

static void calls_that_never_block_end_a_turn_eventually(void **state)
{
    (void)state;
    struct rouse_thread *threads[8];
    rsi_store_relaxed(&greedy_stop, 0u);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, be_greedy, NULL);
    join(start(ROUSE_KIND_USER, stop_the_greedy, NULL));
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

/*
 * With several workers, turns cannot be compared. The test only requires that every thread gets
 * some.
 */
static uint32_t begun;

static void *pair_for_ever(void *arg)
{
    struct member *m = arg;
    while (!rsi_load_acquire(&greedy_stop)) {
        CHECK_EQUAL(rouse_sem_wait(&m->token), 0);
        rouse_sem_post(&m->next->token);
    }
    rouse_sem_post(&m->next->token);
    return NULL;
}

static void *begin(void *unused)
{
    rsi_fetch_add_relaxed(&begun, 1u);
    return unused;
}

static void pairs_on_every_worker_do_not_starve_newcomers(void **state)
{
    (void)state;
    enum { PAIRS = 8, NEWCOMERS = 1000 };
    struct rouse_thread *newcomers[NEWCOMERS];
    crowd.count = 0;
    rsi_store_relaxed(&greedy_stop, 0u);
    for (int i = 0; i < PAIRS; i++)
        add_circle(PING_PONG, 2, 1);
    for (size_t i = 0; i < crowd.count; i++)
        crowd.members[i].thread = start(ROUSE_KIND_USER, pair_for_ever, &crowd.members[i]);
    for (int i = 0; i < NEWCOMERS; i++)
        newcomers[i] = start(ROUSE_KIND_USER, begin, NULL);
    UNTIL(rsi_load_relaxed(&begun) == NEWCOMERS);
    rsi_store_release(&greedy_stop, 1u);
    for (int i = 0; i < NEWCOMERS; i++)
        join(newcomers[i]);
    for (size_t i = 0; i < crowd.count; i++)
        join(crowd.members[i].thread);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(yielding_threads),
        cmocka_unit_test(one_thread_beside_a_pair_that_wake_each_other),
        cmocka_unit_test(many_pairs_and_one_that_yields),
        cmocka_unit_test(a_ring_beside_threads_that_yield),
        cmocka_unit_test(threads_that_sleep_until_the_past),
        cmocka_unit_test(threads_that_create_and_join),
        cmocka_unit_test(all_of_these_loads_together),
        cmocka_unit_test(calls_that_never_block_end_a_turn_eventually),
        cmocka_unit_test(pairs_on_every_worker_do_not_starve_newcomers),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
