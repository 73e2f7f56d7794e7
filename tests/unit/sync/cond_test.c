/* SPDX-License-Identifier: MIT */
/* cond_test.c - no waiter is woken twice or forgotten; lifetime, misuse. */
#include "sync_test.h"

struct gate {
    struct rouse_mutex m;
    struct rouse_cond c;
    unsigned passed, tickets;
    int result;
    unsigned turns[64];
};

static bool is_shut(void *arg)
{
    return ((struct gate *)arg)->tickets == 0;
}

static void gate_check_left(struct gate *gate)
{
    assert_int_equal(gate->c.waiting, 0);
    assert_int_equal(gate->m.state, 0);
    rouse_cond_destroy(&gate->c);
    rouse_mutex_destroy(&gate->m);
}

static void nobody_waits(void **state)
{
    (void)state;
    struct gate gate = { .tickets = 0 };
    rouse_cond_init(&gate.c, "gate");
    rouse_cond_signal(&gate.c);
    rouse_cond_broadcast(&gate.c);
    rouse_mutex_lock(&gate.m);
    assert_int_equal(rouse_cond_wait_until(&gate.c, &gate.m, 0), -ETIMEDOUT);
    assert_ptr_equal(gate.m.owner, rouse_thread_self());
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    assert_int_equal(rouse_cond_wait_until(&gate.c, &gate.m, deadline_ns), -ETIMEDOUT);
    assert_true(rouse_now_ns() >= deadline_ns);
    assert_int_equal(rouse_cond_wait_while_until(&gate.c, &gate.m, is_shut, &gate, deadline_ns),
                     -ETIMEDOUT);
    gate.tickets = 1;
    assert_int_equal(rouse_cond_wait_while(&gate.c, &gate.m, is_shut, &gate), 0);
    assert_int_equal(rouse_cond_wait_while_until(&gate.c, &gate.m, is_shut, &gate, 0), 0);
    assert_ptr_equal(gate.m.owner, rouse_thread_self());
    rouse_mutex_unlock(&gate.m);
    gate_check_left(&gate);
}

static void wait_plainly(void *arg, unsigned index)
{
    struct gate *gate = arg;
    rouse_mutex_lock(&gate->m);
    CHECK(rouse_cond_wait(&gate->c, &gate->m) == 0);
    CHECK(gate->m.owner == rouse_thread_self());
    if (gate->passed < LENGTH(gate->turns))
        gate->turns[gate->passed] = index;
    rsi_store_relaxed(&gate->passed, gate->passed + 1);
    rouse_mutex_unlock(&gate->m);
}

static void signal_wakes_the_longest_waiter(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct gate gate = { .passed = 0 };
        for (unsigned i = 0; i < 20; i++) {
            (void)crew_add(&crew, (enum crew_kind)kind, wait_plainly, &gate);
            UNTIL(WAITING(&gate.c) == i + 1);
        }
        for (unsigned i = 0; i < 20; i++) {
            if (i % 2)
                rouse_mutex_lock(&gate.m);
            rouse_cond_signal(&gate.c);
            if (i % 2)
                rouse_mutex_unlock(&gate.m);
            assert_int_equal(WAITING(&gate.c), 19 - i);
            UNTIL(rsi_load_relaxed(&gate.passed) == i + 1);
        }
        crew_join(&crew);
        for (unsigned i = 0; i < 20; i++)
            assert_int_equal(gate.turns[i], i);
        gate_check_left(&gate);
    }
}

static void broadcast_wakes_a_thousand(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct gate gate = { .passed = 0 };
        unsigned count = kind == CREW_USER ? 1000 : 100;
        crew_add_many(&crew, (enum crew_kind)kind, count, wait_plainly, &gate);
        UNTIL(WAITING(&gate.c) == count);
        rouse_mutex_lock(&gate.m);
        rouse_cond_broadcast(&gate.c);
        assert_int_equal(WAITING(&gate.c), 0);
        rouse_mutex_unlock(&gate.m);
        crew_join(&crew);
        assert_int_equal(gate.passed, count);
        gate_check_left(&gate);
    }
}

