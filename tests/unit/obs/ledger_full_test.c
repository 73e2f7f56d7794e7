/* SPDX-License-Identifier: MIT */
/*
 * ledger_full_test.c - a record without room. Each missing item is counted once, and repeated
 * requests for room cost nothing in the file. A record whose mapping is folded has no room for a
 * while.
 */
#include "ledger_read.h"
#include "obs_test.h"

#include "os/os.h"

#include <sys/mman.h>

#define THREADS 40u
#define WAITS 5u
#define MUCH 100u

static struct {
    struct rouse_sem sem;
    struct rouse_mutex mutex;
    uint32_t ran;
    int32_t asks; /* a thread's number; 0: it has ended */
} scene;

/* Use up all pages. Chunks that still have room can be filled. */
static void fill(void)
{
    rsi_store_relaxed(&rsi_file_head->page_count, RSI_STORE_BYTES_MAX / RSI_PAGE);
}

static struct rouse_totals totals_get(void)
{
    struct rouse_totals all;
    CHECK_EQUAL(rouse_obs_totals(&all), 0);
    return all;
}

static void lost_stacks_add(const void *entry, void *sum)
{
    const struct rsi_store_writer *writer = entry;
    *(uint64_t *)sum += rsi_load_relaxed(&writer->lost_stacks);
}

static uint64_t lost_stacks(void)
{
    uint64_t sum = 0;
    entries_visit(RSI_STORE_WRITERS, lost_stacks_add, &sum);
    return sum;
}

static void *take_units(void *unused)
{
    for (unsigned i = 0; i < WAITS; i++)
        CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    return unused;
}

static void start_all(struct rouse_thread **threads, void *(*fn)(void *))
{
    for (unsigned i = 0; i < THREADS; i++)
        threads[i] = start(ROUSE_KIND_USER, fn, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        UNTIL(waits(threads[i]));
}

/* main does not wait for them, since those waits would be counted. */
static void join_all(struct rouse_thread *const *threads)
{
    for (unsigned i = 0; i < THREADS; i++) {
        UNTIL(rsi_load_acquire(&threads[i]->join_word) == RSI_JOIN_ENDED); /* pairs with the end */
        join(threads[i]);
    }
}

/* Each of these is one wait: a woken thread queues behind the others. */
static void take_units_in_turn(void)
{
    struct rouse_thread *threads[THREADS];
    start_all(threads, take_units);
    for (unsigned round = 0; round < WAITS; round++) {
        for (unsigned i = 0; i < THREADS; i++)
            UNTIL(waits(threads[i]));
        for (unsigned i = 0; i < THREADS; i++)
            CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
    }
    join_all(threads);
}

static void *lock_and_unlock(void *unused)
{
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    return unused;
}

static void *wait_once(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&scene.sem), 0);
    return unused;
}

static void *run(void *unused)
{
    rsi_store_release(&scene.ran, 1u); /* pairs with main's acquire */
    return unused;
}

/* The worker has slots and no other records yet. */
static void give_slots(void)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, run, NULL);
    UNTIL(rsi_load_acquire(&scene.ran) != 0); /* pairs with run's release */
    CHECK_EQUAL(rouse_thread_detach(t), 0);
    UNTIL(groups_of("").threads == 1); /* it has ended: there is a chunk of groups too */
}

struct counts {
    uint64_t pages, chunks, lost;
};

static struct counts file_counts(void)
{
    return (struct counts){ rsi_load_relaxed(&rsi_file_head->page_count),
                            rsi_load_relaxed(&rsi_file_head->chunk_count),
                            rsi_load_relaxed(&rsi_file_head->lost_chunks) };
}

static void nothing_more_is_asked_for(const struct counts *before)
{
    struct counts after = file_counts();
    CHECK_EQUAL(after.pages, before->pages);
    CHECK_EQUAL(after.chunks, before->chunks);
    CHECK_EQUAL(after.lost, before->lost);
}

/* --- separate programs */

static void have_no_slots(void)
{
    CHECK(rouse_thread_self() != NULL);                                   /* main has a slot */
    rsi_store_relaxed(&rsi_file_head->chunk_count, RSI_STORE_CHUNKS_MAX); /* no word is left */
    struct counts full = { 0 };
    for (unsigned round = 1; round <= 3; round++) {
        take_units_in_turn();
        struct rouse_totals all = totals_get();
        CHECK_EQUAL(all.lost_threads, round * THREADS);
        CHECK_EQUAL(all.lost_wakes, round * THREADS * WAITS);
        CHECK(all.switches >= round * THREADS * (WAITS + 1));
        if (round > 1)
            nothing_more_is_asked_for(&full);
        full = file_counts();
        CHECK_EQUAL(full.lost, 1); /* chunks of slots */
    }
}

