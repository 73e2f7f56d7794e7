/* SPDX-License-Identifier: MIT */
/*
 * account_test.c - the counters and times recorded for programs whose waits are known by
 * construction. Counts must be exact. Times must lie within what the test measured around them.
 */
#include "unit/obs/ledger_read.h"
#include "obs/ledger.h"
#include "unit/obs/obs_test.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#define WAITERS 100u
#define HELD_NS (10 * MS)

static struct {
    struct rouse_mutex mutex;
    struct rouse_rwlock rwlock;
    struct rouse_sem sem, go;
    struct rouse_cond cond;
    uint32_t ready; /* waiters that have found what they were woken for */
    bool is_open;
} scene;

static double ns_of(uint64_t ticks, uint64_t tsc, uint64_t ns)
{
    return (double)ticks * (double)(rouse_now_ns() - ns) / (double)(rsi_tsc() - tsc);
}

static void all_wait(struct rouse_thread *const *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        UNTIL(waits(threads[i]));
}

static void start_all(struct rouse_thread **threads, enum rouse_kind kind, void *(*fn)(void *))
{
    for (unsigned i = 0; i < WAITERS; i++)
        threads[i] = start(kind, fn, NULL);
    all_wait(threads, WAITERS);
}

static void join_all(struct rouse_thread *const *threads)
{
    for (unsigned i = 0; i < WAITERS; i++)
        join(threads[i]);
}

static void *lock_and_unlock(void *unused)
{
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

/* Wait times are summed over all waiters: 100 threads that wait for 10 ms add up to one second. */
static void a_held_mutex_costs_each_waiter(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct rouse_thread *threads[WAITERS];
        memset(&scene, 0, sizeof scene);
        scene.mutex.name = "the held one";
        struct contests before = contests_of(&scene.mutex);
        uint64_t tsc = rsi_tsc(), ns = rouse_now_ns();
        rouse_mutex_lock(&scene.mutex);
        start_all(threads, (enum rouse_kind)kind, lock_and_unlock);
        uint64_t waiting_ns = rouse_now_ns();
        rouse_sleep(HELD_NS);
        uint64_t held_ns = rouse_now_ns() - waiting_ns;
        rouse_mutex_unlock(&scene.mutex);
        join_all(threads);
        uint64_t all_ns = rouse_now_ns() - ns;
        struct contests after = contests_of(&scene.mutex);
        CHECK_EQUAL(after.contested - before.contested, WAITERS);
        CHECK_EQUAL(after.acquired - before.acquired, WAITERS);
        CHECK_EQUAL(after.given_up - before.given_up, 0);
        double waited = ns_of(after.wait_ticks - before.wait_ticks, tsc, ns);
        CHECK(waited >= 0.99 * WAITERS * (double)held_ns);
        CHECK(waited <= 1.01 * WAITERS * (double)all_ns);
        CHECK(after.spin_ticks <= after.wait_ticks);
    }
}

static void *give_up(void *unused)
{
    CHECK_EQUAL(rouse_mutex_lock_until(&scene.mutex, rouse_now_ns() + MS), -ETIMEDOUT);
    CHECK_EQUAL(rouse_rwlock_read_lock_until(&scene.rwlock, rouse_now_ns() + MS), -ETIMEDOUT);
    CHECK_EQUAL(rouse_rwlock_write_lock_until(&scene.rwlock, rouse_now_ns() + MS), -ETIMEDOUT);
    return unused;
}

static void a_time_out_is_counted_as_one(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    struct contests mutex = contests_of(&scene.mutex), rwlock = contests_of(&scene.rwlock);
    rouse_mutex_lock(&scene.mutex);
    rouse_rwlock_write_lock(&scene.rwlock);
    join(start(ROUSE_KIND_USER, give_up, NULL));
    rouse_mutex_unlock(&scene.mutex);
    rouse_rwlock_write_unlock(&scene.rwlock);
    CHECK_EQUAL(contests_of(&scene.mutex).given_up - mutex.given_up, 1);
    CHECK_EQUAL(contests_of(&scene.mutex).acquired - mutex.acquired, 0);
    CHECK_EQUAL(contests_of(&scene.rwlock).given_up - rwlock.given_up, 2);
}