/*
 * A bounded buffer whose users wait with short time-outs that end at any moment: each item comes
 * out once.
 */
struct buffer {
    struct rouse_mutex m;
    struct rouse_cond not_empty, not_full;
    unsigned items[8], first, count;
    unsigned rounds, taken;
    uint64_t sum;
};

static bool is_full(void *arg)
{
    return ((struct buffer *)arg)->count == LENGTH(((struct buffer *)arg)->items);
}

static bool is_empty(void *arg)
{
    return ((struct buffer *)arg)->count == 0;
}

static void put(struct buffer *b, unsigned item, uint64_t *random)
{
    rouse_mutex_lock(&b->m);
    uint64_t patience_ns = rsi_random_next(random) % 30000;
    while (rouse_cond_wait_while_until(&b->not_full, &b->m, is_full, b,
                                       rouse_now_ns() + patience_ns) < 0)
        continue;
    b->items[(b->first + b->count++) % LENGTH(b->items)] = item;
    if (item % 2)
        rouse_cond_signal(&b->not_empty);
    rouse_mutex_unlock(&b->m);
    if (item % 2 == 0)
        rouse_cond_signal(&b->not_empty);
}

static void take(struct buffer *b)
{
    rouse_mutex_lock(&b->m);
    while (b->count == 0)
        CHECK(rouse_cond_wait(&b->not_empty, &b->m) == 0);
    CHECK(!is_empty(b));
    b->sum += b->items[b->first++ % LENGTH(b->items)];
    b->count--;
    b->taken++;
    rouse_cond_signal(&b->not_full);
    rouse_mutex_unlock(&b->m);
}

static void put_or_take(void *arg, unsigned index)
{
    struct buffer *b = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned i = 1; i <= b->rounds; i++) {
        if (index / 3 % 2)
            take(b);
        else
            put(b, i, &random);
    }
}

static void loses_no_signal(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct buffer b = { .rounds = (kind == CREW_USER ? 5000 : 500) / SCALE };
        crew_run((enum crew_kind)kind, 12, put_or_take, &b);
        assert_int_equal(b.taken, 6 * b.rounds);
        assert_int_equal(b.sum, UINT64_C(6) * b.rounds * (b.rounds + 1) / 2);
        rouse_cond_destroy(&b.not_empty);
        rouse_cond_destroy(&b.not_full);
        rouse_mutex_destroy(&b.m);
    }
}

static void wait_cancelled(void *arg, unsigned index)
{
    struct gate *gate = arg;
    rouse_mutex_lock(&gate->m);
    gate->result = index % 2 ? rouse_cond_wait(&gate->c, &gate->m)
                             : rouse_cond_wait_while(&gate->c, &gate->m, is_shut, gate);
    CHECK(gate->m.owner == rouse_thread_self());
    rouse_mutex_unlock(&gate->m);
}

static void cancelled_waiter_holds_the_mutex(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 2 * CREW_MIXED; i++) {
        struct gate gate = { .result = 1 };
        if (i % 2)
            (void)crew_add(&crew, CREW_USER, wait_plainly, &gate);
        UNTIL(WAITING(&gate.c) == i % 2);
        struct rouse_thread *t = crew_add(&crew, (enum crew_kind)(i / 2), wait_cancelled, &gate);
        UNTIL(WAITING(&gate.c) == 1 + i % 2);
        rouse_mutex_lock(&gate.m);
        assert_int_equal(rouse_thread_cancel(t), 0);
        UNTIL(WAITING(&gate.c) == i % 2);
        UNTIL(WAITING(&gate.m) == 1); /* waits for the mutex, without a time-out */
        assert_int_equal(gate.result, 1);
        rouse_mutex_unlock(&gate.m);
        rouse_cond_signal(&gate.c);
        crew_join(&crew);
        assert_int_equal(gate.result, -ECANCELED);
        gate_check_left(&gate);
    }
}

