/* SPDX-License-Identifier: MIT */
/*
 * sync_races_test.c - a wake-up meets a waiter that was cancelled a moment ago and has not yet left
 * the list. The wake-up must not be lost: it goes to the next waiter. One worker makes the order
 * known: the cancelled thread cannot run before the test lets it.
 */
#include "sync_test.h"

struct scene {
    struct rouse_mutex m;
    struct rouse_cond c;
    struct rouse_rwlock l;
    struct rouse_sem s;
    struct rouse_barrier b;
    struct crew crew;
    void (*wait)(struct scene *, unsigned index);
    int results[2];
};

static void wait_in_scene(void *arg, unsigned index)
{
    struct scene *scene = arg;
    scene->wait(scene, index);
}

static struct rouse_thread *add_waiter(struct scene *scene, void (*wait)(struct scene *, unsigned),
                                       uint32_t *guard, struct rouse_waiters *waiters)
{
    scene->wait = wait;
    struct rouse_thread *t = crew_add(&scene->crew, CREW_USER, wait_in_scene, scene);
    unsigned count = scene->crew.count;
    UNTIL(waiter_count(guard, waiters) == count);
    return t;
}
#define ADD_WAITER(scene, wait, object) \
    add_waiter(scene, wait, &(object)->guard, &(object)->waiters)

static void end_scene(struct scene *scene, int first, int second)
{
    crew_join(&scene->crew);
    CHECK(scene->results[0] == first);
    CHECK(scene->results[1] == second);
}

static void wait_cond(struct scene *scene, unsigned index)
{
    rouse_mutex_lock(&scene->m);
    scene->results[index] = rouse_cond_wait(&scene->c, &scene->m);
    rouse_mutex_unlock(&scene->m);
}

static void play_cond(struct scene *scene)
{
    struct rouse_thread *first = ADD_WAITER(scene, wait_cond, &scene->c);
    (void)ADD_WAITER(scene, wait_cond, &scene->c);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_cond_signal(&scene->c);
    end_scene(scene, -ECANCELED, 0);
}

static void wait_sem(struct scene *scene, unsigned index)
{
    scene->results[index] = rouse_sem_wait(&scene->s);
}

static void play_sem(struct scene *scene)
{
    struct rouse_thread *first = ADD_WAITER(scene, wait_sem, &scene->s);
    (void)ADD_WAITER(scene, wait_sem, &scene->s);
    CHECK(rouse_thread_cancel(first) == 0);
    CHECK(rouse_sem_post(&scene->s) == 0);
    CHECK(rouse_sem_value(&scene->s) == 0);
    end_scene(scene, -ECANCELED, 0);
}

static void play_sem_alone(struct scene *scene)
{
    struct rouse_thread *first = ADD_WAITER(scene, wait_sem, &scene->s);
    CHECK(rouse_thread_cancel(first) == 0);
    CHECK(rouse_sem_post(&scene->s) == 0);
    CHECK(rouse_sem_value(&scene->s) == 1);
    end_scene(scene, -ECANCELED, 0);
}

static void wait_mutex(struct scene *scene, unsigned index)
{
    scene->results[index] = rouse_mutex_lock_until(&scene->m, ROUSE_FOREVER);
    if (scene->results[index] == 0)
        rouse_mutex_unlock(&scene->m);
}

static void play_mutex(struct scene *scene)
{
    rouse_mutex_lock(&scene->m);
    struct rouse_thread *first = ADD_WAITER(scene, wait_mutex, &scene->m);
    (void)ADD_WAITER(scene, wait_mutex, &scene->m);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_mutex_unlock(&scene->m);
    end_scene(scene, -ECANCELED, 0);
}

static void play_mutex_alone(struct scene *scene)
{
    rouse_mutex_lock(&scene->m);
    struct rouse_thread *first = ADD_WAITER(scene, wait_mutex, &scene->m);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_mutex_unlock(&scene->m);
    CHECK(rouse_mutex_lock_try(&scene->m) == 0);
    rouse_mutex_unlock(&scene->m);
    end_scene(scene, -ECANCELED, 0);
}

static void wait_read(struct scene *scene, unsigned index)
{
    scene->results[index] = rouse_rwlock_read_lock_until(&scene->l, ROUSE_FOREVER);
    if (scene->results[index] == 0)
        rouse_rwlock_read_unlock(&scene->l);
}

static void wait_write(struct scene *scene, unsigned index)
{
    scene->results[index] = rouse_rwlock_write_lock_until(&scene->l, ROUSE_FOREVER);
    if (scene->results[index] == 0)
        rouse_rwlock_write_unlock(&scene->l);
}

/* The writer that leaves finds only the reader behind it. */
static void play_writer_before_reader(struct scene *scene)
{
    rouse_rwlock_read_lock(&scene->l);
    struct rouse_thread *first = ADD_WAITER(scene, wait_write, &scene->l);
    (void)ADD_WAITER(scene, wait_read, &scene->l);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_rwlock_read_unlock(&scene->l);
    end_scene(scene, -ECANCELED, 0);
}

static void play_reader_before_writer(struct scene *scene)
{
    rouse_rwlock_write_lock(&scene->l);
    struct rouse_thread *first = ADD_WAITER(scene, wait_read, &scene->l);
    (void)ADD_WAITER(scene, wait_write, &scene->l);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_rwlock_write_unlock(&scene->l);
    end_scene(scene, -ECANCELED, 0);
}

