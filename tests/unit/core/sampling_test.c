/* SPDX-License-Identifier: MIT */
/*
 * sampling_test.c - times that are estimated from a random sample: the draw alone over many seeds, then programs whose
 * turns are too short for a time stamp each, beside the clock that they read themselves and beside the mode
 * `exact`. Counts must be exact in both modes.
 */
#include "unit/core/core_test.h"
#include "obs/ledger.h"
#include "unit/obs/ledger_read.h"

#include <math.h>

#define SEEDS 400u
#define SWITCHES 20000u
#define CLASSES 7u /* switch number modulo this: a ring of threads */

static double off(double a, double b)
{
    return fabs(a / b - 1);
}

/* The mean turn of a worker that times one switch in `mean`, in ns. */
static uint32_t turn_of(uint32_t mean)
{
    return (RSI_SAMPLING_TURN_NS + mean - 1) / mean;
}

/*
 * Sums of the weights by class of switch, and their squared deviations from the truth, for one mean. change: the worker
 * looks, with another mean, after so many switches.
 */
static void draw(bool is_turn, uint32_t mean, uint32_t change, double *sums, double *squares)
{
    const double truth = (double)SWITCHES / CLASSES;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rsi_sampling s = { .random = seed * 0x9e3779b97f4a7c15 };
        double sum[CLASSES] = { 0 };
        rsi_sampling_look(&s, turn_of(mean), false);
        for (uint32_t i = 0; i < SWITCHES; i++) {
            if (change && i % change == 0)
                rsi_sampling_look(&s, turn_of(mean * (1 + i / change % 2)), false);
            struct rsi_sampling_chosen chosen = rsi_sampling_toss(&s);
            sum[i % CLASSES] += is_turn ? chosen.turn : chosen.wait;
        }
        for (unsigned c = 0; c < CLASSES; c++) {
            sums[c] += sum[c];
            squares[c] += (sum[c] - truth) * (sum[c] - truth);
        }
    }
}

/* The sum of the weights is the number of switches, for each class of switches, and its spread is that of the stated variance. */
static void every_switch_has_the_same_chance(void **state)
{
    static const uint32_t changes[] = { 0, 0, 997, 997, 61, 61 };
    (void)state;
    for (unsigned n = 0; n < LENGTH(changes); n++)
        for (uint32_t mean = 2; mean <= 32; mean *= 2) {
            double sums[CLASSES] = { 0 }, squares[CLASSES] = { 0 };
            double truth = (double)SWITCHES / CLASSES;
            draw(n % 2, mean, changes[n], sums, squares);
            for (unsigned c = 0; c < CLASSES; c++) {
                double variance = truth * (2 * mean * (changes[n] ? 1.5 : 1) - 1),
                       much = sums[c] / SEEDS - truth;
                printf("mean %2u, change %3u: %7.1f of %7.1f, variance %.2f\n", mean, changes[n],
                       sums[c] / SEEDS, truth, squares[c] / SEEDS / variance);
                CHECK(much * much < 25 * variance / SEEDS);
                CHECK(squares[c] / SEEDS < 1.4 * variance);
            }
        }
}

static void long_turns_are_all_timed(void **state)
{
    struct rsi_sampling s = { 0 };
    (void)state;
    rsi_sampling_look(&s, RSI_SAMPLING_TURN_NS, false);
    for (int i = 0; i < 1000; i++)
        CHECK_EQUAL(rsi_sampling_toss(&s).turn + rsi_sampling_toss(&s).wait, 2);
    rsi_sampling_look(&s, 10, false);
    CHECK_EQUAL(s.mean, RSI_SAMPLING_MEAN_MOST);
    rsi_sampling_look(&s, 10, true);
    for (int i = 0; i < 1000; i++)
        CHECK_EQUAL(rsi_sampling_toss(&s).turn + rsi_sampling_toss(&s).wait, 2);
}