/*
 * Each ticket is announced by one signal. Cancels end waits all the time: no signal may be lost
 * with them.
 */
struct booth {
    struct gate gate;
    struct crew visitors;
    unsigned sold;
    bool is_closed;
};

static bool has_no_ticket(void *arg)
{
    struct booth *booth = arg;
    return booth->gate.tickets == 0 && !booth->is_closed;
}

static void visit(void *arg, unsigned index)
{
    (void)index;
    struct booth *booth = arg;
    struct gate *gate = &booth->gate;
    rouse_mutex_lock(&gate->m);
    while (!booth->is_closed) {
        int result = rouse_cond_wait_while(&gate->c, &gate->m, has_no_ticket, booth);
        CHECK(result == 0 || result == -ECANCELED);
        if (gate->tickets > 0 && result == 0) {
            gate->tickets--;
            gate->passed++;
        }
    }
    rouse_mutex_unlock(&gate->m);
}

static void sell(struct booth *booth, uint64_t *random)
{
    struct gate *gate = &booth->gate;
    rouse_mutex_lock(&gate->m);
    gate->tickets++;
    booth->sold++;
    rouse_mutex_unlock(&gate->m);
    rouse_cond_signal(&gate->c);
    for (uint64_t i = rsi_random_next(random) % 3; i > 0; i--) {
        struct member *member = &booth->visitors.members[rsi_random_next(random) % 6];
        CHECK(rouse_thread_cancel(member->thread) == 0);
    }
}

static bool all_used(struct booth *booth)
{
    rouse_mutex_lock(&booth->gate.m);
    bool is_used = booth->gate.tickets == 0;
    rouse_mutex_unlock(&booth->gate.m);
    return is_used;
}

static void loses_no_signal_to_a_cancel(void **state)
{
    (void)state;
    static struct booth booth;
    uint64_t random = seed_of_run();
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        memset(&booth, 0, sizeof booth);
        crew_add_many(&booth.visitors, (enum crew_kind)kind, 6, visit, &booth);
        for (unsigned i = 0; i < 2000 / SCALE; i++) {
            sell(&booth, &random);
            if (rsi_random_next(&random) % 4 == 0)
                UNTIL(all_used(&booth));
        }
        UNTIL(all_used(&booth));
        rouse_mutex_lock(&booth.gate.m);
        booth.is_closed = true;
        rouse_cond_broadcast(&booth.gate.c);
        rouse_mutex_unlock(&booth.gate.m);
        crew_join(&booth.visitors);
        assert_int_equal(booth.gate.passed, booth.sold);
        gate_check_left(&booth.gate);
    }
}

static void wait_while_shut(void *arg, unsigned index)
{
    (void)index;
    struct gate *gate = arg;
    rouse_mutex_lock(&gate->m);
    uint64_t end_ns = rouse_now_ns() + 30 * MS;
    gate->result = rouse_cond_wait_while_until(&gate->c, &gate->m, is_shut, gate, end_ns);
    rouse_mutex_unlock(&gate->m);
}

/* Whether the waiter was caught before its time-out. */
static bool open_without_signal(struct gate *gate)
{
    rouse_mutex_lock(&gate->m);
    bool is_caught = WAITING(&gate->c) == 1;
    gate->tickets = 1;
    UNTIL(WAITING(&gate->c) == 0);
    rouse_mutex_unlock(&gate->m);
    return is_caught;
}

static void condition_that_became_true_unsignalled_is_no_timeout(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        bool is_caught = false;
        while (!is_caught) {
            struct gate gate = { .result = 1 };
            (void)crew_add(&crew, (enum crew_kind)kind, wait_while_shut, &gate);
            for (unsigned i = 0; i < 1000 && WAITING(&gate.c) == 0; i++)
                rouse_thread_yield();
            is_caught = open_without_signal(&gate);
            crew_join(&crew);
            assert_true(gate.result == 0 || !is_caught);
            gate_check_left(&gate);
        }
    }
}

