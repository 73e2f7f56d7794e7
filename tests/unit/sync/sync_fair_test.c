/* SPDX-License-Identifier: MIT */
/*
 * sync_fair_test.c - calls that need not wait let other threads run all the same: on one worker, a
 * loop of such calls must not keep out the thread that would end it.
 */
#include "sync_test.h"

struct objects {
    struct rouse_mutex m;
    struct rouse_rwlock l;
    struct rouse_sem s;
    struct rouse_barrier b;
    struct rouse_once o;
    unsigned which;
    uint32_t is_begun, is_over, failures;
};

/* Let the other one fail once more. */
static void wait_for_failure(struct objects *x)
{
    rsi_store_relaxed(&x->is_begun, 1u);
    uint32_t seen = rsi_load_relaxed(&x->failures);
    UNTIL(rsi_load_relaxed(&x->failures) != seen);
}

static void count_failure(struct objects *x)
{
    rsi_fetch_add_relaxed(&x->failures, 1u);
}

static void work_on(void *arg)
{
    wait_for_failure(arg);
}

static void hold_all(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    rouse_mutex_lock(&x->m);
    rouse_rwlock_write_lock(&x->l);
    wait_for_failure(x);
    rouse_rwlock_write_unlock(&x->l);
    wait_for_failure(x);
    rouse_mutex_unlock(&x->m);
    wait_for_failure(x);
    CHECK(rouse_sem_post(&x->s) == 0);
    wait_for_failure(x);
    CHECK(rouse_barrier_wait(&x->b) >= 0);
}

static void try_all(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    while (rouse_rwlock_read_lock_try(&x->l) < 0)
        count_failure(x);
    rouse_rwlock_read_unlock(&x->l);
    while (rouse_mutex_lock_try(&x->m) < 0)
        count_failure(x);
    rouse_mutex_unlock(&x->m);
    while (rouse_sem_wait_try(&x->s) < 0)
        count_failure(x);
    while (rouse_barrier_wait_try(&x->b) < 0)
        count_failure(x);
}

static void try_with_past_deadlines(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    while (rouse_rwlock_write_lock_try(&x->l) < 0)
        count_failure(x);
    rouse_rwlock_write_unlock(&x->l);
    while (rouse_mutex_lock_until(&x->m, 0) < 0)
        count_failure(x);
    rouse_mutex_unlock(&x->m);
    while (rouse_sem_wait_until(&x->s, 0) < 0)
        count_failure(x);
    while (rouse_barrier_wait_until(&x->b, 0) < 0)
        count_failure(x);
}

static void call_once(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    rouse_once_call(&x->o, work_on, x);
}

static void try_once(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    while (rouse_once_call_try(&x->o, work_on, x) < 0)
        count_failure(x);
}

static void *return_soon(void *arg)
{
    rouse_thread_yield();
    return arg;
}

static void try_to_join(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    struct rouse_thread *t;
    rsi_store_relaxed(&x->is_begun, 1u);
    CHECK(rouse_thread_create(&t, NULL, return_soon, NULL) == 0);
    while (rouse_thread_join_try(t, NULL) < 0)
        continue;
}

static void do_nothing(void *arg, unsigned index)
{
    (void)arg;
    (void)index;
}

static void loops_of_tries_end(void **state)
{
    (void)state;
    static struct crew crew;
    static const struct {
        void (*first)(void *, unsigned), (*second)(void *, unsigned);
    } pairs[] = {
        { hold_all, try_all },
        { hold_all, try_with_past_deadlines },
        { call_once, try_once },
        { try_to_join, do_nothing },
    };
    for (size_t i = 0; i < LENGTH(pairs); i++) {
        struct objects x = { .b = ROUSE_BARRIER_INIT(2) };
        (void)crew_add(&crew, CREW_USER, pairs[i].first, &x);
        UNTIL(rsi_load_relaxed(&x.is_begun));
        (void)crew_add(&crew, CREW_USER, pairs[i].second, &x);
        crew_join(&crew);
    }
}

static void take_and_release_for_ever(void *arg, unsigned index)
{
    (void)index;
    struct objects *x = arg;
    struct rouse_barrier alone = ROUSE_BARRIER_INIT(1);
    struct rouse_mutex m = ROUSE_MUTEX_INIT;
    struct rouse_rwlock l = ROUSE_RWLOCK_INIT;
    struct rouse_sem s = ROUSE_SEM_INIT(1);
    rsi_store_relaxed(&x->is_begun, 1u);
    while (!rsi_load_relaxed(&x->is_over)) {
        switch (x->which) {
        case 0:
            rouse_mutex_lock(&m);
            rouse_mutex_unlock(&m);
            break;
        case 1:
            rouse_rwlock_read_lock(&l);
            rouse_rwlock_read_unlock(&l);
            break;
        case 2:
            rouse_rwlock_write_lock(&l);
            rouse_rwlock_write_unlock(&l);
            break;
        case 3:
            CHECK(rouse_sem_wait(&s) == 0);
            CHECK(rouse_sem_post(&s) == 0);
            break;
        default: CHECK(rouse_barrier_wait(&alone) == 1);
        }
    }
}

static void end_it(void *arg, unsigned index)
{
    (void)index;
    rsi_store_relaxed(&((struct objects *)arg)->is_over, 1u);
}

static void loops_of_successes_let_others_run(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 5; i++) {
        struct objects x = { .is_over = 0 };
        x.which = i;
        (void)crew_add(&crew, CREW_USER, take_and_release_for_ever, &x);
        UNTIL(rsi_load_relaxed(&x.is_begun));
        (void)crew_add(&crew, CREW_USER, end_it, &x);
        crew_join(&crew);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_of_tries_end),
        cmocka_unit_test(loops_of_successes_let_others_run),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