/* Its turns have become long or rare, a while before it looks again. */
static void a_worker_that_becomes_slow_times_everything(void **state)
{
    const uint64_t ms = 2000000, turns_per_ms = 1000000 / RSI_SAMPLING_TURN_NS;
    struct rsi_sampling s = { 0 };
    (void)state;
    rsi_sampling_long = ms;
    rsi_sampling_look(&s, 10, false);
    s.check_tsc = ms;
    s.left = 5;
    rsi_sampling_check(&s, turns_per_ms + 1, 2 * ms);
    CHECK(s.left != 0);
    rsi_sampling_check(&s, turns_per_ms + 2, 2 * ms + ms / 100);
    CHECK(s.left != 0); /* too soon to tell */
    rsi_sampling_check(&s, 2 * turns_per_ms, 3 * ms);
    CHECK_EQUAL(s.left, 0);
    rsi_sampling_long = UINT64_MAX; /* as before recording begins */
}

/* Its kernel thread did not run for a while, or a turn took long. */
static void a_long_gap_between_stamps_ends_the_sample_for_25_times_as_long(void **state)
{
    const uint64_t ms = 2000000;
    struct rsi_sampling s = { 0 };
    (void)state;
    rsi_sampling_look(&s, 10, false);
    CHECK(s.left != 0);
    s.now_tsc = rsi_tsc() - 1000 * ms;
    rsi_sampling_gap(&s, rsi_tsc());
    CHECK_EQUAL(s.left, 0);
    CHECK(s.exact_tsc - rsi_tsc() > 24000 * ms);
    CHECK(s.exact_tsc - rsi_tsc() < 26000 * ms);
    rsi_sampling_look(&s, 10, false);
    CHECK_EQUAL(s.left, 0);
    s.exact_tsc = rsi_tsc();
    rsi_sampling_look(&s, 10, false);
    CHECK(s.left != 0);
}

static const enum rouse_obs_mode modes[] = { ROUSE_OBS_EXACT, ROUSE_OBS_COUNTED };
#define SHORTEST_NS 50e-9

/* Threads that spin for a while, yield, and measure their turns themselves. */
struct spinner {
    uint64_t spin_ticks, turns;
    uint64_t own_ticks; /* that it spun */
    uint64_t usr_ticks, lat_ticks, yields;
    uint64_t life_ticks;
};

static bool is_over;

static uint64_t spin(uint64_t ticks)
{
    uint64_t begin = rsi_tsc(), now;
    do
        now = rsi_tsc();
    while (now - begin < ticks);
    return now - begin;
}

static const struct rsi_store_thread *slot_of_self(void)
{
    return rsi_waiter(rsi_self())->record.slot;
}

static void *spinner_main(void *arg)
{
    struct spinner *me = arg;
    uint64_t begin = rsi_tsc();
    while (!rsi_load_relaxed(&is_over)) {
        for (int i = 0; i < 100; i++) {
            me->own_ticks += spin(me->spin_ticks);
            rouse_thread_yield();
        }
        me->turns += 100;
    }
    const struct rsi_store_thread *slot = slot_of_self();
    me->usr_ticks = slot->ticks[RSI_IN_USR];
    me->lat_ticks = slot->ticks[RSI_IN_LAT];
    me->yields = slot->yields;
    me->life_ticks = rsi_tsc() - begin;
    return NULL;
}

static double hz(void)
{
    static double rate;
    if (rate == 0) {
        uint64_t ns = rouse_now_ns(), tsc = rsi_tsc();
        usleep(20000);
        rate = (double)(rsi_tsc() - tsc) / (double)(rouse_now_ns() - ns) * 1e9;
    }
    return rate;
}

/* Run the threads for a while on the only worker, and other beside them. */
static void spin_all(struct spinner *spinners, unsigned count, uint64_t ns, void *(*other)(void *),
                     void *arg)
{
    struct rouse_thread *threads[16], *beside = NULL;
    rsi_store_relaxed(&is_over, false);
    for (unsigned i = 0; i < count; i++)
        threads[i] = start(ROUSE_KIND_USER, spinner_main, &spinners[i]);
    if (other)
        beside = start(ROUSE_KIND_USER, other, arg);
    if (beside)
        join(beside);
    else
        usleep((useconds_t)(ns / 1000));
    rsi_store_relaxed(&is_over, true);
    for (unsigned i = 0; i < count; i++)
        join(threads[i]);
}

