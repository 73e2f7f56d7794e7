/* SPDX-License-Identifier: MIT */
/*
 * thread_test.c - threads of both kinds from creation to release, with calls from every kind of
 * thread.
 */
#include "core_test.h"

#include <pthread.h>

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

static void *give_back(void *arg)
{
    return arg;
}

static void *yield_then_give_back(void *arg)
{
    for (int i = 0; i < 10; i++)
        rouse_thread_yield();
    return arg;
}

/* A gate. Threads sleep at it until it is opened, and none can miss the wake-up. */
static struct rouse_sem gate = ROUSE_SEM_INIT(0);

static void *wait_at_gate(void *arg)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    return arg;
}

static void *create_and_join(void *unused)
{
    enum { COUNT = 100 };
    struct rouse_thread *threads[COUNT];
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        for (uintptr_t i = 0; i < COUNT; i++)
            threads[i] = start(kinds[k], i % 2 ? give_back : yield_then_give_back, (void *)(i + 1));
        for (uintptr_t i = COUNT; i-- > 0;)
            CHECK(join(threads[i]) == (void *)(i + 1));
    }
    return unused;
}

static void threads_give_their_results_to_the_joiner(void **state)
{
    (void)state;
    in_every_kind(create_and_join, NULL);
}

/* Keeps the compiler from knowing that the call does not return. */
static void (*volatile leave)(void *) = rouse_thread_exit;

static int exit_deep(void *result, int depth)
{
    if (depth == 0)
        leave(result);
    return depth == 0 ? 0 : exit_deep(result, depth - 1) + 1;
}

static void *exit_from_the_depth(void *arg)
{
    return (void *)(intptr_t)exit_deep(arg, 20);
}

static void exit_ends_the_thread_from_any_depth(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++)
        CHECK(join(start(kinds[k], exit_from_the_depth, &gate)) == &gate);
}

struct identity {
    struct rouse_thread *self;
    uint64_t id;
    enum rouse_kind kind;
};

static void *tell_identity(void *arg)
{
    struct identity *identity = arg;
    identity->self = rouse_thread_self();
    identity->id = rouse_thread_id(identity->self);
    identity->kind = rouse_thread_kind(identity->self);
    rouse_thread_yield();
    CHECK(rouse_thread_self() == identity->self);
    CHECK(rouse_thread_id(rouse_thread_self()) == identity->id);
    return arg;
}

static void self_is_the_handle_that_create_gave(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct identity identity;
        struct rouse_thread *t = start(kinds[k], tell_identity, &identity);
        uint64_t id = rouse_thread_id(t);
        CHECK(rouse_thread_kind(t) == kinds[k]);
        join(t);
        CHECK(identity.self == t);
        CHECK(identity.id == id);
        CHECK(identity.kind == kinds[k]);
    }
    struct rouse_thread *self = rouse_thread_self();
    CHECK(self != NULL && self == rouse_thread_self());
    CHECK(rouse_thread_kind(self) == ROUSE_KIND_KERNEL);
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void *make_threads_and_note_ids(void *arg)
{
    uint64_t *ids = arg;
    for (int i = 0; i < 2000; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, give_back, NULL);
        ids[i] = rouse_thread_id(t);
        join(t);
    }
    return NULL;
}

static void no_two_threads_have_the_same_id(void **state)
{
    (void)state;
    static uint64_t ids[8000];
    struct rouse_thread *makers[3];
    for (int i = 0; i < 3; i++)
        makers[i] = start(kinds[i % 2], make_threads_and_note_ids, ids + i * 2000);
    make_threads_and_note_ids(ids + 6000);
    for (int i = 0; i < 3; i++)
        join(makers[i]);
    qsort(ids, LENGTH(ids), sizeof *ids, compare_ids);
    CHECK(ids[0] != 0);
    for (size_t i = 1; i < LENGTH(ids); i++)
        CHECK(ids[i] != ids[i - 1]);
}