static void *take_units(void *count)
{
    for (uintptr_t i = 0; i < (uintptr_t)count; i++)
        (void)rouse_sem_wait(&scene.sem);
    return NULL;
}

static void *time_out(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait_until(&scene.sem, rouse_now_ns() + MS), -ETIMEDOUT);
    return unused;
}

/* Whether t is in a wait and has completed exactly that many waits before. */
static bool is_in_wait(struct rouse_thread *t, uint64_t ended)
{
    const struct rsi_store_thread *slot = rsi_load_acquire(&rsi_waiter(t)->record.slot);
    return waits(t) && slot && rsi_load_relaxed(&slot->doing) == RSI_DOES_WAIT &&
           rsi_load_relaxed(&slot->waits) == ended;
}

static void verdicts_of_a_semaphore_add_up(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        memset(&scene, 0, sizeof scene);
        struct wakes before = wakes_of(ROUSE_WAIT_SEM, &scene.sem);
        struct rouse_thread *t = start((enum rouse_kind)kind, take_units, (void *)(uintptr_t)8);
        for (unsigned i = 0; i < 7; i++) {
            UNTIL(is_in_wait(t, i));
            CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
        }
        UNTIL(is_in_wait(t, 7));
        CHECK_EQUAL(rouse_thread_cancel(t), 0);
        join(t);
        join(start((enum rouse_kind)kind, time_out, NULL));
        struct wakes after = wakes_of(ROUSE_WAIT_SEM, &scene.sem);
        CHECK_EQUAL(after.count[ROUSE_VERDICT_CANCELLED] - before.count[ROUSE_VERDICT_CANCELLED],
                    1);
        CHECK_EQUAL(after.count[ROUSE_VERDICT_TIMEOUT] - before.count[ROUSE_VERDICT_TIMEOUT], 1);
        CHECK_EQUAL(after.count[ROUSE_VERDICT_NONE], before.count[ROUSE_VERDICT_NONE]);
        CHECK_EQUAL(after.all - before.all,
                    after.count[ROUSE_VERDICT_USEFUL] - before.count[ROUSE_VERDICT_USEFUL] + 2);
    }
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
    scene.is_open = false; /* enough for one of them only */
    scene.ready++;
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

static unsigned ready_count(void)
{
    rouse_mutex_lock(&scene.mutex);
    unsigned ready = scene.ready;
    rouse_mutex_unlock(&scene.mutex);
    return ready;
}

/* A broadcast with enough for one waiter: all wake-ups except one were spurious. */
static void a_herd_is_counted_with_its_size_and_spurious_wake_ups(void **state)
{
    (void)state;
    struct rouse_thread *threads[WAITERS];
    memset(&scene, 0, sizeof scene);
    struct wakes before = wakes_of(ROUSE_WAIT_COND, &scene.cond);
    struct totals totals = totals_now();
    start_all(threads, ROUSE_KIND_USER, wait_for_open);
    UNTIL(rsi_load_relaxed(&scene.cond.waiting) == WAITERS); /* none waits for the mutex any more */
    for (unsigned i = 0; i < WAITERS; i++) {
        rouse_mutex_lock(&scene.mutex);
        scene.is_open = true;
        rouse_cond_broadcast(&scene.cond);
        rouse_mutex_unlock(&scene.mutex);
        UNTIL(ready_count() == i + 1 && rsi_load_relaxed(&scene.cond.waiting) == WAITERS - 1 - i);
    }
    join_all(threads);
    struct wakes after = wakes_of(ROUSE_WAIT_COND, &scene.cond);
    CHECK_EQUAL(after.count[ROUSE_VERDICT_USEFUL] - before.count[ROUSE_VERDICT_USEFUL], WAITERS);
    CHECK_EQUAL(after.count[ROUSE_VERDICT_FALSE] - before.count[ROUSE_VERDICT_FALSE],
                WAITERS * (WAITERS - 1) / 2);
    CHECK_EQUAL(totals_now().herds[6] - totals.herds[6], WAITERS - 63); /* 64 and more */
    CHECK_EQUAL(totals_now().herds[1] - totals.herds[1], 2);            /* 2 and 3 */
}