static void play_writers(struct scene *scene)
{
    rouse_rwlock_write_lock(&scene->l);
    struct rouse_thread *first = ADD_WAITER(scene, wait_write, &scene->l);
    (void)ADD_WAITER(scene, wait_write, &scene->l);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_rwlock_write_unlock(&scene->l);
    end_scene(scene, -ECANCELED, 0);
}

static void play_writer_alone(struct scene *scene)
{
    rouse_rwlock_read_lock(&scene->l);
    struct rouse_thread *first = ADD_WAITER(scene, wait_write, &scene->l);
    CHECK(rouse_thread_cancel(first) == 0);
    rouse_rwlock_read_unlock(&scene->l);
    CHECK(rouse_rwlock_write_lock_try(&scene->l) == 0);
    rouse_rwlock_write_unlock(&scene->l);
    end_scene(scene, -ECANCELED, 0);
}

static void wait_barrier(struct scene *scene, unsigned index)
{
    scene->results[index] = rouse_barrier_wait_until(&scene->b, ROUSE_FOREVER);
    CHECK(rouse_thread_cancel_pending() == (index == 0));
}

/*
 * The last thread to arrive counted the first: it has passed, and the cancel is for its next call.
 */
static void play_barrier(struct scene *scene)
{
    struct rouse_thread *first = ADD_WAITER(scene, wait_barrier, &scene->b);
    (void)ADD_WAITER(scene, wait_barrier, &scene->b);
    CHECK(rouse_thread_cancel(first) == 0);
    CHECK(rouse_barrier_wait(&scene->b) == 1);
    rouse_barrier_destroy(&scene->b);
    end_scene(scene, 0, 0);
}

/* The first thread goes to sleep again before the second one, and was woken before it. */
static void play_mutex_order(struct scene *scene)
{
    rouse_mutex_lock(&scene->m);
    struct rouse_thread *first = ADD_WAITER(scene, wait_mutex, &scene->m);
    (void)ADD_WAITER(scene, wait_mutex, &scene->m);
    rouse_mutex_unlock(&scene->m); /* wakes the first */
    rouse_mutex_lock(&scene->m);   /* overtakes it */
    UNTIL(WAITING(&scene->m) == 2);
    CHECK(scene->m.waiters.first == first);
    rouse_mutex_unlock(&scene->m);
    end_scene(scene, 0, 0);
}

/* One woken thread is enough, however often the mutex becomes free before it runs. */
static void play_mutex_wakes_one(struct scene *scene)
{
    rouse_mutex_lock(&scene->m);
    (void)ADD_WAITER(scene, wait_mutex, &scene->m);
    (void)ADD_WAITER(scene, wait_mutex, &scene->m);
    for (unsigned i = 0; i < 5; i++) {
        rouse_mutex_unlock(&scene->m);
        CHECK(WAITING(&scene->m) == 1);
        CHECK(rouse_mutex_lock_try(&scene->m) == 0);
    }
    rouse_mutex_unlock(&scene->m);
    end_scene(scene, 0, 0);
}

/*
 * A sleeper that had waited long was to be handed the mutex and gives up. Nothing of the hand-over
 * may remain.
 */
static void play_mutex_handover_given_up(struct scene *scene)
{
    rouse_mutex_lock(&scene->m);
    struct rouse_thread *first = ADD_WAITER(scene, wait_mutex, &scene->m);
    uint64_t end_ns = rouse_now_ns() + 2 * MS;
    while (rouse_now_ns() < end_ns)
        rsi_cpu_relax();
    rouse_mutex_unlock(&scene->m);
    rouse_mutex_lock(&scene->m);
    UNTIL(WAITING(&scene->m) == 1);
    CHECK(scene->m.state == (RSI_LOCK_HELD | 10)); /* long enough to be handed over: mutex.c */
    CHECK(rouse_thread_cancel(first) == 0);
    UNTIL(WAITING(&scene->m) == 0);
    CHECK(scene->m.state == RSI_LOCK_HELD);
    rouse_mutex_unlock(&scene->m);
    rouse_mutex_destroy(&scene->m);
    end_scene(scene, -ECANCELED, 0);
}

static void (*const plays[])(struct scene *) = {
    play_cond,
    play_sem,
    play_sem_alone,
    play_mutex,
    play_mutex_alone,
    play_writer_before_reader,
    play_reader_before_writer,
    play_writers,
    play_writer_alone,
    play_barrier,
    play_mutex_order,
    play_mutex_wakes_one,
    play_mutex_handover_given_up,
};

static void play_all(void *arg, unsigned index)
{
    (void)arg;
    (void)index;
    for (size_t i = 0; i < LENGTH(plays); i++) {
        struct scene *scene = calloc(1, sizeof *scene);
        CHECK(scene);
        rouse_barrier_init(&scene->b, 3, NULL);
        plays[i](scene);
        free(scene);
    }
}

static void wakeup_goes_on_to_the_next(void **state)
{
    (void)state;
    assert_int_equal(rouse_worker_count(), 1);
    crew_run(CREW_USER, 1, play_all, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(wakeup_goes_on_to_the_next) };
    setenv("ROUSE_WORKERS", "1", 1);
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
