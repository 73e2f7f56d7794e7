/* SPDX-License-Identifier: MIT */
/* share.c - measures the turns of workers, and what it costs to share them. */
#include "core/share.h"

/* A cost beyond this comes from another program on the processor. */
#define COST_MOST_NS 20000u

/* Longer turns count at once: threads may wait for theirs. turn_ns is UINT32_MAX until turns were measured. */
void rsi_share_measure_turns(struct rsi_worker *w, uint64_t ns)
{
    uint64_t turns = w->turns - w->look_turn, mean = w->turn_ns;
    w->look_turn = w->turns;
    if (turns == 0)
        return;
    uint64_t now = ns / turns < UINT32_MAX ? ns / turns : UINT32_MAX - 1;
    mean = mean == UINT32_MAX ? now : (7 * mean + now) / 8;
    rsi_store_relaxed(&w->turn_ns, (uint32_t)mean);
    rsi_store_relaxed(&w->short_most, rsi_load_relaxed(&rsi_rt.share_ns) / ((uint32_t)mean + 1));
}

/* The mean of a cost so far, and now ns. Several workers may write at once. One of the costs is then not counted. */
static void add(uint32_t *mean, uint64_t ns)
{
    uint64_t was = rsi_load_relaxed(mean);
    ns = ns < COST_MOST_NS ? ns : COST_MOST_NS;
    rsi_store_relaxed(mean, (uint32_t)((7 * was + ns) / 8));
    /* The wake-up costs the woken thread's processor as much as the caller's. */
    rsi_store_relaxed(&rsi_rt.share_ns, 2 * (2 * rsi_load_relaxed(&rsi_rt.wake_cost_ns) +
                                             rsi_load_relaxed(&rsi_rt.search_cost_ns)));
}

void rsi_share_measure_wake(uint64_t ns)
{
    add(&rsi_rt.wake_cost_ns, ns);
}

void rsi_share_measure_search(uint64_t ns)
{
    add(&rsi_rt.search_cost_ns, ns);
}