static void signals_to_nobody_are_counted(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    struct totals before = totals_now();
    for (int i = 0; i < 5; i++)
        rouse_cond_signal(&scene.cond);
    for (int i = 0; i < 3; i++)
        rouse_cond_broadcast(&scene.cond);
    struct totals after = totals_now();
    CHECK_EQUAL(after.signals_unheard - before.signals_unheard, 5);
    CHECK_EQUAL(after.broadcasts_unheard - before.broadcasts_unheard, 3);
}

static void *signal_once(void *unused)
{
    rouse_cond_signal(&scene.cond);
    return unused;
}

/*
 * A signal by a kernel thread that has made no other call is counted for that thread, and not for
 * all such threads together.
 */
static void a_signal_is_counted_for_a_thread_that_makes_no_other_call(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    struct totals before = totals_now();
    pthread_t threads[8];
    for (unsigned i = 0; i < LENGTH(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, signal_once, NULL) == 0);
    for (unsigned i = 0; i < LENGTH(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQUAL(totals_now().signals_unheard - before.signals_unheard, LENGTH(threads));
    CHECK(rsi_exec_none.writer == NULL);
}

static void compute(uint64_t ns)
{
    uint64_t end_ns = rouse_now_ns() + ns;
    while (rouse_now_ns() < end_ns)
        rsi_cpu_relax();
}

struct life {
    uint64_t begin_tsc, end_tsc;
    uint64_t ticks[RSI_IN_COUNT];
};

static void *live(void *value)
{
    struct life *life = value;
    struct rsi_store_thread *slot = rsi_waiter(rouse_thread_self())->record.slot;
    life->begin_tsc = slot->begin_tsc;
    for (int i = 0; i < 10; i++) {
        compute(2 * MS);
        rouse_sleep(3 * MS);
        CHECK_EQUAL(rouse_sem_wait_until(&scene.sem, rouse_now_ns() + MS), -ETIMEDOUT);
        rouse_thread_yield();
    }
    life->end_tsc = slot->run_tsc; /* later calls are counted after this snapshot */
    memcpy(life->ticks, slot->ticks, sizeof life->ticks);
    return NULL;
}

/*
 * Each state is measured. None is filled up with a remainder, so their sum must be the thread's
 * lifetime. The tests before had short turns, so that the default mode might still time only some: sampling_test.c.
 */
static void states_add_up_to_the_life(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_EXACT), 0);
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct life life = { 0 };
        memset(&scene, 0, sizeof scene);
        uint64_t tsc = rsi_tsc(), ns = rouse_now_ns(), sum = 0;
        join(start((enum rouse_kind)kind, live, &life));
        for (unsigned i = 0; i < RSI_IN_COUNT; i++)
            sum += life.ticks[i];
        double lived = (double)(life.end_tsc - life.begin_tsc);
        CHECK((double)sum >= 0.99 * lived && (double)sum <= 1.01 * lived);
        double usr_ns = ns_of(life.ticks[RSI_IN_USR], tsc, ns);
        double sleep_ns = ns_of(life.ticks[RSI_IN_SLEEP], tsc, ns);
        CHECK(usr_ns >= 0.99 * (double)(20 * MS));
        /*
         * The thread may lose its processor between its look at the clock and the beginning of the sleep.
         * It still runs then, and sleeps less.
         */
        CHECK(sleep_ns >= 0.5 * (double)(30 * MS));
        CHECK(usr_ns + sleep_ns >= 0.99 * (double)(50 * MS));
        CHECK(ns_of(life.ticks[RSI_IN_SEM], tsc, ns) >= 0.98 * (double)(10 * MS));
        CHECK_EQUAL(life.ticks[RSI_IN_MUTEX], 0);
    }
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
}

