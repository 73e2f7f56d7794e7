/* SPDX-License-Identifier: MIT */
/* mutex_test.c - exclusion, fairness towards sleepers, time-outs, cancelling, lifetime, misuse. */
#include "sync_test.h"

/* As in mutex.c. */
#define LOCKED RSI_LOCK_HELD
#define HANDOFF 8u

static void locks_at_once_when_free(void **state)
{
    (void)state;
    struct rouse_mutex m = ROUSE_MUTEX_INIT_NAMED("basic"), zeroed;
    memset(&zeroed, 0, sizeof zeroed);
    rouse_mutex_lock(&m);
    assert_ptr_equal(m.owner, rouse_thread_self());
    assert_non_null(m.acquire_site);
    assert_int_equal(rouse_mutex_lock_try(&m), -EBUSY);
    rouse_mutex_unlock(&m);
    assert_null(m.owner);
    assert_int_equal(rouse_mutex_lock_try(&m), 0);
    rouse_mutex_unlock(&m);
    assert_int_equal(rouse_mutex_lock_until(&m, 0), 0);
    rouse_mutex_unlock(&m);
    rouse_mutex_destroy(&m);
    rouse_mutex_lock(&zeroed);
    rouse_mutex_unlock(&zeroed);
    rouse_mutex_destroy(&zeroed);
    rouse_mutex_init(&m, "again");
    assert_string_equal(m.name, "again");
    assert_int_equal(m.state, 0);
}

static void try_when_held(void *arg, unsigned index)
{
    (void)index;
    struct rouse_mutex *m = arg;
    CHECK(rouse_mutex_lock_try(m) == -EBUSY);
    CHECK(rouse_mutex_lock_until(m, 0) == -ETIMEDOUT);
    CHECK(rouse_mutex_lock_until(m, rouse_now_ns()) == -ETIMEDOUT);
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    CHECK(rouse_mutex_lock_until(m, deadline_ns) == -ETIMEDOUT);
    CHECK(rouse_now_ns() >= deadline_ns);
}

static void gives_up_when_held(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct rouse_mutex m = ROUSE_MUTEX_INIT;
        rouse_mutex_lock(&m);
        crew_run((enum crew_kind)kind, 6, try_when_held, &m);
        assert_int_equal(m.state, LOCKED);
        rouse_mutex_unlock(&m);
        rouse_mutex_destroy(&m);
    }
}

struct counted {
    struct rouse_mutex m;
    uint64_t count;
    uint32_t inside;
    unsigned rounds, yield_every;
};

static void count_up(void *arg, unsigned index)
{
    struct counted *c = arg;
    for (unsigned i = 1; i <= c->rounds; i++) {
        rouse_mutex_lock(&c->m);
        CHECK(rsi_fetch_add_relaxed(&c->inside, 1u) == 0);
        c->count++;
        if ((i + index) % c->yield_every == 0)
            rouse_thread_yield();
        CHECK(rsi_fetch_add_relaxed(&c->inside, -1u) == 1);
        rouse_mutex_unlock(&c->m);
    }
}

static void lets_one_in_at_a_time(void **state)
{
    (void)state;
    static const unsigned yields[] = { 2, 7, 1000000 };
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        for (size_t i = 0; i < LENGTH(yields); i++) {
            struct counted c = { .rounds = (kind == CREW_USER ? 20000 : 1500) / SCALE,
                                 .yield_every = yields[i] };
            crew_run((enum crew_kind)kind, 9, count_up, &c);
            assert_int_equal(c.count, 9u * c.rounds);
            assert_int_equal(c.m.state, 0);
            rouse_mutex_destroy(&c.m);
        }
    }
}

/* Time-outs at any point of a wait: neither a wake-up nor the lock is lost with them. */
static void lock_impatiently(void *arg, unsigned index)
{
    struct counted *c = arg;
    uint64_t random = seed_of_run() + index;
    for (unsigned done = 0; done < c->rounds;) {
        uint64_t patience_ns = rsi_random_next(&random) % 40000;
        int result = rouse_mutex_lock_until(&c->m, rouse_now_ns() + patience_ns);
        CHECK(result == 0 || result == -ETIMEDOUT);
        if (result < 0)
            continue;
        CHECK(rsi_fetch_add_relaxed(&c->inside, 1u) == 0);
        c->count++;
        if (patience_ns % 8 == 0)
            rouse_thread_yield();
        CHECK(rsi_fetch_add_relaxed(&c->inside, -1u) == 1);
        rouse_mutex_unlock(&c->m);
        done++;
    }
}

static void loses_no_wakeup_to_a_timeout(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct counted c = { .rounds = (kind == CREW_USER ? 3000 : 400) / SCALE };
        crew_run((enum crew_kind)kind, 8, lock_impatiently, &c);
        assert_int_equal(c.count, 8u * c.rounds);
        assert_int_equal(c.m.state, 0);
        rouse_mutex_destroy(&c.m);
    }
}

struct hammered {
    struct rouse_mutex m;
    bool is_over;
    unsigned hammering;
};