/* Whether its states add up to its life, nearly. */
static bool is_whole(const struct spinner *spinner)
{
    double sum = (double)(spinner->usr_ticks + spinner->lat_ticks);
    printf("states are %.3f of the life\n", sum / (double)spinner->life_ticks);
    return off(sum, (double)spinner->life_ticks) < 0.1;
}

static uint64_t switches_of_worker(void)
{
    const struct rsi_writer *writer = rsi_rt.workers[0]->exec.writer;
    return writer ? rsi_load_relaxed(&writer->shared->switches) : 0;
}

/*
 * Two threads with turns of 100 and two with 400 ns, for a while. ratio: each thread's running time to that by its own clock, which does
 * not see the switch. Returns all running time by the worker's time.
 */
static double spin_in_two_lengths(unsigned m, double *ratio)
{
    struct spinner spinners[4] = { 0 };
    for (unsigned i = 0; i < 4; i++)
        spinners[i].spin_ticks = (uint64_t)(hz() * (i % 2 ? 400e-9 : 100e-9));
    CHECK_EQUAL(rouse_obs_set_mode(modes[m]), 0);
    double sum = 0;
    uint64_t switches_before = switches_of_worker(), all_yields = 0;
    spin_all(spinners, 4, 400 * MS, NULL, NULL);
    for (unsigned i = 0; i < 4; i++) {
        all_yields += spinners[i].yields;
        ratio[i] = (double)spinners[i].usr_ticks / (double)spinners[i].own_ticks;
        printf("%s: thread %u: USR %.3f of its own clock\n", m ? "counted" : "exact", i, ratio[i]);
        CHECK(spinners[i].yields >= spinners[i].turns);
        CHECK(spinners[i].yields <= spinners[i].turns + 1);
        CHECK(is_whole(&spinners[i]));
        sum += (double)spinners[i].usr_ticks;
    }
    CHECK(switches_of_worker() - switches_before >= all_yields);
    sum /= (double)spinners[0].life_ticks;
    printf("all: USR %.3f of the worker's time\n", sum);
    return sum;
}

/* A turn that another program interrupts for 1 ms, and that was chosen, counts for 16 ms of the 400: then once more. */
static void running_time_is_estimated_within_5_percent(void **state)
{
    double ratio[LENGTH(modes)][4];
    (void)state;
    for (unsigned m = 0; m < LENGTH(modes); m++) {
        double sum = 0;
        for (int attempt = 0; attempt == 0 || (sum >= 1.02 && attempt < 3); attempt++)
            sum = spin_in_two_lengths(m, ratio[m]);
        CHECK(sum > (SLOWER > 1 ? 0.8 : 0.9));
        CHECK(sum < 1.02);
    }
    /* A chosen turn is shorter than what it takes to record it. */
    struct spinner spinners[4] = { 0 };
    double sum = 0;
    for (unsigned i = 0; i < 4; i++)
        spinners[i].spin_ticks = (uint64_t)(hz() * SHORTEST_NS);
    spin_all(spinners, 4, 200 * MS, NULL, NULL);
    for (unsigned i = 0; i < 4; i++)
        sum += (double)spinners[i].usr_ticks / (double)spinners[0].life_ticks;
    printf("short turns: USR %.3f of the worker's time\n", sum);
    CHECK(sum > 0.7);
    CHECK(sum < 1.2);
    if (SLOWER > 1 && rsi_rt.workers[0]->sampling.mean == 1)
        return; /* a sanitizer makes the turns too long */
    for (unsigned i = 0; i < 4; i++) {
        CHECK(ratio[1][i] > 0.97);
    }
    CHECK_EQUAL(rsi_load_relaxed(&rsi_file_head->is_sampled), 1);
}

/*
 * The machine was slow at the moment at which the cost of a time stamp was measured: every time would lack that much, and turns of
 * 100 ns would be nothing.
 */