static void *take_turns(void *value)
{
    struct life *life = value;
    struct rsi_store_thread *slot = rsi_waiter(rouse_thread_self())->record.slot;
    life->begin_tsc = slot->begin_tsc;
    for (int i = 0; i < 5; i++) {
        compute(MS);
        rouse_thread_yield();
    }
    life->end_tsc = slot->run_tsc;
    memcpy(life->ticks, slot->ticks, sizeof life->ticks);
    return NULL;
}

/*
 * Ten threads on fewer workers. However slowly they started and whatever else used the processors,
 * no more of them ran at once than there were workers. They spent the rest of their lives in the
 * run queue.
 */
static void time_in_the_run_queue_is_reported(void **state)
{
    (void)state;
    struct life lives[10];
    struct rouse_thread *threads[LENGTH(lives)];
    struct rouse_monitor_figures monitor;
    double late = 0, lived = 0;
    uint64_t begin_tsc = UINT64_MAX, end_tsc = 0;
    for (unsigned i = 0; i < LENGTH(lives); i++)
        threads[i] = start(ROUSE_KIND_USER, take_turns, &lives[i]);
    for (unsigned i = 0; i < LENGTH(lives); i++)
        join(threads[i]);
    for (unsigned i = 0; i < LENGTH(lives); i++) {
        double life = (double)(lives[i].end_tsc - lives[i].begin_tsc);
        double sum = (double)(lives[i].ticks[RSI_IN_LAT] + lives[i].ticks[RSI_IN_USR]);
        CHECK(sum >= 0.99 * life && sum <= 1.01 * life);
        late += (double)lives[i].ticks[RSI_IN_LAT];
        lived += life;
        begin_tsc = lives[i].begin_tsc < begin_tsc ? lives[i].begin_tsc : begin_tsc;
        end_tsc = lives[i].end_tsc > end_tsc ? lives[i].end_tsc : end_tsc;
    }
    rouse_obs_monitor(&monitor);
    double workers = rouse_worker_count() + monitor.spares_most;
    CHECK(late > 0 && late >= 0.99 * (lived - workers * (double)(end_tsc - begin_tsc)));
}

static void *sleep_thrice(void *unused)
{
    for (int i = 0; i < 3; i++)
        rouse_sleep(1000);
    return unused;
}

static void the_counts_of_ended_threads_are_kept(void **state)
{
    (void)state;
    struct totals before = totals_now();
    for (int i = 0; i < 50; i++)
        join(start(i % 2 ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL, sleep_thrice, NULL));
    struct totals after = totals_now();
    CHECK_EQUAL(after.ended - before.ended, 50);
    CHECK_EQUAL(after.ended_waits - before.ended_waits, 150);
    CHECK(after.ended_ticks[RSI_IN_SLEEP] > before.ended_ticks[RSI_IN_SLEEP]);
    CHECK_EQUAL(after.late_timers - before.late_timers, 75); /* the waits of user threads */
}

#define NAMED 6u

static uint64_t thread_cpu_ns(void)
{
    struct timespec at;
    CHECK_EQUAL(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at), 0);
    return (uint64_t)at.tv_sec * 1000 * MS + (uint64_t)at.tv_nsec;
}

/* Run for 5 ms of CPU time, and sleep. Adds the CPU time by the thread's own clock to *cpu_ns. */
static void *run_and_sleep(void *cpu_ns)
{
    uint64_t begin = thread_cpu_ns();
    while (thread_cpu_ns() < begin + 5 * MS)
        ;
    rouse_sleep(MS);
    rsi_fetch_add_relaxed((uint64_t *)cpu_ns, thread_cpu_ns() - begin);
    return NULL;
}