/*
 * The condition variable is destroyed as soon as its waiters were notified. Some of them had just
 * given up then.
 */
struct ended {
    struct gate gate;
    unsigned round, rounds, arrived;
};

static void wait_for_end(void *arg, unsigned index)
{
    struct ended *e = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned round = 0; round < e->rounds; round++) {
        rouse_mutex_lock(&e->gate.m);
        e->arrived++;
        while (e->round == round) {
            uint64_t end_ns = rouse_now_ns() + rsi_random_next(&random) % 20000;
            (void)rouse_cond_wait_until(&e->gate.c, &e->gate.m, end_ns);
        }
        rouse_mutex_unlock(&e->gate.m);
    }
}

static void end_rounds(void *arg, unsigned index)
{
    (void)index;
    struct ended *e = arg;
    while (e->round < e->rounds) {
        rouse_mutex_lock(&e->gate.m);
        bool is_ready = e->arrived == 3;
        if (is_ready) {
            e->arrived = 0;
            e->round++;
            rouse_cond_broadcast(&e->gate.c);
            rouse_cond_destroy(&e->gate.c);
            memset(&e->gate.c, GRAVE_BYTE, sizeof e->gate.c);
            rouse_cond_init(&e->gate.c, "next");
        }
        rouse_mutex_unlock(&e->gate.m);
        if (!is_ready)
            rouse_thread_yield();
    }
}

static void destroy_lets_late_leavers_out(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct ended e = { .rounds = (kind == CREW_USER ? 3000 : 300) / SCALE };
        crew_add_many(&crew, (enum crew_kind)kind, 3, wait_for_end, &e);
        crew_add_many(&crew, CREW_USER, 1, end_rounds, &e);
        crew_join(&crew);
        gate_check_left(&e.gate);
    }
}

static struct rouse_cond ready = ROUSE_COND_INIT_NAMED("ready");
static struct rouse_mutex lock = ROUSE_MUTEX_INIT, other_lock = ROUSE_MUTEX_INIT;
static struct crew other;

static void wait_without_mutex(void)
{
    (void)rouse_cond_wait(&ready, &lock);
}

static bool is_asked(void *arg)
{
    (void)arg;
    fputs("predicate called\n", stderr);
    return true;
}

static void wait_while_without_mutex(void)
{
    (void)rouse_cond_wait_while_until(&ready, &lock, is_asked, NULL, 0);
}

static void wait_with(void *arg, unsigned index)
{
    (void)index;
    rouse_mutex_lock(arg);
    (void)rouse_cond_wait(&ready, arg);
}

static void wait_with_two_mutexes(void)
{
    (void)crew_add(&other, CREW_USER, wait_with, &lock);
    UNTIL(WAITING(&ready) == 1);
    wait_with(&other_lock, 0);
}

static void destroy_waited_for(void)
{
    (void)crew_add(&other, CREW_KERNEL, wait_with, &lock);
    UNTIL(WAITING(&ready) == 1);
    rouse_cond_destroy(&ready);
}

int main(int argc, char **argv)
{
    static const struct misuse misuses[] = {
        { "wait_without_mutex", "condition variable \"ready\"", wait_without_mutex },
        { "wait_while_without_mutex", "waited for by a thread that does not hold the mutex",
          wait_while_without_mutex },
        { "wait_with_two_mutexes", "waited for with two mutexes at once", wait_with_two_mutexes },
        { "destroy_waited_for", "destroyed while waited for", destroy_waited_for },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_waits),
        cmocka_unit_test(signal_wakes_the_longest_waiter),
        cmocka_unit_test(broadcast_wakes_a_thousand),
        cmocka_unit_test(loses_no_signal),
        cmocka_unit_test(loses_no_signal_to_a_cancel),
        cmocka_unit_test(cancelled_waiter_holds_the_mutex),
        cmocka_unit_test(condition_that_became_true_unsignalled_is_no_timeout),
        cmocka_unit_test(destroy_lets_late_leavers_out),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
