/* SPDX-License-Identifier: MIT */
/* trace_test.c - the events of programs with a known number of switches and wake-ups. */
#include "ledger_read.h"
#include "obs_test.h"

#include "obs/trace.h"

#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 1000u
#define KINDS RSI_EVENT_COUNT

struct events {
    uint64_t id; /* of the thread that made them */
    uint64_t count[KINDS], verdicts[ROUSE_VERDICTS];
    uint64_t written;
    bool is_disordered;
};

static void add(struct events *events, const struct rsi_store_event *event)
{
    unsigned type = event->what & 0xff;
    CHECK(type > RSI_EVENT_NONE && type < KINDS);
    if (event->what >> 24 != (events->id & ((UINT64_C(1) << 40) - 1)))
        return;
    events->count[type]++;
    if (type == RSI_EVENT_WAKE)
        events->verdicts[event->what >> 16 & 0xff]++;
}

/* A thread's events in the rings. No other thread runs meanwhile. */
static struct events events_of(uint64_t id)
{
    struct events events = { .id = id };
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head);
    const uint32_t *directory = (const void *)((const char *)head + RSI_STORE_DIRECTORY);
    for (uint32_t i = 0; head && i < rsi_load_relaxed(&head->chunk_count); i++) {
        uint32_t page = rsi_load_acquire(&directory[i]); /* pairs with rsi_file_chunk */
        struct rsi_store_chunk *ring = (void *)((char *)head + (size_t)page * RSI_PAGE);
        if (page == 0 || ring->kind != RSI_STORE_EVENTS)
            continue;
        uint64_t written = rsi_load_acquire(&ring->written), last_tsc = 0; /* pairs with put */
        events.written += written;
        for (uint64_t n = written > ring->capacity ? written - ring->capacity : 0; n < written;
             n++) {
            struct rsi_store_event event,
                *entry = rsi_chunk_entry(ring, (uint32_t)(n % ring->capacity));
            event.tsc = rsi_load_relaxed(&entry->tsc);
            event.what = rsi_load_relaxed(&entry->what);
            if ((event.what & 0xff) != RSI_EVENT_LOCK) {
                events.is_disordered |= event.tsc < last_tsc;
                last_tsc = event.tsc;
            }
            add(&events, &event);
        }
    }
    return events;
}

static struct rouse_sem turn;

static void *take_turns(void *id)
{
    *(uint64_t *)id = rouse_thread_id(rouse_thread_self());
    for (unsigned i = 0; i < ROUNDS; i++)
        CHECK(rouse_sem_wait(&turn) >= 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        rouse_thread_yield();
    CHECK_EQUAL(rouse_sem_wait_until(&turn, rouse_now_ns() + MS), -ETIMEDOUT);
    return NULL;
}

/* Each post finds the thread waiting. */
static void *post_turns(void *thread)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        UNTIL(waits(thread));
        CHECK_EQUAL(rouse_sem_post(&turn), 0);
    }
    return NULL;
}

static void each_switch_and_wake_is_an_event(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_TRACE), 0);
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        uint64_t id = 0;
        struct rouse_thread *t = start((enum rouse_kind)kind, take_turns, &id);
        join(start((enum rouse_kind)kind, post_turns, t));
        join(t);
        struct events events = events_of(id);
        uint64_t yields = kind == ROUSE_KIND_USER ? ROUNDS : 0;
        CHECK_EQUAL(events.count[RSI_EVENT_NEW], 1);
        CHECK_EQUAL(events.count[RSI_EVENT_END], 1);
        CHECK_EQUAL(events.count[RSI_EVENT_WAIT], ROUNDS + 1);
        CHECK_EQUAL(events.count[RSI_EVENT_YIELD], yields);
        CHECK_EQUAL(events.count[RSI_EVENT_RUN], 1 + yields + ROUNDS + 1);
        /*
         * A worker that has recorded no event yet has no ring, and may be the one that sees the
         * time-out.
         */
        CHECK(events.count[RSI_EVENT_WAKE] - ROUNDS <= 1);
        CHECK_EQUAL(events.verdicts[ROUSE_VERDICT_USEFUL], ROUNDS);
        CHECK_EQUAL(events.verdicts[ROUSE_VERDICT_TIMEOUT], events.count[RSI_EVENT_WAKE] - ROUNDS);
        CHECK(!events.is_disordered);
        CHECK_EQUAL(rsi_load_relaxed(&rsi_file_head->lost_events), 0);
    }
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
}