static void names_are_cut_and_cleaned_and_their_full_length_is_returned(void **state)
{
    (void)state;
    char name[64];
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.name = "a name that is longer than the room for it";
    struct rouse_thread *t;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, wait_at_gate, NULL), 0);
    CHECK_EQUAL(rouse_thread_name(t, name, sizeof name), ROUSE_NAME_BYTES - 1);
    CHECK(strncmp(name, attr.name, ROUSE_NAME_BYTES - 1) == 0);
    CHECK_EQUAL(strlen(name), ROUSE_NAME_BYTES - 1);
    rouse_thread_set_name(t, "a\nb\x7f"
                             "c\xc3\xa4");
    CHECK_EQUAL(rouse_thread_name(t, name, sizeof name), 7);
    CHECK(strcmp(name, "a?b?c\xc3\xa4") == 0);
    CHECK_EQUAL(rouse_thread_name(t, name, 3), 7);
    CHECK(strcmp(name, "a?") == 0);
    CHECK_EQUAL(rouse_thread_name(t, name, 1), 7);
    CHECK(name[0] == 0);
    CHECK_EQUAL(rouse_thread_name(t, NULL, 0), 7);
    rouse_thread_set_name(t, "");
    CHECK_EQUAL(rouse_thread_name(t, name, sizeof name), 0);
    rouse_thread_set_name(t, "x");
    rouse_thread_set_name(t, NULL);
    CHECK_EQUAL(rouse_thread_name(t, name, sizeof name), 0);
    rouse_sem_post(&gate);
    join(t);
    t = start(ROUSE_KIND_USER, give_back, NULL); /* same control block: the old name is gone */
    CHECK_EQUAL(rouse_thread_name(t, name, sizeof name), 0);
    join(t);
    rouse_thread_set_name(rouse_thread_self(), "main");
    CHECK_EQUAL(rouse_thread_name(rouse_thread_self(), name, sizeof name), 4);
}

static void unusable_arguments_are_refused(void **state)
{
    (void)state;
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    CHECK_EQUAL(rouse_thread_create(&t, NULL, NULL, NULL), -EINVAL);
    CHECK_EQUAL(rouse_thread_create(NULL, NULL, give_back, NULL), -EINVAL);
    CHECK_EQUAL(rouse_thread_create(NULL, &attr, give_back, NULL), -EINVAL);
    attr.kind = (enum rouse_kind)(ROUSE_KIND_KERNEL + 1);
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, NULL), -EINVAL);
    attr.kind = (enum rouse_kind) - 1;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, NULL), -EINVAL);
    attr.kind = ROUSE_KIND_DEFAULT;
    attr.stack_bytes = ((size_t)1 << 30) + 1;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, NULL), -EINVAL);
    attr.stack_bytes = SIZE_MAX;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, NULL), -EINVAL);
}

static void *use_stack(void *arg)
{
    size_t bytes = (size_t)(uintptr_t)arg;
    volatile char *low = __builtin_alloca(bytes);
    for (size_t i = 0; i < bytes; i += 1024)
        low[i] = 1;
    rouse_thread_yield();
    return low[0] ? arg : NULL;
}

static void the_stack_is_as_large_as_asked(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1, 16384, 20000, 65536, 65537, 1 << 20, 3 << 20, 1 << 30 };
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            struct rouse_thread *t;
            struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
            attr.kind = kinds[k];
            attr.stack_bytes = sizes[i];
            /* Leave some for the frames of libraries and of a sanitizer. */
            uintptr_t use = sizes[i] <= 65537        ? 1024
                            : sizes[i] / 2 > 4 << 20 ? 4 << 20
                                                     : sizes[i] / 2;
            CHECK_EQUAL(rouse_thread_create(&t, &attr, use_stack, (void *)use), 0);
            CHECK(join(t) == (void *)use);
        }
    }
}