static void hammer(void *arg, unsigned index)
{
    (void)index;
    struct hammered *h = arg;
    rsi_fetch_add_relaxed(&h->hammering, 1u);
    while (!rsi_load_relaxed(&h->is_over)) {
        rouse_mutex_lock(&h->m);
        for (unsigned i = 0; i < 20; i++)
            rsi_cpu_relax();
        rouse_mutex_unlock(&h->m);
    }
}

static void get_ten_times(void *arg, unsigned index)
{
    (void)index;
    struct hammered *h = arg;
    UNTIL(rsi_load_relaxed(&h->hammering) != 0);
    for (unsigned i = 0; i < 10; i++) {
        CHECK(rouse_mutex_lock_until(&h->m, rouse_now_ns() + PATIENCE_S * SECOND) == 0);
        rouse_thread_yield();
        rouse_mutex_unlock(&h->m);
        rouse_thread_yield();
    }
    rsi_store_relaxed(&h->is_over, true);
}

static void sleeper_is_not_starved_by_bargers(void **state)
{
    (void)state;
    static struct crew crew;
    for (int hammers = 0; hammers < CREW_KINDS; hammers++) {
        for (int sleeper = 0; sleeper < CREW_MIXED; sleeper++) {
            struct hammered h = { .is_over = false };
            crew_add_many(&crew, (enum crew_kind)hammers, 3, hammer, &h);
            crew_add(&crew, (enum crew_kind)sleeper, get_ten_times, &h);
            crew_join(&crew);
            rouse_mutex_destroy(&h.m);
        }
    }
}

/*
 * On one worker the order of events is known: the woken thread runs only when the owner yields,
 * with the mutex locked again.
 */
static void take_and_note(void *arg, unsigned index)
{
    (void)index;
    struct counted *c = arg;
    rouse_mutex_lock(&c->m);
    struct rouse_wait_record record;
    rouse_obs_last_wait(&record);
    CHECK(record.kind == ROUSE_WAIT_MUTEX && record.object == &c->m);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL && record.wake_site && record.wait_site);
    CHECK(record.wait_count >= 2);
    c->count++;
    rouse_mutex_unlock(&c->m);
}

static void busy_ns(uint64_t ns)
{
    for (uint64_t end = rouse_now_ns() + ns; rouse_now_ns() < end;)
        rsi_cpu_relax();
}

static void overtake_a_sleeper(void *arg, unsigned index)
{
    (void)index;
    struct counted *c = arg;
    struct crew *crew = calloc(1, sizeof *crew);
    CHECK(crew);
    rouse_mutex_lock(&c->m);
    (void)crew_add(crew, CREW_USER, take_and_note, c);
    UNTIL(WAITING(&c->m) == 1);
    rouse_mutex_unlock(&c->m); /* wakes it */
    rouse_mutex_lock(&c->m);   /* overtakes it */
    rouse_thread_yield();
    CHECK(c->count == 0 && WAITING(&c->m) == 1);
    if (!(rsi_load_relaxed(&c->m.state) & HANDOFF)) { /* this worker was not stopped meanwhile */
        busy_ns(2 * MS);
        rouse_mutex_unlock(&c->m);
        rouse_mutex_lock(&c->m);
        rouse_thread_yield(); /* it lost again, and has now waited long */
    }
    CHECK(c->count == 0 && rsi_load_relaxed(&c->m.state) & HANDOFF);
    rouse_mutex_unlock(&c->m);
    CHECK(rouse_mutex_lock_try(&c->m) == -EBUSY); /* handed over: no overtaking */
    rouse_mutex_lock(&c->m);
    CHECK(c->count == 1);
    rouse_mutex_unlock(&c->m);
    crew_join(crew);
    free(crew);
}

static void is_handed_over_after_one_millisecond(void **state)
{
    (void)state;
    if (rouse_worker_count() != 1)
        skip();
    struct counted c = { .count = 0 };
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    crew_run(CREW_USER, 1, overtake_a_sleeper, &c);
    rouse_obs_set_mode(ROUSE_OBS_OFF);
    rouse_mutex_destroy(&c.m);
}

