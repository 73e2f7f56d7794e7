/* SPDX-License-Identifier: MIT */
/* timer_test.c - deadlines are met: never early, in order, wherever the thread last ran. */
#include "core_test.h"
#include "core/queue_lock.h"

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

static void *sleep_and_look(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 40; i++) {
        uint64_t deadline = rouse_now_ns() + rsi_random_next(&random) % (3 * MS);
        CHECK_EQUAL(rouse_sleep_until(deadline), 0);
        CHECK(rouse_now_ns() >= deadline);
        uint64_t ns = rsi_random_next(&random) % MS, before = rouse_now_ns();
        CHECK_EQUAL(rouse_sleep(ns), 0);
        CHECK(rouse_now_ns() - before >= ns);
    }
    return NULL;
}

static void sleep_never_ends_early(void **state)
{
    (void)state;
    struct rouse_thread *threads[100];
    uint64_t random = seed_of_run();
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(kinds[i % 10 == 0], sleep_and_look,
                           (void *)(uintptr_t)(rsi_random_next(&random) | 1));
    sleep_and_look((void *)(uintptr_t)random);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
}

static unsigned runs_meanwhile;

static void *count_run(void *unused)
{
    runs_meanwhile++;
    return unused;
}

static void *sleep_until_the_past(void *unused)
{
    static const uint64_t ages[] = { 0, 1, MS, 1000 * SECOND };
    for (size_t i = 0; i < LENGTH(ages); i++) {
        uint64_t now =
            rouse_now_ns(); /* since the machine started, which may be less than an age ago */
        CHECK_EQUAL(rouse_sleep_until(ages[i] < now ? now - ages[i] : 0), 0);
    }
    CHECK_EQUAL(rouse_sleep_until(0), 0);
    CHECK_EQUAL(rouse_sleep_until(1), 0);
    CHECK_EQUAL(rouse_sleep(0), 0);
    return unused;
}

static void *let_others_go_first(void *unused)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, count_run, NULL);
    runs_meanwhile = 0;
    CHECK_EQUAL(rouse_sleep_until(0), 0);
    CHECK_EQUAL(runs_meanwhile, 1);
    join(t);
    t = start(ROUSE_KIND_USER, count_run, NULL);
    CHECK_EQUAL(rouse_sleep(0), 0);
    CHECK_EQUAL(runs_meanwhile, 2);
    join(t);
    return unused;
}

static void a_deadline_in_the_past_gives_others_their_turn(void **state)
{
    (void)state;
    in_every_kind(sleep_until_the_past, NULL);
    if (rouse_worker_count() == 1)
        join(start(ROUSE_KIND_USER, let_others_go_first, NULL));
}

struct rank {
    uint64_t deadline_ns;
    struct order *order;
};

struct order {
    struct rank ranks[2000];
    uint64_t woken[2000]; /* deadlines in the order in which they came up */
    unsigned count, late;
};

static void *sleep_in_order(void *arg)
{
    struct rank *rank = arg;
    struct order *order = rank->order;
    if (rouse_now_ns() > order->ranks[0].deadline_ns)
        order->late++;
    CHECK_EQUAL(rouse_sleep_until(rank->deadline_ns), 0);
    order->woken[order->count++] = rank->deadline_ns;
    return NULL;
}

/* True unless a thread started too late to be woken in order. */
static bool order_holds(uint64_t ahead_ns, uint64_t *random)
{
    static struct order order;
    struct rouse_thread *threads[LENGTH(order.ranks)];
    order.count = order.late = 0;
    uint64_t base = rouse_now_ns() + ahead_ns;
    for (size_t i = 0; i < LENGTH(threads); i++)
        order.ranks[i] = (struct rank){ base + i * US, &order };
    for (size_t i = LENGTH(threads); i-- > 1;) { /* the first stays: the earliest */
        size_t j = 1 + rsi_random_next(random) % i;
        struct rank rank = order.ranks[i];
        order.ranks[i] = order.ranks[j];
        order.ranks[j] = rank;
    }
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, sleep_in_order, &order.ranks[i]);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    CHECK_EQUAL(order.count, LENGTH(threads));
    for (size_t i = 1; i < LENGTH(threads) && !order.late; i++)
        CHECK(order.woken[i] > order.woken[i - 1]);
    return !order.late;
}

static void deadlines_of_one_worker_come_up_in_order(void **state)
{
    (void)state;
    uint64_t random = seed_of_run(), ahead_ns = 20 * MS;
    if (rouse_worker_count() == 1)
        while (!order_holds(ahead_ns, &random))
            ahead_ns *= 2;
}

static struct rouse_sem bell = ROUSE_SEM_INIT(0);