static void ended_threads_are_in_the_group_of_their_name(void **state)
{
    (void)state;
    static const char *const names[] = { "first name", "another name" };
    struct rouse_thread *threads[2 * NAMED];
    uint64_t cpu_ns[2] = { 0 };
    for (unsigned i = 0; i < 2 * NAMED; i++) {
        struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
        attr.kind = i < NAMED ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
        attr.name = names[i % 2];
        CHECK_EQUAL(rouse_thread_create(&threads[i], &attr, run_and_sleep, &cpu_ns[i / NAMED]), 0);
    }
    for (unsigned i = 0; i < 2 * NAMED; i++)
        join(threads[i]);
    uint64_t group_ns = 0;
    for (unsigned i = 0; i < 2; i++) {
        struct groups groups = groups_of(names[i]);
        CHECK_EQUAL(groups.threads, NAMED);
        CHECK_EQUAL(groups.user_threads, NAMED / 2);
        CHECK_EQUAL(groups.waits, NAMED);
        CHECK(groups.ticks[RSI_IN_SLEEP] > 0);
        CHECK((double)groups.all_ticks >= 0.99 * (double)groups.wall_ticks);
        CHECK((double)groups.all_ticks <= 1.01 * (double)groups.wall_ticks);
        group_ns += groups.cpu_ns;
    }
    /* Of the kernel threads, from their creation to their end. */
    CHECK(group_ns >= cpu_ns[1] && group_ns <= cpu_ns[1] + NAMED * MS);
}

#define CONNECTIONS 20u

static void *accept_all(void *listener)
{
    struct pollfd ready = { .fd = (int)(intptr_t)listener, .events = POLLIN };
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        char byte = 1;
        CHECK_EQUAL(rouse_poll(&ready, 1, -1), 1);
        int fd = rouse_accept(ready.fd, NULL, NULL);
        CHECK(fd >= 0);
        CHECK_EQUAL(rouse_write(fd, &byte, 1), 1);
        CHECK_EQUAL(rouse_read(fd, &byte, 1), 0);
        CHECK_EQUAL(rouse_close(fd), 0);
    }
    return NULL;
}

/* Each call counts once, whether it had to wait or not. */
static void calls_are_counted_though_they_do_not_wait(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct sockaddr_in address = { .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t length = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(listener, (struct sockaddr *)&address, length) == 0);
        CHECK(listen(listener, 5) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
        struct totals before = totals_now();
        struct rouse_thread *t =
            start((enum rouse_kind)kind, accept_all, (void *)(intptr_t)listener);
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            char byte;
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
            CHECK(read(fd, &byte, 1) == 1);
            close(fd);
        }
        join(t);
        rouse_close(listener);
        struct totals after = totals_now();
        CHECK_EQUAL(after.calls[ROUSE_WAIT_ACCEPT] - before.calls[ROUSE_WAIT_ACCEPT], CONNECTIONS);
        CHECK_EQUAL(after.calls[ROUSE_WAIT_POLL] - before.calls[ROUSE_WAIT_POLL], CONNECTIONS);
        CHECK_EQUAL(after.calls[ROUSE_WAIT_READ] - before.calls[ROUSE_WAIT_READ], CONNECTIONS);
        CHECK_EQUAL(after.calls[ROUSE_WAIT_WRITE] - before.calls[ROUSE_WAIT_WRITE], CONNECTIONS);
        CHECK_EQUAL(after.ended_accepted - before.ended_accepted, CONNECTIONS);
    }
}

#define KEYS 256u

static unsigned places_of(uint64_t a_step, uint64_t b_step, uint64_t c_step)
{
    static bool is_taken[4 * KEYS];
    const uint64_t base = 0x7f3a5c000000;
    unsigned places = 0;
    memset(is_taken, 0, sizeof is_taken);
    for (unsigned i = 0; i < KEYS; i++) {
        uint32_t hash = rsi_hash(base + i * a_step, base + i * b_step, base + i * c_step);
        places += !is_taken[hash % LENGTH(is_taken)];
        is_taken[hash % LENGTH(is_taken)] = true;
    }
    return places;
}

/*
 * Random keys reach 226 of 256 places, and steps that suit the hash factor badly a sixth of that.
 * An earlier hash put all objects of one site in one place.
 */