static void lock_once(void *arg, unsigned index)
{
    (void)index;
    struct counted *c = arg;
    int result = rouse_mutex_lock_until(&c->m, ROUSE_FOREVER);
    CHECK(result == -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
    rsi_fetch_add_relaxed(&c->inside, 1u);
    rouse_mutex_lock(&c->m); /* cannot be cancelled */
    CHECK(rouse_thread_cancel_pending());
    c->count++;
    rouse_mutex_unlock(&c->m);
    CHECK(rouse_mutex_lock_until(&c->m, ROUSE_FOREVER) == 0); /* did not need to wait */
    rouse_mutex_unlock(&c->m);
}

static void cancel_ends_until_and_not_the_plain_lock(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_MIXED; kind++) {
        struct counted c = { .count = 0 };
        rouse_mutex_lock(&c.m);
        struct rouse_thread *t = crew_add(&crew, (enum crew_kind)kind, lock_once, &c);
        UNTIL(WAITING(&c.m) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        UNTIL(rsi_load_relaxed(&c.inside) == 1 && WAITING(&c.m) == 1);
        assert_int_equal(rouse_thread_cancel(t), 0);
        for (unsigned i = 0; i < 100; i++)
            rouse_thread_yield();
        assert_int_equal(WAITING(&c.m), 1);
        assert_int_equal(c.count, 0);
        rouse_mutex_unlock(&c.m);
        crew_join(&crew);
        assert_int_equal(c.count, 1);
        rouse_mutex_destroy(&c.m);
    }
}

/*
 * The last thread to lock the object frees it, while the previous owner may still be on its way out
 * of unlock.
 */
#define SHARERS 3
struct shared {
    struct rouse_mutex m;
    uint32_t users;
};

struct sharing {
    unsigned rounds;
    struct shared **objects;
    struct grave grave;
};

static void share_and_free(void *arg, unsigned index)
{
    struct sharing *s = arg;
    for (unsigned i = 0; i < s->rounds; i++) {
        struct shared *object = s->objects[i];
        if ((i + index) % 4 == 0)
            while (rouse_mutex_lock_until(&object->m, rouse_now_ns() + 2000) < 0)
                continue;
        else
            rouse_mutex_lock(&object->m);
        if (i % 16 == index)
            rouse_thread_yield();
        bool is_last = --object->users == 0;
        rouse_mutex_unlock(&object->m);
        if (is_last)
            grave_release(&s->grave, object, sizeof *object);
    }
}

static void object_freed_by_the_next_owner_is_not_touched(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct sharing s = { .rounds = (kind == CREW_USER ? 20000 : 5000) / SCALE };
        s.objects = calloc(s.rounds, sizeof *s.objects);
        assert_non_null(s.objects);
        grave_open(&s.grave, s.rounds, sizeof(struct shared));
        for (unsigned i = 0; i < s.rounds; i++) {
            s.objects[i] = grave_new(sizeof(struct shared));
            s.objects[i]->users = SHARERS;
        }
        crew_run((enum crew_kind)kind, SHARERS, share_and_free, &s);
        grave_check(&s.grave);
        free(s.objects);
    }
}

static void lock_and_leave(void *arg, unsigned index)
{
    (void)index;
    rouse_mutex_lock(arg);
}

static void lock_and_unlock(void *arg, unsigned index)
{
    (void)index;
    rouse_mutex_lock(arg);
    rouse_mutex_unlock(arg);
}

static struct rouse_mutex cache = ROUSE_MUTEX_INIT_NAMED("cache");
static struct crew other;

static void unlock_free(void)
{
    rouse_mutex_unlock(&cache);
}

static void unlock_others(void)
{
    crew_run(CREW_USER, 1, lock_and_leave, &cache);
    rouse_mutex_unlock(&cache);
}

static void unlock_as_named(void *arg, unsigned index)
{
    (void)index;
    rouse_thread_set_name(rouse_thread_self(), "hasty");
    rouse_mutex_unlock(arg);
}

static void unlock_by_named_thread(void)
{
    rouse_mutex_lock(&cache);
    crew_run(CREW_USER, 1, unlock_as_named, &cache);
}

/* Not inlined: the message names the function that acquired. */
__attribute__((noinline)) static void relock(void)
{
    rouse_mutex_lock(&cache);
    rouse_mutex_lock(&cache);
}

static void relock_until(void)
{
    rouse_mutex_lock(&cache);
    (void)rouse_mutex_lock_until(&cache, 0);
}

static void destroy_held(void)
{
    rouse_mutex_lock(&cache);
    rouse_mutex_destroy(&cache);
}

static void destroy_waited_for(void)
{
    rouse_mutex_lock(&cache);
    (void)crew_add(&other, CREW_USER, lock_and_unlock, &cache);
    UNTIL(WAITING(&cache) == 1);
    rouse_mutex_destroy(&cache);
}

int main(int argc, char **argv)
{
    static const struct misuse misuses[] = {
        { "unlock_free", "mutex \"cache\"", unlock_free },
        { "unlock_others", "unlocked by a thread that does not hold it", unlock_others },
        { "unlock_by_named_thread", " \"hasty\")\n", unlock_by_named_thread },
        { "unlock_others", "; held by thread ", unlock_others },
        { "relock", "locked again by the thread that holds it", relock },
        { "relock", ", acquired at relock+0x", relock },
        { "relock_until", "locked again by the thread that holds it", relock_until },
        { "destroy_held", "destroyed while held or waited for", destroy_held },
        { "destroy_waited_for", "destroyed while held or waited for", destroy_waited_for },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locks_at_once_when_free),
        cmocka_unit_test(gives_up_when_held),
        cmocka_unit_test(lets_one_in_at_a_time),
        cmocka_unit_test(loses_no_wakeup_to_a_timeout),
        cmocka_unit_test(sleeper_is_not_starved_by_bargers),
        cmocka_unit_test(is_handed_over_after_one_millisecond),
        cmocka_unit_test(cancel_ends_until_and_not_the_plain_lock),
        cmocka_unit_test(object_freed_by_the_next_owner_is_not_touched),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
