/* SPDX-License-Identifier: MIT */
/* rwlock_test.c - readers together, writers alone; time-outs, cancelling, lifetime, misuse. */
#include "sync_test.h"

struct shared {
    struct rouse_rwlock l;
    uint32_t readers, writers, done;
    uint64_t a, b;
    unsigned rounds;
};

static void check_left(struct shared *s)
{
    assert_int_equal(s->l.state, 0);
    assert_null(s->l.waiters.first);
    assert_null(s->l.owner);
    rouse_rwlock_destroy(&s->l);
}

static void locks_at_once_when_free(void **state)
{
    (void)state;
    struct rouse_rwlock l = ROUSE_RWLOCK_INIT_NAMED("basic"), plain = ROUSE_RWLOCK_INIT;
    rouse_rwlock_read_lock(&l);
    assert_int_equal(rouse_rwlock_write_lock_try(&l), -EBUSY);
    rouse_rwlock_read_unlock(&l);
    rouse_rwlock_write_lock(&l);
    assert_ptr_equal(l.owner, rouse_thread_self());
    assert_non_null(l.acquire_site);
    assert_int_equal(rouse_rwlock_read_lock_try(&l), -EBUSY);
    assert_int_equal(rouse_rwlock_write_lock_try(&l), -EBUSY);
    rouse_rwlock_write_unlock(&l);
    assert_int_equal(rouse_rwlock_read_lock_try(&l), 0);
    rouse_rwlock_read_unlock(&l);
    assert_int_equal(rouse_rwlock_read_lock_until(&l, 0), 0);
    rouse_rwlock_read_unlock(&l);
    assert_int_equal(rouse_rwlock_write_lock_try(&l), 0);
    rouse_rwlock_write_unlock(&l);
    assert_int_equal(rouse_rwlock_write_lock_until(&l, 0), 0);
    rouse_rwlock_write_unlock(&l);
    rouse_rwlock_destroy(&l);
    rouse_rwlock_destroy(&plain);
    rouse_rwlock_init(&l, "again");
    assert_string_equal(l.name, "again");
    assert_int_equal(l.state, 0);
}

static void try_when_written(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    CHECK(rouse_rwlock_read_lock_try(&s->l) == -EBUSY);
    CHECK(rouse_rwlock_write_lock_try(&s->l) == -EBUSY);
    CHECK(rouse_rwlock_read_lock_until(&s->l, 0) == -ETIMEDOUT);
    CHECK(rouse_rwlock_write_lock_until(&s->l, 0) == -ETIMEDOUT);
    uint64_t deadline_ns = rouse_now_ns() + 3 * MS;
    CHECK((index % 2 ? rouse_rwlock_read_lock_until(&s->l, deadline_ns)
                     : rouse_rwlock_write_lock_until(&s->l, deadline_ns)) == -ETIMEDOUT);
    CHECK(rouse_now_ns() >= deadline_ns);
}

static void write_when_read(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    CHECK(rouse_rwlock_write_lock_try(&s->l) == -EBUSY);
    CHECK(rouse_rwlock_write_lock_until(&s->l, rouse_now_ns() + MS) == -ETIMEDOUT);
    rouse_rwlock_read_lock(&s->l); /* the writers before have given up or will */
    rouse_rwlock_read_unlock(&s->l);
}

static void gives_up_when_held(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct shared s = { .rounds = 0 };
        rouse_rwlock_write_lock(&s.l);
        crew_run((enum crew_kind)kind, 6, try_when_written, &s);
        rouse_rwlock_write_unlock(&s.l);
        rouse_rwlock_read_lock(&s.l);
        crew_run((enum crew_kind)kind, 6, write_when_read, &s);
        rouse_rwlock_read_unlock(&s.l);
        check_left(&s);
    }
}

static void read_inside(struct shared *s, bool yields)
{
    rsi_fetch_add_relaxed(&s->readers, 1u);
    CHECK(rsi_load_relaxed(&s->writers) == 0);
    uint64_t a = s->a;
    if (yields)
        rouse_thread_yield();
    CHECK(s->b == a);
    rsi_fetch_add_relaxed(&s->readers, -1u);
}

static void write_inside(struct shared *s, bool yields)
{
    CHECK(rsi_fetch_add_relaxed(&s->writers, 1u) == 0);
    CHECK(rsi_load_relaxed(&s->readers) == 0);
    s->a++;
    if (yields)
        rouse_thread_yield();
    s->b++;
    CHECK(rsi_fetch_add_relaxed(&s->writers, -1u) == 1);
}

static void read_or_write(void *arg, unsigned index)
{
    struct shared *s = arg;
    uint64_t random = seed_of_run() + index, written = 0;
    for (unsigned i = 0; i < s->rounds; i++) {
        uint64_t r = rsi_random_next(&random) >> 8;
        if (r % 4) {
            rouse_rwlock_read_lock(&s->l);
            read_inside(s, r % 16 < 4);
            rouse_rwlock_read_unlock(&s->l);
        } else {
            rouse_rwlock_write_lock(&s->l);
            write_inside(s, r % 16 < 8);
            rouse_rwlock_write_unlock(&s->l);
            written++;
        }
    }
    rsi_fetch_add_relaxed(&s->done, (uint32_t)written);
}