static void *ring_bell(void *unused)
{
    rouse_sem_post(&bell);
    return unused;
}

/* Wait for the bell with a deadline that is not reached. */
static void wait_and_be_woken(uint64_t deadline_ns)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, ring_bell, NULL);
    CHECK_EQUAL(rouse_sem_wait_until(&bell, deadline_ns), 0);
    join(t);
}

static void wait_in_vain(uint64_t deadline_ns)
{
    CHECK_EQUAL(rouse_sem_wait_until(&bell, deadline_ns), -ETIMEDOUT);
    CHECK(rouse_now_ns() >= deadline_ns);
}

static void *change_deadlines(void *unused)
{
    for (int i = 0; i < 50; i++) {
        uint64_t now = rouse_now_ns();
        wait_and_be_woken(now + 1000 * SECOND); /* an entry far away must not hide the next one */
        wait_in_vain(now + 200 * US);
        wait_and_be_woken(now + 3000 * SECOND);
        wait_and_be_woken(now + 2000 * SECOND);
        wait_and_be_woken(now + 1000 * SECOND);
        wait_in_vain(rouse_now_ns() + 100 * US);
        /* an entry that comes up before its thread's present deadline must not be the only one */
        struct rouse_thread *t = start(ROUSE_KIND_USER, ring_bell, NULL);
        if (rouse_sem_wait_until(&bell, rouse_now_ns() + MS) != 0) /* a slow machine */
            CHECK_EQUAL(rouse_sem_wait(&bell), 0);
        join(t);
        wait_in_vain(rouse_now_ns() + 2 * MS);
        wait_and_be_woken(ROUSE_FOREVER);
        wait_in_vain(0);
        wait_in_vain(rouse_now_ns());
    }
    return unused;
}

static void a_nearer_deadline_is_not_hidden_by_a_farther_one(void **state)
{
    (void)state;
    in_every_kind(change_deadlines, NULL);
}

static void *ring_late(void *arg)
{
    CHECK_EQUAL(rouse_sleep_until(*(uint64_t *)arg), 0);
    rouse_sem_post(&bell);
    return NULL;
}

static void *outlive_an_entry(void *unused)
{
    for (int i = 0; i < 20; i++) {
        uint64_t near = rouse_now_ns() + MS, late = near + MS;
        int error = rouse_sem_wait_until(&bell, 0); /* an entry due at once */
        CHECK_EQUAL(error, -ETIMEDOUT);
        rouse_sem_post(&bell);
        CHECK_EQUAL(rouse_sem_wait_until(&bell, near), 0);
        struct rouse_thread *t = start(ROUSE_KIND_USER, ring_bell, NULL);
        error = rouse_sem_wait_until(&bell, near); /* leaves an entry behind if it was in time */
        if (error)
            CHECK_EQUAL(rouse_sem_wait(&bell), 0);
        join(t);
        t = start(ROUSE_KIND_USER, ring_late, &late);
        uint64_t limit = i % 2 ? ROUSE_FOREVER : late + 1000 * SECOND;
        CHECK_EQUAL(rouse_sem_wait_until(&bell, limit), 0);
        CHECK(rouse_now_ns() >= late);
        join(t);
    }
    return unused;
}

static void an_old_deadline_does_not_end_a_later_wait(void **state)
{
    (void)state;
    in_every_kind(outlive_an_entry, NULL);
}

static void *sleep_for_ever(void *arg)
{
    CHECK_EQUAL(rouse_sleep(*(uint64_t *)arg), -ECANCELED);
    return NULL;
}

static void a_sleep_without_end_does_not_wrap_around(void **state)
{
    (void)state;
    static uint64_t lengths[] = { UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2, (uint64_t)1 << 57 };
    for (size_t k = 0; k < LENGTH(kinds); k++)
        for (size_t i = 0; i < LENGTH(lengths); i++) {
            struct rouse_thread *t = start(kinds[k], sleep_for_ever, &lengths[i]);
            UNTIL(waits(t));
            CHECK_EQUAL(rouse_sleep(MS), 0);
            CHECK(waits(t));
            CHECK_EQUAL(rouse_thread_cancel(t), 0);
            join(t);
        }
}

struct neighbour {
    int worker;
    uint32_t sleeps, woken;
};

static void *sleep_beside_a_hog(void *arg)
{
    struct neighbour *neighbour = arg;
    neighbour->worker = rouse_worker_index();
    rsi_store_release(&neighbour->sleeps, 1u);
    CHECK_EQUAL(rouse_sleep(2 * MS), 0);
    rsi_store_release(&neighbour->woken, 1u);
    return NULL;
}

