/* SPDX-License-Identifier: MIT */
/* key_test.c - thread-local values and their destructors. */
#include "core_test.h"

#include <pthread.h>

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

static unsigned key_new(void (*destructor)(void *))
{
    unsigned key = UINT32_MAX;
    CHECK_EQUAL(rouse_key_create(&key, destructor), 0);
    CHECK(key < ROUSE_KEYS_MAX);
    return key;
}

static void *use_own_value(void *arg)
{
    unsigned key = *(unsigned *)arg;
    CHECK(rouse_key_get(key) == NULL);
    for (uintptr_t i = 1; i < 20; i++) {
        CHECK_EQUAL(rouse_key_set(key, (void *)i), 0);
        rouse_thread_yield();
        CHECK(rouse_key_get(key) == (void *)i);
    }
    CHECK_EQUAL(rouse_key_set(key, NULL), 0);
    CHECK(rouse_key_get(key) == NULL);
    return NULL;
}

static void each_thread_has_its_own_value(void **state)
{
    (void)state;
    unsigned key = key_new(NULL);
    struct rouse_thread *threads[20];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(kinds[i % 2], use_own_value, &key);
    use_own_value(&key);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    CHECK_EQUAL(rouse_key_delete(key), 0);
}

static unsigned destroyed_count, rounds;
static uintptr_t destroyed[16];
static unsigned key_a, key_b;

static void note_destroyed(void *value)
{
    CHECK(rouse_thread_self() != NULL);
    destroyed[destroyed_count++ % LENGTH(destroyed)] = (uintptr_t)value;
}

static void *set_two(void *unused)
{
    CHECK_EQUAL(rouse_key_set(key_a, (void *)1), 0);
    CHECK_EQUAL(rouse_key_set(key_b, (void *)2), 0);
    return unused;
}

static void *set_two_and_exit(void *unused)
{
    set_two(NULL);
    rouse_thread_exit(unused);
}

static void *set_null_again(void *unused)
{
    set_two(NULL);
    CHECK_EQUAL(rouse_key_set(key_a, NULL), 0);
    return unused;
}

static void destructors_run_for_values_that_are_not_null(void **state)
{
    (void)state;
    key_a = key_new(note_destroyed);
    key_b = key_new(note_destroyed);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        destroyed_count = 0;
        join(start(kinds[k], set_two, NULL));
        CHECK_EQUAL(destroyed_count, 2);
        CHECK(destroyed[0] + destroyed[1] == 3);
        join(start(kinds[k], set_two_and_exit, NULL));
        CHECK_EQUAL(destroyed_count, 4);
        destroyed_count = 0;
        join(start(kinds[k], set_null_again, NULL));
        CHECK_EQUAL(destroyed_count, 1);
        CHECK_EQUAL(destroyed[0], 2);
    }
    pthread_t foreign;
    destroyed_count = 0;
    CHECK(pthread_create(&foreign, NULL, set_two, NULL) == 0);
    CHECK(pthread_join(foreign, NULL) == 0);
    CHECK_EQUAL(destroyed_count, 2);
    rouse_key_delete(key_a);
    rouse_key_delete(key_b);
}

static void set_again(void *value)
{
    CHECK(rouse_key_get(key_a) == NULL); /* set to NULL before the destructor runs */
    rounds++;
    CHECK_EQUAL(rouse_key_set(key_a, value), 0);
}

static void *set_one(void *value)
{
    CHECK_EQUAL(rouse_key_set(key_a, value), 0);
    return NULL;
}

static void destructors_run_at_most_four_rounds(void **state)
{
    (void)state;
    key_a = key_new(set_again);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        rounds = 0;
        join(start(kinds[k], set_one, &rounds));
        CHECK_EQUAL(rounds, 4);
    }
    rouse_key_delete(key_a);
}

static void block_and_set_other(void *value)
{
    CHECK_EQUAL(rouse_sleep(1000), 0);
    rouse_thread_yield();
    if (!rouse_key_get(key_b) && rounds++ == 0)
        CHECK_EQUAL(rouse_key_set(key_b, value), 0);
}

