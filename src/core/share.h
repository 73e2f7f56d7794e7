/* SPDX-License-Identifier: MIT */
/*
 * share.h - when queued threads are worth a second worker.
 *
 * Problem: to wake a worker, or to steal, costs microseconds: two system calls, a switch, a search, a fence on every
 * processor that stops the victim. Threads with turns of 100 ns are done before the second worker has begun; the two
 * then exchange a few threads for ever.
 *
 * Rule: a queue is short if its worker runs all of it within the time that sharing it costs, twice over. Nobody is woken for
 * a short queue, and nobody steals from one, except the watcher, which looks every 0.2 to 10 ms.
 *   length of the queue * mean turn of its worker <= 2 * cost
 * Both are measured: the mean turn whenever a worker looks at its timers, and the cost by workers without work.
 *
 * Bound: a thread in a short queue waits for at most twice the cost, which counts as 60 us at most, if the turns are as
 * long as they were. If they become longer, its worker measures that at its next look, and wakes another one. If a thread
 * does not end its turn, the watcher sees that the queue has not moved, within 2 * WATCH_MAX_NS.
 * While nobody watches, no queue is short. Model: tests/model/idle.pml.
 */
#ifndef RSI_CORE_SHARE_H
#define RSI_CORE_SHARE_H

#include "core/runtime.h"

/* Whether nobody but the watcher takes threads from w now. Other workers may ask: the words are read without the lock. */
RSI_INLINE bool rsi_share_not(const struct rsi_worker *w)
{
    return rsi_load_relaxed(&w->queue_length) <= rsi_load_relaxed(&w->short_most) &&
           rsi_load_relaxed(&rsi_rt.watching) != 0;
}

/* w, which runs threads, has had some turns since look_turn, in ns. */
void rsi_share_measure_turns(struct rsi_worker *w, uint64_t ns);

/*
 * The cost of a second worker for one queue, in two parts: the call that woke it, and its own search before and after
 * its sleep.
 */
void rsi_share_measure_wake(uint64_t ns);
void rsi_share_measure_search(uint64_t ns);

#endif