static void *join_tries(void *unused)
{
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        void *result = NULL;
        struct rouse_thread *t = start(kinds[k], wait_at_gate, &result);
        CHECK_EQUAL(rouse_thread_join_try(t, &result), -EBUSY);
        CHECK_EQUAL(rouse_thread_join_until(t, &result, 0), -ETIMEDOUT);
        uint64_t deadline = rouse_now_ns() + 2 * MS;
        CHECK_EQUAL(rouse_thread_join_until(t, &result, deadline), -ETIMEDOUT);
        CHECK(rouse_now_ns() >= deadline);
        CHECK(result == NULL);
        rouse_sem_post(&gate);
        int error = 0;
        UNTIL((error = rouse_thread_join_try(t, &result)) != -EBUSY);
        CHECK_EQUAL(error, 0);
        CHECK(result == &result);

        t = start(kinds[k], give_back, &result);
        UNTIL(rsi_load_acquire(&t->join_word) == RSI_JOIN_ENDED);
        CHECK_EQUAL(rouse_thread_join_until(t, NULL, 0), 0); /* late, but the thread has ended */
    }
    return unused;
}

static void join_try_and_until_give_up_and_leave_the_thread(void **state)
{
    (void)state;
    in_every_kind(join_tries, NULL);
}

static void *join_self(void *unused)
{
    CHECK_EQUAL(rouse_thread_join(rouse_thread_self(), NULL), -EDEADLK);
    CHECK_EQUAL(rouse_thread_join_until(rouse_thread_self(), NULL, 0), -EDEADLK);
    CHECK_EQUAL(rouse_thread_join_try(rouse_thread_self(), NULL), -EDEADLK);
    return unused;
}

static void a_thread_cannot_join_itself(void **state)
{
    (void)state;
    in_every_kind(join_self, NULL);
}

static void *join_it(void *t)
{
    return join(t);
}