static void read_or_write_impatiently(void *arg, unsigned index)
{
    struct shared *s = arg;
    uint64_t random = seed_of_run() + index, written = 0;
    for (unsigned i = 0; i < s->rounds;) {
        uint64_t r = rsi_random_next(&random) >> 8, end_ns = rouse_now_ns() + r % 30000;
        bool reads = r % 4 != 0;
        int result = reads ? rouse_rwlock_read_lock_until(&s->l, end_ns)
                           : rouse_rwlock_write_lock_until(&s->l, end_ns);
        CHECK(result == 0 || result == -ETIMEDOUT);
        if (result < 0)
            continue;
        if (reads) {
            read_inside(s, r % 16 < 4);
            rouse_rwlock_read_unlock(&s->l);
        } else {
            write_inside(s, r % 16 < 8);
            rouse_rwlock_write_unlock(&s->l);
            written++;
        }
        i++;
    }
    rsi_fetch_add_relaxed(&s->done, (uint32_t)written);
}

static void run_all_kinds(void (*fn)(void *, unsigned), unsigned user_rounds, unsigned rounds)
{
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct shared s = { .rounds = (kind == CREW_USER ? user_rounds : rounds) / SCALE };
        crew_run((enum crew_kind)kind, 9, fn, &s);
        assert_int_equal(s.a, s.done);
        assert_int_equal(s.b, s.done);
        check_left(&s);
    }
}

static void keeps_writers_alone(void **state)
{
    (void)state;
    run_all_kinds(read_or_write, 20000, 1000);
}

static void loses_no_wakeup_to_a_timeout(void **state)
{
    (void)state;
    run_all_kinds(read_or_write_impatiently, 5000, 500);
}

static void cancelled_when_written(void *arg, unsigned index)
{
    struct shared *s = arg;
    CHECK((index % 2 ? rouse_rwlock_read_lock_until(&s->l, ROUSE_FOREVER)
                     : rouse_rwlock_write_lock_until(&s->l, ROUSE_FOREVER)) == -ECANCELED);
    rsi_fetch_add_relaxed(&s->done, 1u);
    if (index % 2) { /* these cannot be cancelled */
        rouse_rwlock_read_lock(&s->l);
        rouse_rwlock_read_unlock(&s->l);
    } else {
        rouse_rwlock_write_lock(&s->l);
        rouse_rwlock_write_unlock(&s->l);
    }
    CHECK(rouse_thread_cancel_pending());
}

static void cancel_ends_until_and_not_the_plain_locks(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct shared s = { .rounds = 0 };
        rouse_rwlock_write_lock(&s.l);
        crew_add_many(&crew, (enum crew_kind)kind, 4, cancelled_when_written, &s);
        for (unsigned round = 0; round < 2; round++) {
            UNTIL(rsi_load_relaxed(&s.done) == 4 * round && WAITING(&s.l) == 4);
            for (unsigned i = 0; i < 4; i++)
                assert_int_equal(rouse_thread_cancel(crew.members[i].thread), 0);
        }
        for (unsigned i = 0; i < 100; i++)
            rouse_thread_yield();
        assert_int_equal(WAITING(&s.l), 4);
        rouse_rwlock_write_unlock(&s.l);
        crew_join(&crew);
        check_left(&s);
    }
}

/*
 * A writer frees the object when it finds that all readers have finished. They may still be on
 * their way out of unlock.
 */
#define READERS 2
struct freed {
    struct rouse_rwlock l;
    uint32_t left;
};

struct freeing {
    unsigned rounds;
    struct freed **objects;
    struct grave grave;
};

static bool lock_by_turns(struct freed *object, bool writes, unsigned turn)
{
    uint64_t end_ns = turn % 4 ? ROUSE_FOREVER : rouse_now_ns() + 2000;
    return (writes ? rouse_rwlock_write_lock_until(&object->l, end_ns)
                   : rouse_rwlock_read_lock_until(&object->l, end_ns)) == 0;
}

static void read_or_free(void *arg, unsigned index)
{
    struct freeing *f = arg;
    for (unsigned i = 0; i < f->rounds; i++) {
        struct freed *object = f->objects[i];
        bool is_done = false;
        while (!is_done) {
            if (!lock_by_turns(object, index == READERS, i + index))
                continue;
            if (index < READERS) {
                rsi_fetch_add_relaxed(&object->left, -1u);
                rouse_rwlock_read_unlock(&object->l);
                break;
            }
            is_done = rsi_load_relaxed(&object->left) == 0;
            rouse_rwlock_write_unlock(&object->l);
            if (!is_done)
                rouse_thread_yield();
        }
        if (is_done)
            grave_release(&f->grave, object, sizeof *object);
    }
}