static void *compute_until_it_wakes(void *arg)
{
    bool *met = arg;
    struct neighbour neighbour = { -1, 0, 0 };
    struct rouse_thread *t = start(ROUSE_KIND_USER, sleep_beside_a_hog, &neighbour);
    while (!rsi_load_acquire(&neighbour.sleeps))
        rouse_thread_yield();
    *met = neighbour.worker == rouse_worker_index();
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (!rsi_load_acquire(&neighbour.woken)) /* computes, and never yields */
        CHECK(rouse_now_ns() < end);
    join(t);
    return NULL;
}

static void a_deadline_on_a_worker_that_computes_is_met_by_another(void **state)
{
    (void)state;
    bool met = rouse_worker_count() == 1;
    for (int i = 0; !met && i < 1000; i++)
        join(start(ROUSE_KIND_USER, compute_until_it_wakes, &met));
    CHECK(met);
}

/* The number of entries of the calling thread's worker. */
static uint32_t entries(void)
{
    struct rsi_worker *w = rsi_exec_self()->worker;
    rsi_queue_lock_enter(w);
    uint32_t count = w->timer_count;
    rsi_queue_lock_leave(w);
    return count;
}

struct partner {
    struct rouse_sem mine, *other;
    unsigned rounds;
    uint32_t entries_most;
    uint64_t random;
};

static void *play_with_deadlines(void *arg)
{
    struct partner *partner = arg;
    for (unsigned i = 0; i < partner->rounds; i++) {
        uint64_t ahead = (SECOND << rsi_random_next(&partner->random) % 8) +
                         rsi_random_next(&partner->random) % SECOND;
        rouse_sem_post(partner->other);
        CHECK_EQUAL(rouse_sem_wait_until(&partner->mine, rouse_now_ns() + 1000 * ahead), 0);
        uint32_t count = i % 16 == 0 ? entries() : 0;
        partner->entries_most = count > partner->entries_most ? count : partner->entries_most;
    }
    return NULL;
}

static void a_million_deadlines_that_are_not_reached_leave_no_heap(void **state)
{
    (void)state;
    enum { COUNT = 1000, ROUNDS = 1000000 / COUNT / SLOWER };
    static struct partner partners[COUNT];
    struct rouse_thread *threads[COUNT];
    uint64_t random = seed_of_run();
    for (int i = 0; i < COUNT; i++)
        partners[i] = (struct partner){ .mine = ROUSE_SEM_INIT(0),
                                        .other = &partners[i ^ 1].mine,
                                        .rounds = ROUNDS,
                                        .random = rsi_random_next(&random) | 1 };
    for (int i = 0; i < COUNT; i++)
        threads[i] = start(ROUSE_KIND_USER, play_with_deadlines, &partners[i]);
    for (int i = 0; i < COUNT; i++) {
        join(threads[i]);
        /* Twice the threads, plus the entries that a worker may collect before it sweeps. */
        CHECK(partners[i].entries_most <= 2 * COUNT + 256);
    }
}

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void *measure_lateness(void *unused)
{
    uint64_t late[200];
    for (size_t i = 0; i < LENGTH(late); i++) {
        uint64_t deadline = rouse_now_ns() + 200 * US;
        rouse_sleep_until(deadline);
        late[i] = rouse_now_ns() - deadline;
    }
    qsort(late, LENGTH(late), sizeof *late, compare_ns);
    printf("sleeps of 200 us are late by %lu us (median), %lu us (least), %lu us (most)\n",
           (unsigned long)(late[LENGTH(late) / 2] / US), (unsigned long)(late[0] / US),
           (unsigned long)(late[LENGTH(late) - 1] / US));
    return unused;
}

/* Printed and not checked: the lateness depends on the machine and its load. */
static void how_late_sleeps_end(void **state)
{
    (void)state;
    join(start(ROUSE_KIND_USER, measure_lateness, NULL));
    join(start(ROUSE_KIND_KERNEL, measure_lateness, NULL));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sleep_never_ends_early),
        cmocka_unit_test(a_deadline_in_the_past_gives_others_their_turn),
        cmocka_unit_test(deadlines_of_one_worker_come_up_in_order),
        cmocka_unit_test(a_nearer_deadline_is_not_hidden_by_a_farther_one),
        cmocka_unit_test(an_old_deadline_does_not_end_a_later_wait),
        cmocka_unit_test(a_sleep_without_end_does_not_wrap_around),
        cmocka_unit_test(a_deadline_on_a_worker_that_computes_is_met_by_another),
        cmocka_unit_test(a_million_deadlines_that_are_not_reached_leave_no_heap),
        cmocka_unit_test(how_late_sleeps_end),
    };
    static const struct program program = { 100, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