static void a_second_joiner_is_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t = start(kinds[k], wait_at_gate, &gate);
        struct rouse_thread *joiner = start(kinds[(k + 1) % 2], join_it, t);
        UNTIL(waits(joiner));
        CHECK_EQUAL(rouse_thread_join(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_join_until(t, NULL, 0), -EINVAL);
        CHECK_EQUAL(rouse_thread_join_try(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_detach(t), -EINVAL);
        rouse_sem_post(&gate);
        CHECK(join(joiner) == &gate);
        /* Holds as long as no other thread has its control block. */
        CHECK_EQUAL(rouse_thread_join(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_join_try(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_detach(t), -EINVAL);
    }
}

struct race {
    struct rouse_thread *t;
    uint32_t arrived, joined;
};

static void *join_at_once(void *arg)
{
    struct race *race = arg;
    rsi_fetch_add_seq_cst(&race->arrived, 1u);
    while (rsi_load_acquire(&race->arrived) < 2)
        rouse_thread_yield();
    int error = rouse_thread_join(race->t, NULL);
    CHECK(error == 0 || error == -EINVAL);
    if (error == 0)
        rsi_fetch_add_seq_cst(&race->joined, 1u);
    else /* the other one waits: let it end */
        rouse_sem_post(&gate);
    return NULL;
}

static void of_two_joiners_at_once_one_gets_it(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        struct race race = { .t = start(ROUSE_KIND_USER, wait_at_gate, NULL) };
        struct rouse_thread *a = start(kinds[i % 2], join_at_once, &race);
        struct rouse_thread *b = start(kinds[i / 2 % 2], join_at_once, &race);
        join(a);
        join(b);
        CHECK_EQUAL(race.joined, 1);
    }
}

static void detached_threads_are_released_at_their_end(void **state)
{
    (void)state;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.detached = true;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct rouse_thread *t;
        attr.kind = kinds[k];
        CHECK_EQUAL(rouse_thread_create(&t, &attr, wait_at_gate, NULL), 0);
        CHECK_EQUAL(rouse_thread_join(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_join_try(t, NULL), -EINVAL);
        CHECK_EQUAL(rouse_thread_detach(t), -EINVAL);
        rouse_sem_post(&gate);
        UNTIL(rsi_load_acquire(&t->waiter.life) == RSI_LIFE_FREE);
        CHECK_EQUAL(rouse_thread_create(NULL, &attr, wait_at_gate, NULL), 0);
        rouse_sem_post(&gate);

        t = start(kinds[k], wait_at_gate, NULL);
        CHECK_EQUAL(rouse_thread_detach(t), 0);
        CHECK_EQUAL(rouse_thread_detach(t), -EINVAL);
        rouse_sem_post(&gate);
        UNTIL(rsi_load_acquire(&t->waiter.life) == RSI_LIFE_FREE);

        t = start(kinds[k], give_back, NULL);
        UNTIL(rsi_load_acquire(&t->join_word) == RSI_JOIN_ENDED);
        CHECK_EQUAL(rouse_thread_detach(t), 0);
        CHECK_EQUAL(rsi_load_acquire(&t->waiter.life), RSI_LIFE_FREE);
    }
    UNTIL(rouse_sem_value(&gate) == 0);
}

struct order {
    char text[64];
    unsigned used;
};

static void *note_turns(void *arg)
{
    struct order *order = arg;
    char letter = (char)('a' + order->used++);
    for (int i = 0; i < 4; i++) {
        rouse_thread_yield();
        order->text[order->used++] = letter;
    }
    return NULL;
}

static void *yield_in_turn(void *unused)
{
    struct order order = { .used = 0 };
    struct rouse_thread *a = start(ROUSE_KIND_USER, note_turns, &order);
    struct rouse_thread *b = start(ROUSE_KIND_USER, note_turns, &order);
    CHECK_EQUAL(order.used, 0); /* the creator goes on first */
    join(a);
    join(b);
    CHECK(memcmp(order.text + 2, "abababab", 8) == 0);
    return unused;
}

static void yielding_threads_take_turns(void **state)
{
    (void)state;
    if (rouse_worker_count() == 1)
        join(start(ROUSE_KIND_USER, yield_in_turn, NULL));
}

static unsigned blocks_handed_out(void)
{
    unsigned blocks = 0;
    for (unsigned i = 0; i < rsi_slab_count(); i++)
        blocks += rsi_load_acquire(&rsi_slab_at(i)->used);
    return blocks;
}

static void *spawn_batches(void *unused)
{
    int batches = is_emulated() ? 20 : 200; /* it creates kernel threads slowly */
    for (size_t k = 0; k < LENGTH(kinds); k++)
        for (int i = 0; i < batches; i++) {
            struct rouse_thread *threads[8];
            for (int j = 0; j < 8; j++)
                threads[j] = start(kinds[k], give_back, NULL);
            for (int j = 0; j < 8; j++)
                join(threads[j]);
        }
    return unused;
}

static void control_blocks_and_stacks_are_reused(void **state)
{
    (void)state;
    in_every_kind(spawn_batches, NULL);
    unsigned blocks = blocks_handed_out();
    for (int i = 0; i < 3; i++)
        in_every_kind(spawn_batches, NULL);
    /* Each worker, and main, may keep a few in its cache. */
    CHECK(blocks_handed_out() <= blocks + 64 * (rouse_worker_count() + 1));
}

enum { MANY = 1000 };

static void *create_many(void *threads)
{
    for (struct rouse_thread **t = threads, **end = t + MANY; t < end; t++)
        *t = start(ROUSE_KIND_USER, give_back, NULL);
    return NULL;
}

static void *join_many(void *threads)
{
    for (struct rouse_thread **t = threads, **end = t + MANY; t < end; t++)
        join(*t);
    return NULL;
}

/* In both directions: workers keep few of the blocks of ended threads for themselves, and take those of others. */
static void blocks_go_between_workers_and_other_kernel_threads(void **state)
{
    (void)state;
    static struct rouse_thread *threads[MANY];
    create_many(threads);
    join_many(threads);
    unsigned blocks = blocks_handed_out();
    for (int round = 0; round < 10; round++) {
        create_many(threads);
        join(start(ROUSE_KIND_USER, join_many, threads));
    }
    for (int round = 0; round < 10; round++) {
        join(start(ROUSE_KIND_USER, create_many, threads));
        join_many(threads);
    }
    CHECK(blocks_handed_out() <= blocks + 192 * (rouse_worker_count() + 1));
}

static void ten_thousand_at_once(void **state)
{
    (void)state;
    static struct rouse_thread *threads[10000 / SLOWER];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, wait_at_gate, &threads[i]);
    for (size_t i = 0; i < LENGTH(threads); i++)
        rouse_sem_post(&gate);
    for (size_t i = 0; i < LENGTH(threads); i++)
        CHECK(join(threads[i]) == &threads[i]);
}