static void *yield_much(void *times)
{
    for (uintptr_t i = 0; i < (uintptr_t)times; i++)
        rouse_thread_yield();
    return NULL;
}

/* The newest events stay, and the count goes on. */
static void a_ring_goes_round(void **state)
{
    (void)state;
    uint64_t before = events_of(0).written;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_TRACE), 0);
    struct rouse_thread *t =
        start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)(2u * 262136 + 1));
    join(t);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct events events = events_of(0);
    CHECK(events.written - before >= 4u * 262136);
    CHECK(!events.is_disordered);
}

static void no_event_is_written_in_other_modes(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    uint64_t before = events_of(0).written;
    join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    CHECK_EQUAL(events_of(0).written, before);
}

/*
 * Another process requests events by a word in the file. A worker reads it when it runs and honours
 * it for the requested time.
 */
static void another_process_asks_for_a_while(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    rsi_store_relaxed(&rsi_file_head->trace_until_ns, rouse_now_ns() + 20 * MS);
    while (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_TRACE)
        join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    while (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_COUNTED)
        join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    CHECK(rouse_now_ns() >= rsi_load_relaxed(&rsi_file_head->trace_until_ns));
    rsi_store_relaxed(&rsi_file_head->trace_until_ns, UINT64_C(0));
}

#define HOUR (3600 * (uint64_t)1000000000)

/* As if a request ended and another one began, again and again. */
static void *look_from_both_sides(void *until_ns)
{
    for (unsigned i = 0; i < 100000 / SLOWER; i++) {
        rsi_trace_look(*(const uint64_t *)until_ns);
        rsi_trace_look(0);
    }
    return until_ns;
}

static void a_trace_that_ends_while_the_next_begins_does_not_last(void **state)
{
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    uint64_t until_ns = rouse_now_ns() + HOUR;
    rsi_store_relaxed(&rsi_file_head->trace_until_ns, until_ns);
    struct rouse_thread *threads[3];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_KERNEL, look_from_both_sides, &until_ns);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    rsi_store_relaxed(&rsi_file_head->trace_until_ns, UINT64_C(0));
    /* A worker may still have seen the request. */
    UNTIL((rsi_trace_look(rouse_now_ns()),
           rsi_load_relaxed(&rsi_obs_mode) == ROUSE_OBS_COUNTED &&
               rsi_load_relaxed(&rsi_file_head->mode) == ROUSE_OBS_COUNTED));
}

/* A child has rings of its own, and no process has requested its events. */
static void a_childs_events_are_its_own(void **state)
{
    (void)state;
#if defined(RSI_ASAN) || defined(RSI_TSAN)
    puts("not run: the locks of a sanitizer stay in a child as the fork found them");
    return;
#endif
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_TRACE), 0);
    join(start(ROUSE_KIND_USER, yield_much, (void *)(uintptr_t)ROUNDS));
    uint64_t before = events_of(0).written;
    pid_t child = fork();
    if (child == 0) {
        struct rouse_thread *t;
        bool is_made = rouse_thread_create(&t, NULL, yield_much, (void *)(uintptr_t)10) == 0 &&
                       rouse_thread_join(t, NULL) == 0;
        uint64_t written = is_made ? events_of(0).written : 0;
        _exit(written > 10 && written < ROUNDS ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(events_of(0).written - before < ROUNDS);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_switch_and_wake_is_an_event),
        cmocka_unit_test(a_ring_goes_round),
        cmocka_unit_test(no_event_is_written_in_other_modes),
        cmocka_unit_test(another_process_asks_for_a_while),
        cmocka_unit_test(a_trace_that_ends_while_the_next_begins_does_not_last),
        cmocka_unit_test(a_childs_events_are_its_own),
    };
    const struct program program = {
        .limit_s = 120, .every_number = true, .tests = tests, .test_count = LENGTH(tests)
    };
    setenv("ROUSE_OBS", "trace", 1);
    return program_run(&program, argc, argv);
}
