/* SPDX-License-Identifier: MIT */
/* timer.h - a worker's timers: lanes and a heap (timer.c). All calls are made under its queue lock. */
#ifndef RSI_CORE_TIMER_H
#define RSI_CORE_TIMER_H

#include "core/thread.h"

struct rsi_timer {
    uint64_t deadline_ns;
    uint64_t thread_gen; /* address and 16 bits of generation */
};

/* A ring of timers in order of deadline. head and tail run freely, and are equal when it is empty. */
struct rsi_timer_lane {
    struct rsi_timer *ring;
    uint64_t first_ns, last_ns; /* empty: UINT64_MAX, 0 */
    uint32_t head, tail, mask;
};

#define RSI_TIMER_LANES 4
#define RSI_LANE_MAX (1u << 20)          /* a power of two; further entries go to the heap */
#define RSI_HEAP_MAX (2u * RSI_LIVE_MAX) /* all entries of a worker; half may be stale */
#define RSI_HEAP_BYTES (RSI_HEAP_MAX * sizeof(struct rsi_timer))
#define RSI_LANES_BYTES (RSI_TIMER_LANES * (size_t)RSI_LANE_MAX * sizeof(struct rsi_timer))

void rsi_timer_arm(struct rsi_worker *w, struct rouse_thread *t, uint64_t deadline_ns);
struct rouse_thread *rsi_timer_expire(struct rsi_worker *w, uint64_t now_ns);
void rsi_timer_forget(struct rouse_thread *t);
/* Remove up to most entries from w's timers. Returns how many; 0 if there are none. */
uint32_t rsi_timer_take(struct rsi_worker *w, struct rsi_timer *entries, uint32_t most);
/* Add entries that rsi_timer_take removed from another worker. Those still valid are w's from now on. */
void rsi_timer_adopt(struct rsi_worker *w, const struct rsi_worker *from,
                     const struct rsi_timer *entries, uint32_t count);
bool rsi_timer_setup(struct rsi_worker *w);
void rsi_timer_reset(struct rsi_worker *w);

#endif