static void *every_call(void *unused)
{
    unsigned key;
    char name[8];
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    errno = ENOTTY;
    struct rouse_thread *t = start(ROUSE_KIND_USER, give_back, NULL);
    rouse_thread_join_until(t, NULL, rouse_now_ns() + 1);
    rouse_thread_join_try(t, NULL);
    attr.stack_bytes = SIZE_MAX;
    rouse_thread_create(&t, &attr, give_back, NULL);
    attr = (struct rouse_thread_attr){ .kind = ROUSE_KIND_USER, .stack_bytes = 1 << 24 };
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, NULL), 0);
    join(t);
    join(start(ROUSE_KIND_KERNEL, give_back, NULL));
    CHECK_EQUAL(rouse_key_create(&key, NULL), 0);
    CHECK_EQUAL(rouse_key_set(key, name), 0);
    rouse_key_delete(key);
    rouse_thread_set_name(rouse_thread_self(), "errno");
    rouse_thread_name(rouse_thread_self(), name, sizeof name);
    rouse_sleep(1000);
    rouse_thread_cancel(rouse_thread_self());
    CHECK_EQUAL(rouse_sleep(1000), -ECANCELED);
    CHECK_EQUAL(errno, ENOTTY);
    return unused;
}

static void errno_is_left_unchanged(void **state)
{
    (void)state;
    /* A user thread uses the errno of its worker's kernel thread, and may change workers. */
    every_call(NULL);
    join(start(ROUSE_KIND_KERNEL, every_call, NULL));
    if (rouse_worker_count() == 1)
        join(start(ROUSE_KIND_USER, every_call, NULL));
}

static void *keep_errno(void *number)
{
    CHECK_EQUAL(errno, 0); /* of a new thread */
    errno = (int)(size_t)number;
    for (int i = 0; i < 1000; i++) {
        if (i % 100 == 0)
            CHECK_EQUAL(rouse_sleep(1000), 0);
        else
            rouse_thread_yield();
        CHECK_EQUAL(errno, (int)(size_t)number);
    }
    return NULL;
}

static void errno_belongs_to_the_thread(void **state)
{
    (void)state;
    struct rouse_thread *t[8];
    for (size_t i = 0; i < LENGTH(t); i++)
        t[i] = start(ROUSE_KIND_USER, keep_errno, (void *)(i + 1));
    for (size_t i = 0; i < LENGTH(t); i++)
        join(t[i]);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(errno_belongs_to_the_thread),
        cmocka_unit_test(threads_give_their_results_to_the_joiner),
        cmocka_unit_test(exit_ends_the_thread_from_any_depth),
        cmocka_unit_test(self_is_the_handle_that_create_gave),
        cmocka_unit_test(no_two_threads_have_the_same_id),
        cmocka_unit_test(names_are_cut_and_cleaned_and_their_full_length_is_returned),
        cmocka_unit_test(unusable_arguments_are_refused),
        cmocka_unit_test(the_stack_is_as_large_as_asked),
        cmocka_unit_test(join_try_and_until_give_up_and_leave_the_thread),
        cmocka_unit_test(a_thread_cannot_join_itself),
        cmocka_unit_test(a_second_joiner_is_refused),
        cmocka_unit_test(of_two_joiners_at_once_one_gets_it),
        cmocka_unit_test(detached_threads_are_released_at_their_end),
        cmocka_unit_test(yielding_threads_take_turns),
        cmocka_unit_test(control_blocks_and_stacks_are_reused),
        cmocka_unit_test(blocks_go_between_workers_and_other_kernel_threads),
        cmocka_unit_test(ten_thousand_at_once),
        cmocka_unit_test(errno_is_left_unchanged),
    };
    static const struct program program = { 60, true, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