static void a_stamp_that_took_long_once_does_not_shorten_all_times(void **state)
{
    const uint64_t slow = (uint64_t)(hz() * 20e-6);
    struct spinner spinners[2] = { { .spin_ticks = (uint64_t)(hz() * 100e-9) },
                                   { .spin_ticks = (uint64_t)(hz() * 100e-9) } };
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    rsi_store_relaxed(&rsi_sampling_cost, slow);
    rsi_store_relaxed(&rsi_file_head->stamps_ticks, slow * RSI_STORE_STAMPS);
    spin_all(spinners, 2, 1500 * MS, NULL, NULL); /* it is measured every second */
    CHECK(rsi_load_relaxed(&rsi_sampling_cost) < slow / 2);
    CHECK(rsi_load_relaxed(&rsi_file_head->stamps_ticks) < slow / 2 * RSI_STORE_STAMPS);
}

struct pair {
    struct rouse_sem sems[2];
    unsigned rounds;
    uint64_t own_ticks;  /* that side 0 took in its waits */
    uint64_t spun_ticks; /* that side 1 spun meanwhile */
};

static void *side_0(void *arg)
{
    struct pair *pair = arg;
    for (unsigned i = 0; i < pair->rounds; i++) {
        CHECK_EQUAL(rouse_sem_post(&pair->sems[1]), 0);
        uint64_t begin = rsi_tsc();
        CHECK_EQUAL(rouse_sem_wait(&pair->sems[0]), 0);
        pair->own_ticks += rsi_tsc() - begin;
    }
    return NULL;
}

static void *side_1(void *arg)
{
    struct pair *pair = arg;
    for (unsigned i = 0; i < pair->rounds; i++) {
        CHECK_EQUAL(rouse_sem_wait(&pair->sems[1]), 0);
        pair->spun_ticks += spin((uint64_t)(hz() * 500e-9));
        CHECK_EQUAL(rouse_sem_post(&pair->sems[0]), 0);
    }
    return NULL;
}

/*
 * Two threads hand a token to each other. Counts are exact in both modes. The waits of one thread last at least as long
 * as the other one spins by its own clock, and less than its own clock says, which sees the calls as well.
 */
static void waits_are_counted_exactly_and_their_times_lie_between_two_clocks(void **state)
{
    (void)state;
    for (unsigned m = 0; m < LENGTH(modes); m++) {
        struct pair pair = { .rounds = 300000 / SLOWER };
        CHECK_EQUAL(rouse_obs_set_mode(modes[m]), 0);
        struct wakes before = wakes_of(ROUSE_WAIT_SEM, &pair.sems[0]);
        struct rouse_thread *a = start(ROUSE_KIND_USER, side_0, &pair);
        struct rouse_thread *b = start(ROUSE_KIND_USER, side_1, &pair);
        join(a);
        join(b);
        struct wakes after = wakes_of(ROUSE_WAIT_SEM, &pair.sems[0]);
        uint64_t count = after.count[ROUSE_VERDICT_USEFUL] - before.count[ROUSE_VERDICT_USEFUL];
        CHECK_EQUAL(after.all - before.all, count);
        CHECK(count + 10 >= pair.rounds); /* the first ones may find the token there */
        CHECK(count <= pair.rounds);
        double waited =
            (double)(after.wait_ticks + after.late_ticks - before.wait_ticks - before.late_ticks);
        printf("%s: spun %.1f, waited %.1f, own clock %.1f ns\n", m ? "counted" : "exact",
               (double)pair.spun_ticks / hz() * 1e9 / pair.rounds,
               waited / hz() * 1e9 / pair.rounds,
               (double)pair.own_ticks / hz() * 1e9 / pair.rounds);
        CHECK(waited > 0.97 * (double)pair.spun_ticks);
        CHECK(waited < 1.01 * (double)pair.own_ticks);
    }
}

#define LONG_SLEEPS 10
#define LONG_SLEEP_NS (30 * MS)

static void *sleeps_long(void *own_ticks)
{
    for (int i = 0; i < LONG_SLEEPS; i++) {
        uint64_t begin = rsi_tsc();
        rouse_sleep(LONG_SLEEP_NS);
        *(uint64_t *)own_ticks += rsi_tsc() - begin;
    }
    return NULL;
}

/*
 * A wait of 30 ms among turns of 100 ns counts once, not 8 times or never. The thread's own clock also sees the time for
 * which the kernel runs others before the wait begins and after it ends.
 */
