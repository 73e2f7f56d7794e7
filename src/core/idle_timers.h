/* SPDX-License-Identifier: MIT */
/* idle_timers.h - the deadlines of idle workers, which a worker that is awake looks after. */
#ifndef RSI_CORE_IDLE_TIMERS_H
#define RSI_CORE_IDLE_TIMERS_H

#include "core/worker.h"

/* The next deadline that w should be awake for, its own or an idle worker's, if w is the last one to fall asleep. */
uint64_t rsi_idle_timers_next(const struct rsi_worker *w);

/* End the waits that are due on idle workers of w's cluster; their threads run on w. True: there were some. */
bool rsi_idle_timers_run(struct rsi_worker *w, uint64_t now_ns);

/* An idle worker of the cluster has this deadline. */
void rsi_idle_timers_offer(struct rouse_cluster *cluster, uint64_t deadline_ns);

/*
 * Until when w, which falls asleep, may sleep although its next deadline comes earlier, since another worker looks after
 * it. 0: no worker does.
 */
uint64_t rsi_idle_timers_kept_until(const struct rsi_worker *w);

#endif
