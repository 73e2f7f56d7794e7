/* SPDX-License-Identifier: MIT */
/*
 * rwlock_order_test.c - the order of readers and writers: no writer and no reader is starved, and
 * readers form no convoy.
 */
#include "sync_test.h"

#define WAITERS (1u << 30) /* as in rwlock.c */

struct shared {
    struct rouse_rwlock l;
    uint32_t readers, done;
    bool is_over;
};

static void check_left(struct shared *s)
{
    assert_int_equal(s->l.state, 0);
    assert_null(s->l.waiters.first);
    rouse_rwlock_destroy(&s->l);
}

/* Readers that keep arriving before the last has left, for ever. */
static void read_always(void *arg, unsigned index)
{
    struct shared *s = arg;
    bool yields = index % 2;
    while (!rsi_load_relaxed(&s->is_over)) {
        rouse_rwlock_read_lock(&s->l);
        rsi_fetch_add_relaxed(&s->readers, 1u);
        uint64_t end_ns = rouse_now_ns() + SECOND;
        while (rsi_load_relaxed(&s->readers) < 2 && !(rsi_load_relaxed(&s->l.state) & WAITERS) &&
               !rsi_load_relaxed(&s->is_over) && rouse_now_ns() < end_ns)
            rouse_thread_yield();
        if (yields)
            rouse_thread_yield();
        rsi_fetch_add_relaxed(&s->readers, -1u);
        rouse_rwlock_read_unlock(&s->l);
    }
}

static void write_always(void *arg, unsigned index)
{
    struct shared *s = arg;
    while (!rsi_load_relaxed(&s->is_over)) {
        rouse_rwlock_write_lock(&s->l);
        if (index % 2)
            rouse_thread_yield();
        rouse_rwlock_write_unlock(&s->l);
    }
}

static void write_ten_times(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    for (unsigned i = 0; i < 10; i++) {
        CHECK(rouse_rwlock_write_lock_until(&s->l, rouse_now_ns() + PATIENCE_S * SECOND) == 0);
        CHECK(rsi_load_relaxed(&s->readers) == 0);
        rouse_thread_yield();
        rouse_rwlock_write_unlock(&s->l);
        rouse_thread_yield();
    }
    rsi_store_relaxed(&s->is_over, true);
}

static void read_ten_times(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    for (unsigned i = 0; i < 10; i++) {
        CHECK(rouse_rwlock_read_lock_until(&s->l, rouse_now_ns() + PATIENCE_S * SECOND) == 0);
        rouse_thread_yield();
        rouse_rwlock_read_unlock(&s->l);
        rouse_thread_yield();
    }
    rsi_store_relaxed(&s->is_over, true);
}

static void starve(void (*many)(void *, unsigned), void (*one)(void *, unsigned))
{
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        for (int single = 0; single < CREW_MIXED; single++) {
            struct shared s = { .is_over = false };
            crew_add_many(&crew, (enum crew_kind)kind, 4, many, &s);
            (void)crew_add(&crew, (enum crew_kind)single, one, &s);
            crew_join(&crew);
            check_left(&s);
        }
    }
}

static void writer_is_not_starved_by_readers(void **state)
{
    (void)state;
    starve(read_always, write_ten_times);
}

static void reader_is_not_starved_by_writers(void **state)
{
    (void)state;
    starve(write_always, read_ten_times);
}

/* The events of a lock, in order. */
struct story {
    struct rouse_rwlock l;
    struct rouse_mutex m;
    char text[64];
    unsigned length, inside, most_inside;
    bool is_over;
};

static void story_add(struct story *story, char c)
{
    rouse_mutex_lock(&story->m);
    story->inside += c == 'r' ? 1u : 0u;
    story->inside -= c == 'R' ? 1u : 0u;
    if (story->inside > story->most_inside)
        rsi_store_relaxed(&story->most_inside, story->inside);
    story->text[story->length++] = c;
    rouse_mutex_unlock(&story->m);
}

static void write_story(void *arg, unsigned index)
{
    (void)index;
    struct story *story = arg;
    rouse_rwlock_write_lock(&story->l);
    story_add(story, 'w');
    rouse_thread_yield();
    story_add(story, 'W');
    rouse_rwlock_write_unlock(&story->l);
}

/* Stays until all eight readers are inside at the same time. */
static void read_story(void *arg, unsigned index)
{
    (void)index;
    struct story *story = arg;
    rouse_rwlock_read_lock(&story->l);
    story_add(story, 'r');
    UNTIL(rsi_load_relaxed(&story->most_inside) == 8);
    story_add(story, 'R');
    rouse_rwlock_read_unlock(&story->l);
}

static void waiting_readers_go_together_before_the_next_writer(void **state)
{
    (void)state;
    static struct crew crew;
    static const char order[] = "wrwrrrwrrrrw";
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct story story = { .length = 0 };
        rouse_rwlock_write_lock(&story.l);
        for (unsigned i = 0; order[i]; i++) {
            (void)crew_add(&crew, (enum crew_kind)kind, order[i] == 'w' ? write_story : read_story,
                           &story);
            UNTIL(WAITING(&story.l) == i + 1);
        }
        rouse_rwlock_write_unlock(&story.l);
        crew_join(&crew);
        assert_memory_equal(story.text, "rrrrrrrr", 8);
        assert_string_equal(story.text + 16, "wWwWwWwW");
        assert_int_equal(story.l.state, 0);
        rouse_rwlock_destroy(&story.l);
    }
}

static void read_briefly(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    rouse_rwlock_read_lock(&s->l);
    rsi_fetch_add_relaxed(&s->done, 1u);
    rouse_rwlock_read_unlock(&s->l);
}

static void write_cancelled(void *arg, unsigned index)
{
    (void)index;
    struct shared *s = arg;
    CHECK(rouse_rwlock_write_lock_until(&s->l, ROUSE_FOREVER) == -ECANCELED);
    CHECK(!rouse_thread_cancel_pending());
}

static void readers_wait_behind_a_writer_until_it_gives_up(void **state)
{
    (void)state;
    static struct crew crew;
    for (int kind = 0; kind < CREW_KINDS; kind++) {
        struct shared s = { .done = 0 };
        rouse_rwlock_read_lock(&s.l);
        struct rouse_thread *writer = crew_add(&crew, (enum crew_kind)kind, write_cancelled, &s);
        UNTIL(WAITING(&s.l) == 1);
        assert_int_equal(rouse_rwlock_read_lock_try(&s.l), -EBUSY);
        crew_add_many(&crew, (enum crew_kind)kind, 5, read_briefly, &s);
        UNTIL(WAITING(&s.l) == 6);
        assert_int_equal(s.done, 0);
        assert_int_equal(rouse_thread_cancel(writer), 0);
        UNTIL(rsi_load_relaxed(&s.done) == 5); /* although it is still held for reading */
        crew_join(&crew);
        rouse_rwlock_read_unlock(&s.l);
        check_left(&s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_is_not_starved_by_readers),
        cmocka_unit_test(reader_is_not_starved_by_writers),
        cmocka_unit_test(waiting_readers_go_together_before_the_next_writer),
        cmocka_unit_test(readers_wait_behind_a_writer_until_it_gives_up),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
