/* SPDX-License-Identifier: MIT */
/*
 * hold_test.c - in the mode that records every acquisition, each one is counted with the time that
 * the lock was held. The test programs hold locks for a known time.
 */
#include "unit/obs/ledger_read.h"
#include "unit/obs/obs_test.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define THREADS 10u
#define TIMES 10u
#define HELD_NS MS

static struct {
    struct rouse_mutex mutex;
    struct rouse_rwlock rwlock;
    struct rouse_cond cond;
    bool is_open;
    uint64_t inside_tsc; /* as the holders measured it within their holds; atomic */
} scene;

static void reset(void)
{
    memset(&scene, 0, sizeof scene);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_LOCKS), 0);
}

static void hold_for(uint64_t ns)
{
    uint64_t tsc = rsi_tsc();
    if (ns)
        rouse_sleep(ns);
    rsi_fetch_add_relaxed(&scene.inside_tsc, rsi_tsc() - tsc);
}

/* Since begin, each lock has been held at most once at a time. */
static void check_holds(struct contests before, struct contests after, uint64_t count)
{
    CHECK_EQUAL(after.acquired - before.acquired, count);
    CHECK_EQUAL(after.holds - before.holds, count);
    CHECK(after.hold_ticks - before.hold_ticks >= rsi_load_relaxed(&scene.inside_tsc));
    CHECK(after.hold_most <= after.hold_ticks);
}

static void *lock_often(void *unused)
{
    for (unsigned i = 0; i < TIMES; i++) {
        rouse_mutex_lock(&scene.mutex);
        hold_for(HELD_NS);
        rouse_mutex_unlock(&scene.mutex);
    }
    return unused;
}

static void *write_often(void *unused)
{
    for (unsigned i = 0; i < TIMES; i++) {
        rouse_rwlock_write_lock(&scene.rwlock);
        hold_for(HELD_NS);
        rouse_rwlock_write_unlock(&scene.rwlock);
    }
    return unused;
}

static void *read_often(void *unused)
{
    for (unsigned i = 0; i < TIMES; i++) {
        rouse_rwlock_read_lock(&scene.rwlock);
        hold_for(HELD_NS);
        rouse_rwlock_read_unlock(&scene.rwlock);
    }
    return unused;
}

static void run_all(enum rouse_kind kind, void *(*fn)(void *))
{
    struct rouse_thread *threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        threads[i] = start(kind, fn, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        join(threads[i]);
}

/*
 * Threads compete for the lock, and one holds it at a time. The sum of the holds is therefore at
 * most the elapsed time.
 */
static void holds_of_one_at_a_time_add_up(void *(*fn)(void *), const void *lock)
{
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        reset();
        struct contests before = contests_of(lock);
        uint64_t tsc = rsi_tsc();
        run_all((enum rouse_kind)kind, fn);
        uint64_t passed = rsi_tsc() - tsc;
        struct contests after = contests_of(lock);
        check_holds(before, after, THREADS * TIMES);
        CHECK(after.hold_ticks - before.hold_ticks <= passed);
    }
}

static void holds_of_a_mutex_add_up(void **state)
{
    (void)state;
    holds_of_one_at_a_time_add_up(lock_often, &scene.mutex);
}

static void holds_of_writers_add_up(void **state)
{
    (void)state;
    holds_of_one_at_a_time_add_up(write_often, &scene.rwlock);
}

/* Readers hold the lock together. Each hold counts by itself. */
static void holds_of_readers_add_up(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        reset();
        struct contests before = contests_of(&scene.rwlock);
        uint64_t tsc = rsi_tsc();
        run_all((enum rouse_kind)kind, read_often);
        uint64_t passed = rsi_tsc() - tsc;
        struct contests after = contests_of(&scene.rwlock);
        check_holds(before, after, THREADS * TIMES);
        CHECK_EQUAL(after.contested, before.contested);
        CHECK(after.hold_ticks - before.hold_ticks <= THREADS * passed);
    }
}