static void keys_that_differ_in_one_word_hash_to_different_places(void **state)
{
    (void)state;
    for (uint64_t step = 8; step <= 4096; step += 8) {
        CHECK(places_of(step, 0, 0) >= 32);
        CHECK(places_of(0, step, 0) >= 32);
        CHECK(places_of(0, 0, step) >= 32);
    }
}

static void *poll_one(void *end)
{
    struct pollfd ready = { .fd = (int)(intptr_t)end, .events = POLLIN };
    CHECK_EQUAL(rouse_poll(&ready, 1, -1), 1);
    return NULL;
}

static void a_call_is_counted_when_it_returns(void **state)
{
    (void)state;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    struct totals before = totals_now();
    struct rouse_thread *t = start(ROUSE_KIND_USER, poll_one, (void *)(intptr_t)ends[0]);
    UNTIL(is_in_wait(t, 0));
    CHECK_EQUAL(totals_now().calls[ROUSE_WAIT_POLL] - before.calls[ROUSE_WAIT_POLL], 0);
    CHECK(write(ends[1], "x", 1) == 1);
    join(t);
    CHECK_EQUAL(totals_now().calls[ROUSE_WAIT_POLL] - before.calls[ROUSE_WAIT_POLL], 1);
    rouse_close(ends[0]);
    close(ends[1]);
}

static void *stay(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    return unused;
}

/* The naming thread may run before, after or while the named thread's slot appears. */
static void a_name_given_by_another_thread_is_in_the_record(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++)
        for (unsigned i = 0; i < (kind == ROUSE_KIND_USER ? rounds_of(2000) : 20); i++) {
            char name[ROUSE_NAME_BYTES];
            memset(&scene, 0, sizeof scene);
            struct rouse_thread *t = start((enum rouse_kind)kind, stay, NULL);
            snprintf(name, sizeof name, "named %u", i);
            for (unsigned spin = i % 64; spin; spin--)
                rsi_cpu_relax();
            rouse_thread_set_name(t, name);
            UNTIL(is_in_wait(t, 0));
            CHECK(strcmp(rsi_waiter(t)->record.slot->name, name) == 0);
            CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
            join(t);
        }
}

static const struct rsi_store_thread *own_entry(void)
{
    return rsi_waiter(rouse_thread_self())->record.slot;
}

static void *only_end(void *entry)
{
    *(const struct rsi_store_thread **)entry = own_entry();
    return NULL;
}

static void *yield_and_end(void *entry)
{
    rouse_thread_yield();
    return only_end(entry);
}

static void *wait_for_a_lock(void *entry)
{
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    return only_end(entry);
}

/* In its first turn: what it had to queue for is the only time so far. */
static void *see_that_all_is_zero(void *entry)
{
    const struct rsi_store_thread *own = own_entry();
    CHECK_EQUAL(own->kind, ROUSE_WAIT_NONE);
    CHECK_EQUAL(own->waits | own->useless | own->yields | own->accepted, 0);
    CHECK_EQUAL(own->object | own->wait_site | own->wake_tsc | own->wake_site | own->waker_id, 0);
    CHECK_EQUAL(own->verdict, ROUSE_VERDICT_NONE);
    CHECK_EQUAL(own->contest_tsc | own->contest_holder | (uint64_t)own->holder_tid, 0);
    CHECK_EQUAL(own->name[0], 0);
    for (unsigned i = 0; i < RSI_IN_COUNT; i++)
        CHECK(i == RSI_IN_LAT || own->ticks[i] == 0);
    CHECK(own->ticks[RSI_IN_LAT] <= rsi_tsc() - own->begin_tsc);
    return only_end(entry);
}

/* Threads that never waited leave less behind, and less is cleared then. */
static void an_entry_has_nothing_of_the_thread_that_had_it_before(void **state)
{
    static void *(*const before[])(void *) = { only_end, yield_and_end, wait_for_a_lock };
    (void)state;
    memset(&scene, 0, sizeof scene);
    for (unsigned i = 0; i < 2 * LENGTH(before); i++) {
        const struct rsi_store_thread *first, *second;
        do {
            struct rouse_thread *t;
            rouse_mutex_lock(&scene.mutex);
            t = start(ROUSE_KIND_USER, before[i / 2], (void *)&first);
            UNTIL(before[i / 2] != wait_for_a_lock || waits(t));
            if (i % 2)
                rouse_thread_set_name(t, "named");
            rouse_mutex_unlock(&scene.mutex);
            join(t);
            join(start(ROUSE_KIND_USER, see_that_all_is_zero, (void *)&second));
        } while (second != first); /* another worker has others */
    }
}