static void have_no_entries(void)
{
    CHECK(rouse_thread_self() != NULL); /* main has a slot */
    give_slots();
    fill();
    struct counts full = { 0 };
    for (unsigned round = 1; round <= 2; round++) {
        struct rouse_thread *threads[THREADS];
        take_units_in_turn();
        struct rouse_totals all = totals_get();
        uint64_t locks = (round - 1) * (uint64_t)THREADS;
        CHECK_EQUAL(all.lost_threads, 0);
        CHECK_EQUAL(all.lost_wakes, round * THREADS * WAITS + locks);
        CHECK_EQUAL(all.wakes[ROUSE_WAIT_SEM][ROUSE_VERDICT_USEFUL], 0);
        rouse_mutex_lock(&scene.mutex);
        start_all(threads, lock_and_unlock);
        rouse_mutex_unlock(&scene.mutex);
        join_all(threads);
        all = totals_get();
        CHECK_EQUAL(all.lost_locks, locks + THREADS);
        CHECK_EQUAL(all.lock_contested[ROUSE_WAIT_MUTEX], 0);
        if (round > 1)
            nothing_more_is_asked_for(&full);
        full = file_counts();
        CHECK_EQUAL(full.lost, 2); /* chunks of wake-ups and of locks */
    }
}

/* With ROUSE_OBS_MIB=1. */
static void have_little(void)
{
    CHECK(rouse_thread_self() != NULL);
    while (rsi_file_chunk(RSI_STORE_WAKES, sizeof(struct rsi_store_wake), 1, 0))
        ;
    CHECK_EQUAL(rsi_load_relaxed(&rsi_file_head->page_count), (1u << 20) / RSI_PAGE);
    CHECK_EQUAL(file_counts().lost, 1);
}

static bool is_there(uint64_t page)
{
    return msync((char *)rsi_file_head + page * RSI_PAGE, RSI_PAGE, MS_ASYNC) == 0;
}

static bool has_room(enum rsi_store_kind kind, unsigned pages)
{
    struct rsi_store_chunk *chunk =
        rsi_file_chunk(kind, sizeof(struct rsi_store_name), pages, UINT32_MAX);
    if (chunk)
        memset((char *)chunk + RSI_STORE_CHUNK_HEAD, 0, pages * RSI_PAGE - RSI_STORE_CHUNK_HEAD);
    return chunk != NULL;
}

/* More than the room left while the mapping is folded. */
static void *ask_for_much(void *unused)
{
    rsi_store_relaxed(&scene.asks, (int32_t)rsi_gettid());
    CHECK(has_room(RSI_STORE_NAMES, MUCH));
    rsi_store_relaxed(&scene.asks, 0);
    return unused;
}

static bool sleeps_or_has_ended(const int32_t *tid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", rsi_load_relaxed(tid));
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[got] = 0;
    return rsi_load_relaxed(tid) == 0 || strstr(text, ") S ");
}

/* With ROUSE_OBS_MIB=2. */
static void fold(void)
{
    const uint64_t all = (2u << 20) / RSI_PAGE;
    pthread_t asks;
    CHECK(rouse_thread_self() != NULL);
    scene.asks = -1;
    CHECK(is_there(all - 1));
    CHECK(rsi_file_fold());
    uint64_t used = rsi_load_relaxed(&rsi_file_head->page_count);
    CHECK(is_there(used - 1) && !is_there(used + MUCH - 1) && !is_there(all - 1));
    CHECK(has_room(RSI_STORE_NAMES, 1));
    CHECK_EQUAL(pthread_create(&asks, NULL, ask_for_much, NULL), 0);
    UNTIL(sleeps_or_has_ended(&scene.asks));
    rsi_file_unfold();
    CHECK_EQUAL(pthread_join(asks, NULL), 0);
    CHECK(is_there(all - 1));
    CHECK_EQUAL(file_counts().lost, 0);
}