static void every_call_that_acquires_is_counted(void **state)
{
    (void)state;
    reset();
    struct contests mutex = contests_of(&scene.mutex), rwlock = contests_of(&scene.rwlock);
    CHECK_EQUAL(rouse_mutex_lock_try(&scene.mutex), 0);
    CHECK_EQUAL(rouse_mutex_lock_try(&scene.mutex), -EBUSY);
    rouse_mutex_unlock(&scene.mutex);
    CHECK_EQUAL(rouse_mutex_lock_until(&scene.mutex, 0), 0);
    rouse_mutex_unlock(&scene.mutex);
    check_holds(mutex, contests_of(&scene.mutex), 2);
    CHECK_EQUAL(rouse_rwlock_read_lock_try(&scene.rwlock), 0);
    CHECK_EQUAL(rouse_rwlock_write_lock_try(&scene.rwlock), -EBUSY);
    rouse_rwlock_read_unlock(&scene.rwlock);
    CHECK_EQUAL(rouse_rwlock_write_lock_try(&scene.rwlock), 0);
    CHECK_EQUAL(rouse_rwlock_read_lock_try(&scene.rwlock), -EBUSY);
    rouse_rwlock_write_unlock(&scene.rwlock);
    CHECK_EQUAL(rouse_rwlock_read_lock_until(&scene.rwlock, 0), 0);
    rouse_rwlock_read_unlock(&scene.rwlock);
    CHECK_EQUAL(rouse_rwlock_write_lock_until(&scene.rwlock, 0), 0);
    rouse_rwlock_write_unlock(&scene.rwlock);
    check_holds(rwlock, contests_of(&scene.rwlock), 4);
    CHECK_EQUAL(rsi_load_relaxed(&scene.mutex.state), 0);
    CHECK_EQUAL(rsi_load_relaxed(&scene.rwlock.state), 0);
}

/* A recursive read lock is one hold, from the first lock to the last unlock. */
static void a_reader_that_reads_again_counts_once(void **state)
{
    (void)state;
    reset();
    struct contests before = contests_of(&scene.rwlock);
    rouse_rwlock_read_lock(&scene.rwlock);
    uint64_t tsc = rsi_tsc();
    rouse_rwlock_read_lock(&scene.rwlock);
    rouse_rwlock_read_unlock(&scene.rwlock);
    CHECK_EQUAL(contests_of(&scene.rwlock).holds, before.holds);
    hold_for(HELD_NS);
    uint64_t held = rsi_tsc() - tsc;
    rouse_rwlock_read_unlock(&scene.rwlock);
    struct contests after = contests_of(&scene.rwlock);
    check_holds(before, after, 1);
    CHECK(after.hold_ticks - before.hold_ticks >= held);
}

static bool is_closed(void *unused)
{
    (void)unused;
    return !scene.is_open;
}

static void *wait_for_open(void *unused)
{
    rouse_mutex_lock(&scene.mutex);
    CHECK_EQUAL(rouse_cond_wait_while(&scene.cond, &scene.mutex, is_closed, NULL), 0);
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

/* A hold ends where the condition wait begins, and a new one begins where the wait ends. */
static void a_hold_does_not_last_through_a_wait(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        reset();
        struct contests before = contests_of(&scene.mutex);
        uint64_t begin_tsc = rsi_tsc();
        struct rouse_thread *t = start((enum rouse_kind)kind, wait_for_open, NULL);
        UNTIL(contests_of(&scene.mutex).holds - before.holds == 1);
        uint64_t tsc = rsi_tsc();
        rouse_sleep(20 * MS);
        uint64_t slept = rsi_tsc() - tsc;
        rouse_mutex_lock(&scene.mutex);
        scene.is_open = true;
        rouse_mutex_unlock(&scene.mutex);
        rouse_cond_signal(&scene.cond);
        join(t);
        struct contests after = contests_of(&scene.mutex);
        check_holds(before, after, 3);
        /* no thread held it while this one slept */
        CHECK(after.hold_ticks - before.hold_ticks <= rsi_tsc() - begin_tsc - slept);
    }
}

/*
 * A hold that began before recording was on is not counted. Neither is one that began before
 * recording was switched off and on again.
 */