/* Of its three waits, the second is not recorded, and the third only in part. */
static void *judge_waits_that_were_not_recorded(void *unused)
{
    const struct rsi_store_thread *own = own_entry();
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    CHECK_EQUAL(own->verdict, ROUSE_VERDICT_USEFUL);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    CHECK_EQUAL(rouse_sem_wait_until(&scene.sem, rouse_now_ns() + MS), -ETIMEDOUT);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    rsi_park_verdict(rsi_self(), ROUSE_VERDICT_LOST_RACE);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    rsi_store_relaxed(&scene.is_open, true);
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    CHECK_EQUAL(rsi_load_relaxed(&rsi_obs_mode), ROUSE_OBS_COUNTED);
    rsi_park_verdict(rsi_self(), ROUSE_VERDICT_LOST_RACE);
    CHECK_EQUAL(own->waits, 1);
    CHECK_EQUAL(own->useless, 0);
    CHECK_EQUAL(own->verdict == ROUSE_VERDICT_LOST_RACE, false);
    return unused;
}

/* Recording is switched off and on while a thread waits. Its verdict then went to its wait before. */
static void a_wait_that_was_not_recorded_gives_its_verdict_to_no_other(void **state)
{
    (void)state;
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        memset(&scene, 0, sizeof scene);
        struct wakes before = wakes_of(ROUSE_WAIT_SEM, &scene.sem);
        struct rouse_thread *t =
            start((enum rouse_kind)kind, judge_waits_that_were_not_recorded, NULL);
        UNTIL(is_in_wait(t, 0));
        CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
        UNTIL(rsi_load_relaxed(&scene.is_open) && waits(t));
        CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
        CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
        join(t);
        struct wakes after = wakes_of(ROUSE_WAIT_SEM, &scene.sem);
        CHECK_EQUAL(after.count[ROUSE_VERDICT_USEFUL] - before.count[ROUSE_VERDICT_USEFUL], 1);
        CHECK_EQUAL(after.count[ROUSE_VERDICT_LOST_RACE], before.count[ROUSE_VERDICT_LOST_RACE]);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_held_mutex_costs_each_waiter),
        cmocka_unit_test(a_time_out_is_counted_as_one),
        cmocka_unit_test(verdicts_of_a_semaphore_add_up),
        cmocka_unit_test(a_herd_is_counted_with_its_size_and_spurious_wake_ups),
        cmocka_unit_test(signals_to_nobody_are_counted),
        cmocka_unit_test(a_signal_is_counted_for_a_thread_that_makes_no_other_call),
        cmocka_unit_test(states_add_up_to_the_life),
        cmocka_unit_test(time_in_the_run_queue_is_reported),
        cmocka_unit_test(the_counts_of_ended_threads_are_kept),
        cmocka_unit_test(ended_threads_are_in_the_group_of_their_name),
        cmocka_unit_test(calls_are_counted_though_they_do_not_wait),
        cmocka_unit_test(keys_that_differ_in_one_word_hash_to_different_places),
        cmocka_unit_test(a_call_is_counted_when_it_returns),
        cmocka_unit_test(a_name_given_by_another_thread_is_in_the_record),
        cmocka_unit_test(an_entry_has_nothing_of_the_thread_that_had_it_before),
        cmocka_unit_test(a_wait_that_was_not_recorded_gives_its_verdict_to_no_other),
    };
    const struct program program = {
        .limit_s = 120, .every_number = true, .tests = tests, .test_count = LENGTH(tests)
    };
    setenv("ROUSE_OBS", "counted", 1);
    return program_run(&program, argc, argv);
}