/* The same with another mapping in the way when the record grows again. */
static void fold_with_another_in_the_way(void)
{
    const uint64_t all = (2u << 20) / RSI_PAGE;
    CHECK(rouse_thread_self() != NULL);
    CHECK(rsi_file_fold());
    char *place = (char *)rsi_file_head + (all - MUCH) * RSI_PAGE;
    char *other = mmap(place, RSI_PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(other == place);
    *other = 1;
    rsi_file_unfold();
    CHECK(is_there(all - MUCH - 1) && !is_there(all - 1));
    while (has_room(RSI_STORE_NAMES, 1))
        ;
    CHECK_EQUAL(rsi_load_relaxed(&rsi_file_head->page_count), all - MUCH);
    CHECK_EQUAL(*other, 1);
    CHECK_EQUAL(munmap(other, RSI_PAGE), 0);
    CHECK(rsi_file_fold());
    CHECK(is_there(all - MUCH - 1));
    rsi_file_unfold();
    CHECK(is_there(all - 1) && has_room(RSI_STORE_MODULES, MUCH));
    CHECK(!has_room(RSI_STORE_STACKS, 1));
}

static void have_no_record(void)
{
    CHECK(rouse_thread_self() != NULL);
    CHECK(rsi_load_relaxed(&rsi_file_head) == NULL);
}

/* Each wait has two sites. */
static void have_no_stacks(void)
{
    CHECK(rouse_thread_self() != NULL); /* main has a slot */
    give_slots();
    CHECK_EQUAL(lost_stacks(), 0);
    fill();
    for (unsigned round = 1; round <= 2; round++) {
        take_units_in_turn();
        CHECK_EQUAL(lost_stacks(), (SITES_ARE_KEPT ? 2 : 0) * round * THREADS * WAITS);
    }
}

/* Threads end without a chunk of groups. */
static void have_no_groups(void)
{
    struct rouse_thread *threads[THREADS];
    CHECK(rouse_thread_self() != NULL); /* main has a slot */
    start_all(threads, take_units);
    fill();
    for (unsigned i = 0; i < THREADS * WAITS; i++)
        CHECK_EQUAL(rouse_sem_post(&scene.sem), 0);
    join_all(threads);
    struct totals totals = totals_now();
    CHECK_EQUAL(totals.ended, THREADS);
    CHECK_EQUAL(totals.groupless, THREADS);
    CHECK(totals.ended_waits >= THREADS);
    CHECK(totals.ended_ticks[RSI_IN_SEM] > 0);
    CHECK_EQUAL(groups_of("").groups, 0);
}

/* More threads than there are groups, each with a name of its own. */
static void have_many_names(void)
{
    const uint64_t threads = RSI_STORE_GROUPS_MAX + 100;
    CHECK(rouse_thread_self() != NULL);
    for (unsigned i = 0; i < threads; i++) {
        char name[ROUSE_NAME_BYTES];
        struct rouse_thread *t = start(ROUSE_KIND_USER, wait_once, NULL);
        UNTIL(waits(t));
        snprintf(name, sizeof name, "thread %u", i);
        rouse_thread_set_name(t, name);
        rouse_sem_post(&scene.sem);
        join(t);
        CHECK_EQUAL(groups_of(name).threads, i < RSI_STORE_GROUPS_MAX);
    }
    struct groups rest = groups_of(NULL);
    CHECK_EQUAL(rest.groups, 1);
    CHECK_EQUAL(rest.threads, 100);
    CHECK_EQUAL(totals_now().ended, threads);
    CHECK_EQUAL(totals_now().groupless, 0);
    CHECK_EQUAL(totals_now().ended_waits, threads);
}

/* --- the tests */

static void threads_without_a_slot_are_counted_once(void **state)
{
    (void)state;
    scenario_exits("have_no_slots", NULL, 0);
}

static void wakeups_and_contests_without_an_entry_are_counted(void **state)
{
    (void)state;
    scenario_exits("have_no_entries", NULL, 0);
}

static void stacks_that_are_not_kept_are_counted(void **state)
{
    (void)state;
    scenario_exits("have_no_stacks", "ROUSE_OBS_DEPTH=8", 0);
}

static void ended_threads_without_a_group_are_counted(void **state)
{
    (void)state;
    scenario_exits("have_no_groups", NULL, 0);
}

static void names_beyond_the_limit_share_a_group(void **state)
{
    (void)state;
    scenario_exits("have_many_names", NULL, 0);
}

static void a_file_stays_within_its_limit(void **state)
{
    (void)state;
    scenario_exits("have_little", "ROUSE_OBS_MIB=1", 0);
    for (unsigned i = 0; i < 4; i++) {
        static const char *const wrong[] = { "ROUSE_OBS_MIB=0", "ROUSE_OBS_MIB=257",
                                             "ROUSE_OBS_MIB=1x",
                                             "ROUSE_OBS_MIB=99999999999999999999" };
        scenario_exits("have_no_record", wrong[i], 0);
    }
}

static void a_folded_mapping_comes_back(void **state)
{
    (void)state;
    scenario_exits("fold", "ROUSE_OBS_MIB=2", 0);
    scenario_exits("fold_with_another_in_the_way", "ROUSE_OBS_MIB=2", 0);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "have_little", have_little },
        { "have_no_record", have_no_record },
        { "have_no_slots", have_no_slots },
        { "have_no_entries", have_no_entries },
        { "have_no_stacks", have_no_stacks },
        { "have_no_groups", have_no_groups },
        { "have_many_names", have_many_names },
        { "fold", fold },
        { "fold_with_another_in_the_way", fold_with_another_in_the_way },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_stays_within_its_limit),
        cmocka_unit_test(threads_without_a_slot_are_counted_once),
        cmocka_unit_test(wakeups_and_contests_without_an_entry_are_counted),
        cmocka_unit_test(stacks_that_are_not_kept_are_counted),
        cmocka_unit_test(ended_threads_without_a_group_are_counted),
        cmocka_unit_test(names_beyond_the_limit_share_a_group),
        cmocka_unit_test(a_folded_mapping_comes_back),
    };
    const struct program program = { .limit_s = 60,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    setenv("ROUSE_OBS", "counted", 1);
    setenv("ROUSE_WORKERS", "1", 1);
    return program_run(&program, argc, argv);
}