static void long_waits_are_always_timed(void **state)
{
    struct spinner spinners[2] = { { .spin_ticks = (uint64_t)(hz() * 100e-9) },
                                   { .spin_ticks = (uint64_t)(hz() * 100e-9) } };
    uint64_t own_ticks = 0;
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct wakes before = wakes_of(ROUSE_WAIT_SLEEP, NULL);
    spin_all(spinners, 2, 0, sleeps_long, &own_ticks);
    struct wakes after = wakes_of(ROUSE_WAIT_SLEEP, NULL);
    CHECK_EQUAL(after.count[ROUSE_VERDICT_TIMEOUT] - before.count[ROUSE_VERDICT_TIMEOUT],
                LONG_SLEEPS);
    double waited =
        (double)(after.wait_ticks + after.late_ticks - before.wait_ticks - before.late_ticks);
    printf("recorded %.3f of its own clock\n", waited / (double)own_ticks);
    CHECK(waited > 0.99 * LONG_SLEEPS * (double)LONG_SLEEP_NS * 1e-9 * hz());
    CHECK(waited < 1.01 * (double)own_ticks);
}

/* Its long turns by its own clock, and as they were recorded. The times of the short turns are estimates. */
struct long_turns {
    uint64_t own_ticks, usr_ticks;
};

static void *computes_long(void *turns_of)
{
    struct long_turns *turns = turns_of;
    const struct rsi_store_thread *slot = slot_of_self();
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 20000; k++)
            rouse_thread_yield();
        struct rsi_sampling *s = &rsi_exec_self()->worker->sampling;
        s->exact_tsc = 0; /* the last long turn does not help with the next one */
        rsi_sampling_look(s, 10, false);
        for (int k = 0; k < 20; k++)
            rouse_thread_yield();
        uint64_t before = slot->ticks[RSI_IN_USR]; /* without the turn that has begun */
        turns->own_ticks += spin((uint64_t)(hz() * 50e-3));
        rouse_thread_yield();
        turns->usr_ticks += slot->ticks[RSI_IN_USR] - before;
    }
    return NULL;
}

/* So does a turn of 50 ms, after thousands of short ones. The states of the other threads add up to their lives meanwhile. */
static void long_turns_are_always_timed(void **state)
{
    struct spinner spinners[2] = { { .spin_ticks = (uint64_t)(hz() * 50e-9) },
                                   { .spin_ticks = (uint64_t)(hz() * 50e-9) } };
    struct rouse_thread *threads[2];
    struct long_turns turns = { 0 };
    (void)state;
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    rsi_store_relaxed(&is_over, false);
    for (unsigned i = 0; i < 2; i++)
        threads[i] = start(ROUSE_KIND_USER, spinner_main, &spinners[i]);
    join(start(ROUSE_KIND_USER, computes_long, &turns));
    rsi_store_relaxed(&is_over, true);
    for (unsigned i = 0; i < 2; i++)
        join(threads[i]);
    double usr = (double)turns.usr_ticks, own = (double)turns.own_ticks;
    printf("recorded %.3f of its own clock\n", usr / own);
    CHECK(off(usr, own) < (SLOWER > 1 ? 2 : 0.1));
    /* A wait of some milliseconds that is chosen adds half a second. Waits at an old stamp would add minutes. */
    for (unsigned i = 0; i < 2; i++)
        CHECK(spinners[i].usr_ticks + spinners[i].lat_ticks < 5 * spinners[i].life_ticks);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_switch_has_the_same_chance),
        cmocka_unit_test(long_turns_are_all_timed),
        cmocka_unit_test(a_worker_that_becomes_slow_times_everything),
        cmocka_unit_test(a_long_gap_between_stamps_ends_the_sample_for_25_times_as_long),
        cmocka_unit_test(running_time_is_estimated_within_5_percent),
        cmocka_unit_test(a_stamp_that_took_long_once_does_not_shorten_all_times),
        cmocka_unit_test(waits_are_counted_exactly_and_their_times_lie_between_two_clocks),
        cmocka_unit_test(long_waits_are_always_timed),
        cmocka_unit_test(long_turns_are_always_timed),
    };
    static const struct program program = { 100, false, tests, LENGTH(tests), NULL, 0 };
    setenv("ROUSE_WORKERS", "1", 1);
    return program_run(&program, argc, argv);
}