static void holds_during_which_recording_was_switched_are_left_out(void **state)
{
    (void)state;
    reset();
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct contests before = contests_of(&scene.mutex), rwlock = contests_of(&scene.rwlock);
    rouse_mutex_lock(&scene.mutex);
    rouse_rwlock_read_lock(&scene.rwlock);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_LOCKS), 0);
    rouse_mutex_unlock(&scene.mutex);
    rouse_rwlock_read_unlock(&scene.rwlock);
    check_holds(before, contests_of(&scene.mutex), 0);
    rouse_mutex_lock(&scene.mutex);
    rouse_rwlock_read_lock(&scene.rwlock);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_LOCKS), 0);
    rouse_mutex_unlock(&scene.mutex);
    rouse_rwlock_read_unlock(&scene.rwlock);
    CHECK_EQUAL(contests_of(&scene.mutex).acquired - before.acquired, 1);
    CHECK_EQUAL(contests_of(&scene.mutex).holds - before.holds, 0);
    rouse_rwlock_read_lock(&scene.rwlock);
    rouse_rwlock_read_unlock(&scene.rwlock);
    CHECK_EQUAL(contests_of(&scene.rwlock).acquired - rwlock.acquired, 2);
    CHECK_EQUAL(contests_of(&scene.rwlock).holds - rwlock.holds, 1);
    CHECK_EQUAL(rsi_load_relaxed(&scene.mutex.state), 0);
    CHECK_EQUAL(rsi_load_relaxed(&scene.rwlock.state), 0);
}

/* By default, acquisitions of a free lock are not counted. */
static void only_contested_acquisitions_are_counted_by_default(void **state)
{
    (void)state;
    reset();
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct contests before = contests_of(&scene.mutex);
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    check_holds(before, contests_of(&scene.mutex), 0);
}

/* The text that was kept as a lock's name. */
struct kept {
    const void *lock;
    uint32_t number, seen;
    char text[sizeof(struct rsi_store_name) - sizeof(uint64_t)];
};

static void kept_find(const void *entry, void *sum)
{
    const struct rsi_store_lock *lock = entry;
    struct kept *kept = sum;
    if (lock->lock == (uintptr_t)kept->lock)
        kept->number = lock->name;
}

static void kept_read(const void *entry, void *sum)
{
    const struct rsi_store_name *name = entry;
    struct kept *kept = sum;
    if (++kept->seen == kept->number)
        memcpy(kept->text, name->text, sizeof kept->text);
}

/* "" means no name */
static struct kept name_kept(struct rouse_mutex *mutex, const char *name)
{
    struct kept kept = { .lock = mutex };
    memset(mutex, 0, sizeof *mutex);
    mutex->name = name;
    rouse_mutex_lock(mutex);
    rouse_mutex_unlock(mutex);
    entries_visit(RSI_STORE_LOCKS, kept_find, &kept);
    entries_visit(RSI_STORE_NAMES, kept_read, &kept);
    return kept;
}

/* A name may end at the end of mapped memory, and may be unmapped by the time it is read. */
static void names_are_read_up_to_unreadable_memory(void **state)
{
    (void)state;
    static struct rouse_mutex whole, at_end, cut, gone;
    static char text[80];
    if (syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0) < 0) {
        printf("not run: process_vm_readv: %s\n", strerror(errno));
        return;
    }
    char *page =
        mmap(NULL, 2 * RSI_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    reset();
    CHECK(page != MAP_FAILED);
    memset(text, 'x', sizeof text - 1);
    memcpy(page + RSI_PAGE - 4, "end", 4);
    CHECK(mprotect(page + RSI_PAGE, RSI_PAGE, PROT_NONE) == 0);
    CHECK(strcmp(name_kept(&whole, "whole").text, "whole") == 0);
    CHECK_EQUAL(strlen(name_kept(&cut, text).text), sizeof(((struct kept *)0)->text) - 1);
    CHECK(strcmp(name_kept(&at_end, page + RSI_PAGE - 4).text, "end") == 0);
    CHECK_EQUAL(name_kept(&gone, page + RSI_PAGE).number, 0);
    CHECK(munmap(page, 2 * RSI_PAGE) == 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_of_a_mutex_add_up),
        cmocka_unit_test(holds_of_writers_add_up),
        cmocka_unit_test(holds_of_readers_add_up),
        cmocka_unit_test(every_call_that_acquires_is_counted),
        cmocka_unit_test(a_reader_that_reads_again_counts_once),
        cmocka_unit_test(a_hold_does_not_last_through_a_wait),
        cmocka_unit_test(holds_during_which_recording_was_switched_are_left_out),
        cmocka_unit_test(only_contested_acquisitions_are_counted_by_default),
        cmocka_unit_test(names_are_read_up_to_unreadable_memory),
    };
    const struct program program = {
        .limit_s = 120, .every_number = true, .tests = tests, .test_count = LENGTH(tests)
    };
    setenv("ROUSE_OBS", "locks", 1);
    return program_run(&program, argc, argv);
}
