/* SPDX-License-Identifier: MIT */
/* sampling.c - how many switches of a worker are timed, and which. */
#include "core/sampling.h"

#define CHECK_NS 50000u /* least time between two checks of the pace */

/* Every switch reads them: no line that is often written. */
_Alignas(RSI_CACHE_LINE) uint32_t rsi_sampling_era;
_Alignas(RSI_CACHE_LINE) uint64_t rsi_sampling_long = UINT64_MAX;
uint64_t rsi_sampling_cost;

/* By log2 of the mean: 1 / -log2(1 - 1 / mean). */
static const double stretches[] = { 0, 1.0000, 2.4094, 5.1909, 10.7401, 21.8323, 44.0139 };

/*
 * Draw the gap to the next timed switch: `mean` switches on average, of the geometric distribution, so that each switch has the
 * same chance, wherever the last timed one was, and a change of the mean may begin a new gap at any time. By
 * inversion: floor(log(u) / log(1 - 1 / mean)) + 1, with u uniform. log2(1 + f) is taken for f + 0.3438 f (1 - f), which
 * has the same mean and errs by less than 0.01.
 */
static void draw(struct rsi_sampling *s)
{
    if (s->random == 0)
        s->random = rsi_tsc() | 1;
    uint32_t number = (uint32_t)(rsi_random_next(&s->random) >> 32) | 1;
    int zeros = __builtin_clz(number);
    double f = (double)(number << zeros) * 0x1p-31 - 1;
    double log = zeros + 1 - f - 0.3438 * f * (1 - f);
    s->left = 1 + (uint32_t)(log * stretches[__builtin_ctz(s->mean)]);
    s->weight = 2 * s->mean;
}

struct rsi_sampling_chosen rsi_sampling_choose(struct rsi_sampling *s)
{
    if (rsi_sampling_pass(s))
        return (struct rsi_sampling_chosen){ 0, 0 };
    uint32_t weight = s->weight;
    draw(s);
    bool is_turn = rsi_random_next(&s->random) >> 63;
    return (struct rsi_sampling_chosen){ is_turn ? weight : 0, is_turn ? 0 : weight };
}

void rsi_sampling_stop(struct rsi_sampling *s)
{
    s->mean = 1;
    s->left = 0;
}

void rsi_sampling_check(struct rsi_sampling *s, uint64_t turns, uint64_t now_tsc)
{
    const uint64_t most = rsi_load_relaxed(&rsi_sampling_long), passed = now_tsc - s->check_tsc;
    if (passed < most / (RSI_SAMPLING_LONG_NS / CHECK_NS))
        return;
    if (passed > (turns - s->check_turns) * (most / (RSI_SAMPLING_LONG_NS / RSI_SAMPLING_TURN_NS)))
        rsi_sampling_stop(s);
    s->check_tsc = now_tsc;
    s->check_turns = turns;
}

void rsi_sampling_gap(struct rsi_sampling *s, uint64_t now)
{
    uint64_t gap = now - s->now_tsc, until = now + RSI_SAMPLING_REST * gap;
    if (s->now_tsc == 0)
        return; /* the first one */
    rsi_store_relaxed(&s->stale_tsc, s->now_tsc);
    rsi_store_relaxed(&s->stale_gap, gap);
    if (until > s->exact_tsc)
        s->exact_tsc = until;
    rsi_sampling_stop(s);
}

void rsi_sampling_look(struct rsi_sampling *s, uint32_t turn_ns, bool is_exact)
{
    uint32_t mean = 1;
    is_exact |= rsi_sampling_stamp(s) < s->exact_tsc;
    while (!is_exact && mean < RSI_SAMPLING_MEAN_MOST && mean * turn_ns < RSI_SAMPLING_TURN_NS)
        mean *= 2;
    if (mean == 1) {
        rsi_sampling_stop(s);
    } else if (mean != s->mean) {
        s->mean = mean;
        draw(s);
    }
}