static void object_freed_by_the_next_owner_is_not_touched(void **state)
{
    (void)state;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct freeing f = { .rounds = (kind == CREW_USER ? 10000 : 2000) / SCALE };
        f.objects = calloc(f.rounds, sizeof *f.objects);
        assert_non_null(f.objects);
        grave_open(&f.grave, f.rounds, sizeof(struct freed));
        for (unsigned i = 0; i < f.rounds; i++) {
            f.objects[i] = grave_new(sizeof(struct freed));
            f.objects[i]->left = READERS;
        }
        crew_run((enum crew_kind)kind, READERS + 1, read_or_free, &f);
        grave_check(&f.grave);
        free(f.objects);
    }
}

static void wait_recorded(void *arg, unsigned index)
{
    struct shared *s = arg;
    struct rouse_wait_record record;
    if (index % 2)
        rouse_rwlock_read_lock(&s->l);
    else
        rouse_rwlock_write_lock(&s->l);
    rouse_obs_last_wait(&record);
    CHECK(record.kind == (index % 2 ? ROUSE_WAIT_READ_LOCK : ROUSE_WAIT_WRITE_LOCK));
    CHECK(record.object == &s->l && record.wait_site && record.wake_site);
    CHECK(record.verdict == ROUSE_VERDICT_USEFUL && record.waker_id != 0);
    if (index % 2)
        rouse_rwlock_read_unlock(&s->l);
    else
        rouse_rwlock_write_unlock(&s->l);
}

static void waits_are_recorded(void **state)
{
    (void)state;
    static struct crew crew;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct shared s = { .rounds = 0 };
        rouse_rwlock_write_lock(&s.l);
        crew_add_many(&crew, (enum crew_kind)kind, 6, wait_recorded, &s);
        UNTIL(WAITING(&s.l) == 6);
        rouse_rwlock_write_unlock(&s.l);
        crew_join(&crew);
        check_left(&s);
    }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

static struct rouse_rwlock table = ROUSE_RWLOCK_INIT_NAMED("table");
static struct crew other;

static void read_and_stay(void *arg, unsigned index)
{
    (void)index;
    rouse_rwlock_read_lock(arg);
}

static void write_and_stay(void *arg, unsigned index)
{
    (void)index;
    rouse_rwlock_write_lock(arg);
}

static void unlock_unread(void)
{
    rouse_rwlock_read_unlock(&table);
}

static void unlock_read_of_written(void)
{
    rouse_rwlock_write_lock(&table);
    rouse_rwlock_read_unlock(&table);
}

static void unlock_unwritten(void)
{
    rouse_rwlock_write_unlock(&table);
}

static void unlock_write_of_others(void)
{
    crew_run(CREW_USER, 1, write_and_stay, &table);
    rouse_rwlock_write_unlock(&table);
}

static void unlock_write_of_read(void)
{
    rouse_rwlock_read_lock(&table);
    rouse_rwlock_write_unlock(&table);
}

static void write_again(void)
{
    rouse_rwlock_write_lock(&table);
    rouse_rwlock_write_lock(&table);
}

static void read_what_one_writes(void)
{
    rouse_rwlock_write_lock(&table);
    (void)rouse_rwlock_read_lock_until(&table, 0);
}

static void destroy_read(void)
{
    crew_run(CREW_KERNEL, 1, read_and_stay, &table);
    rouse_rwlock_destroy(&table);
}

static void destroy_waited_for(void)
{
    rouse_rwlock_write_lock(&table);
    (void)crew_add(&other, CREW_USER, read_and_stay, &table);
    UNTIL(WAITING(&table) == 1);
    rouse_rwlock_destroy(&table);
}

int main(int argc, char **argv)
{
    static const char not_writer[] = "unlocked for writing by a thread that does not hold it";
    static const struct misuse misuses[] = {
        { "unlock_unread", "reader-writer lock \"table\"", unlock_unread },
        { "unlock_read_of_written", "unlocked for reading while nobody reads",
          unlock_read_of_written },
        { "unlock_unwritten", not_writer, unlock_unwritten },
        { "unlock_write_of_others", not_writer, unlock_write_of_others },
        { "unlock_write_of_read", not_writer, unlock_write_of_read },
        { "write_again", "locked again by the thread that holds it for writing", write_again },
        { "read_what_one_writes", "locked again by the thread that holds it for writing",
          read_what_one_writes },
        { "destroy_read", "destroyed while held or waited for", destroy_read },
        { "destroy_waited_for", "destroyed while held or waited for", destroy_waited_for },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locks_at_once_when_free),
        cmocka_unit_test(gives_up_when_held),
        cmocka_unit_test(keeps_writers_alone),
        cmocka_unit_test(loses_no_wakeup_to_a_timeout),
        cmocka_unit_test(cancel_ends_until_and_not_the_plain_locks),
        cmocka_unit_test(object_freed_by_the_next_owner_is_not_touched),
        cmocka_unit_test(waits_are_recorded),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
