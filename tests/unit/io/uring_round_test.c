/* SPDX-License-Identifier: MIT */
/*
 * uring_round_test.c - a worker that is in its ring for long, as with thousands of connections at once, is not stuck:
 * the monitor adds no spare in its place.
 */
#include "io_test.h"

#include "core/sampling.h"
#include "io/uring/ring.h"

#define ROUND_NS 30000000u /* longer than a thread may compute before its worker is stuck */
#define LOOKS 4u           /* of the monitor, by which it would have noticed */

static uint32_t began, round_is_over, all_is_over;

static uint64_t stuck_count(void)
{
    struct rouse_monitor_figures now;
    rouse_obs_monitor(&now);
    return now.stuck_count;
}

/* First in the ring, as if that took so long, then out of it. */
static void keep_the_worker(void *unused, unsigned index)
{
    struct rsi_ring *ring = rsi_ring_self();
    (void)unused, (void)index;
    CHECK(ring != NULL);
    rsi_ring_enter(ring);
    rsi_fetch_add_seq_cst(&began, 1u);
    while (!rsi_load_acquire(&round_is_over))
        rsi_compiler_barrier();
    rsi_ring_leave(ring);
    while (!rsi_load_acquire(&all_is_over))
        rsi_compiler_barrier();
}

static void end_soon(void *unused, unsigned index)
{
    (void)unused, (void)index;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void a_worker_in_its_ring_is_not_stuck(void **state)
{
    static struct crew crew, others;
    unsigned workers = rouse_worker_count();
    uint64_t before = stuck_count(), cpu_before;
    uint32_t era;
    (void)state;
    rsi_store_relaxed(&began, 0u);
    rsi_store_relaxed(&round_is_over, 0u);
    rsi_store_relaxed(&all_is_over, 0u);
    for (unsigned i = 0; i < workers; i++) {
        (void)crew_add(&crew, CREW_USER, keep_the_worker, NULL);
        UNTIL(rsi_load_seq_cst(&began) == i + 1);
    }
    (void)crew_add(&others, CREW_USER, end_soon, NULL); /* it waits for a worker */
    cpu_before = cpu_ns();
    UNTIL(cpu_ns() - cpu_before > (uint64_t)workers * ROUND_NS);
    era = rsi_load_relaxed(&rsi_sampling_era);
    UNTIL(rsi_load_relaxed(&rsi_sampling_era) - era >= LOOKS);
    EQUALS(stuck_count(), before);
    rsi_store_release(&round_is_over, 1u);
    UNTIL(stuck_count() != before); /* now a thread of the program computes */
    crew_join(&others);
    rsi_store_release(&all_is_over, 1u);
    crew_join(&crew);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_in_its_ring_is_not_stuck),
    };
    CHECK(setenv("ROUSE_IO", "uring", 1) == 0);
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