static void destructors_may_block_and_set_other_keys(void **state)
{
    (void)state;
    key_b = key_new(note_destroyed); /* a lower number, so another round is needed */
    key_a = key_new(block_and_set_other);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        destroyed_count = rounds = 0;
        join(start(kinds[k], set_one, (void *)7));
        CHECK_EQUAL(destroyed_count, 1);
        CHECK_EQUAL(destroyed[0], 7);
    }
    rouse_key_delete(key_a);
    rouse_key_delete(key_b);
}

static void *meet_a_deleted_key(void *unused)
{
    unsigned key = key_new(note_destroyed);
    CHECK_EQUAL(rouse_key_set(key, (void *)9), 0);
    CHECK_EQUAL(rouse_key_delete(key), 0);
    CHECK_EQUAL(rouse_key_delete(key), -EINVAL);
    CHECK(rouse_key_get(key) == NULL);
    CHECK_EQUAL(rouse_key_set(key, (void *)9), -EINVAL);
    unsigned again = key_new(note_destroyed);
    CHECK_EQUAL(again, key); /* the lowest free number */
    CHECK(rouse_key_get(again) == NULL);
    return unused;
}

static void a_recreated_key_does_not_show_old_values(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        destroyed_count = 0;
        join(start(kinds[k], meet_a_deleted_key, NULL));
        CHECK_EQUAL(destroyed_count, 0); /* neither under the old key nor under the new one */
        CHECK_EQUAL(rouse_key_delete(0), 0);
    }
}

static void too_many_keys_and_invalid_keys_are_refused(void **state)
{
    (void)state;
    unsigned keys[ROUSE_KEYS_MAX + 1], count = 0;
    while (count < LENGTH(keys) && rouse_key_create(&keys[count], NULL) == 0)
        count++;
    CHECK_EQUAL(count, ROUSE_KEYS_MAX);
    unsigned key = 5;
    CHECK_EQUAL(rouse_key_create(&key, NULL), -EAGAIN);
    CHECK_EQUAL(key, 5);
    CHECK_EQUAL(rouse_key_set(ROUSE_KEYS_MAX, &key), -EINVAL);
    CHECK_EQUAL(rouse_key_set(UINT32_MAX, &key), -EINVAL);
    CHECK(rouse_key_get(ROUSE_KEYS_MAX) == NULL);
    CHECK(rouse_key_get(UINT32_MAX) == NULL);
    CHECK_EQUAL(rouse_key_delete(ROUSE_KEYS_MAX), -EINVAL);
    CHECK_EQUAL(rouse_key_delete(UINT32_MAX), -EINVAL);
    for (unsigned i = 0; i < count; i++)
        CHECK_EQUAL(rouse_key_delete(keys[i]), 0);
}

static void *fill_every_key(void *arg)
{
    unsigned *keys = arg;
    for (unsigned i = 0; i < ROUSE_KEYS_MAX; i++)
        CHECK_EQUAL(rouse_key_set(keys[i], &keys[i]), 0);
    for (unsigned i = 0; i < ROUSE_KEYS_MAX; i++)
        CHECK(rouse_key_get(keys[i]) == &keys[i]);
    return NULL;
}

static uint32_t freed;

static void count_freed(void *value)
{
    (void)value;
    rsi_fetch_add_relaxed(&freed, 1u);
}

static void every_key_in_many_threads(void **state)
{
    (void)state;
    unsigned keys[ROUSE_KEYS_MAX];
    struct rouse_thread *threads[50];
    for (unsigned i = 0; i < ROUSE_KEYS_MAX; i++)
        keys[i] = key_new(count_freed);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(kinds[i % 2], fill_every_key, keys);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    CHECK_EQUAL(freed, LENGTH(threads) * ROUSE_KEYS_MAX);
    for (unsigned i = 0; i < ROUSE_KEYS_MAX; i++)
        CHECK_EQUAL(rouse_key_delete(keys[i]), 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_has_its_own_value),
        cmocka_unit_test(destructors_run_for_values_that_are_not_null),
        cmocka_unit_test(destructors_run_at_most_four_rounds),
        cmocka_unit_test(destructors_may_block_and_set_other_keys),
        cmocka_unit_test(a_recreated_key_does_not_show_old_values),
        cmocka_unit_test(too_many_keys_and_invalid_keys_are_refused),
        cmocka_unit_test(every_key_in_many_threads),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
