/* SPDX-License-Identifier: MIT */
/*
 * idle_timers.c - the deadlines of idle workers, which a worker that is awake looks after.
 *
 * Problem: threads that sleep often have their deadlines on all workers. Each worker then falls asleep and wakes up for its
 * own few, although one could serve all of them with a fraction of the CPU time: to sleep and wake up costs as much as
 * dozens of turns.
 *
 * So a worker that falls asleep while another one of its cluster is awake asks the kernel for KEPT_NS more than its next
 * deadline. The worker that is awake ends the waits that are due there, together with its own, and runs their threads.
 * These arm their next timers on it. Soon the idle worker has none left. When they are more than one worker can run, the
 * queue grows, and others steal: share.h. The last worker to fall asleep sleeps until the first deadline of all.
 *
 * Invariant: no deadline depends on the worker that is awake. If that one computes, the idle worker wakes up by itself,
 * KEPT_NS late. It does not rely on workers whose turns are that long.
 */
#include "core/idle_timers.h"
#include "core/queue_lock.h"

#define KEPT_NS 500000u
#define SHORT_NS 20000u /* a worker with such turns looks at timers often enough */

uint64_t rsi_idle_timers_next(const struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint64_t own = rsi_load_relaxed(&w->timer_next_ns);
    uint64_t others = cluster->is_shortest ? UINT64_MAX : rsi_load_relaxed(&cluster->idle_timer_ns);
    return own < others ? own : others;
}

bool rsi_idle_timers_run(struct rsi_worker *w, uint64_t now_ns)
{
    struct rouse_cluster *cluster = w->cluster;
    uint64_t next_ns = UINT64_MAX;
    bool found = false;
    if (now_ns < rsi_load_relaxed(&cluster->idle_timer_ns))
        return false;
    /* First, so that a deadline that is offered meanwhile is not overwritten by an older one. */
    rsi_store_relaxed(&cluster->idle_timer_ns, UINT64_MAX);
    for (uint32_t i = 0; i < rsi_load_acquire(&cluster->slot_count); i++) {
        struct rsi_worker *other = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (!other || other == w || !rsi_load_relaxed(&other->is_idle))
            continue;
        if (rsi_load_relaxed(&other->timer_next_ns) <= now_ns &&
            rsi_queue_lock_enter_thief(other)) {
            struct rouse_thread *due = rsi_timer_expire(other, now_ns);
            rsi_queue_lock_leave_thief(other);
            if (due)
                rsi_run_later_list(w, due);
            found |= due != NULL;
        }
        uint64_t at = rsi_load_relaxed(&other->timer_next_ns);
        next_ns = at < next_ns ? at : next_ns;
    }
    rsi_idle_timers_offer(cluster, next_ns);
    return found;
}

void rsi_idle_timers_offer(struct rouse_cluster *cluster, uint64_t deadline_ns)
{
    if (deadline_ns < rsi_load_relaxed(&cluster->idle_timer_ns))
        rsi_store_relaxed(&cluster->idle_timer_ns, deadline_ns);
}

uint64_t rsi_idle_timers_kept_until(const struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint64_t own = rsi_load_relaxed(&w->timer_next_ns);
    if (cluster->is_shortest || own == UINT64_MAX)
        return 0;
    for (uint32_t i = 0; i < rsi_load_acquire(&cluster->slot_count); i++) {
        const struct rsi_worker *other =
            rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (other && other != w && !rsi_load_relaxed(&other->is_idle) &&
            rsi_load_relaxed(&other->turn_ns) < SHORT_NS)
            return own + KEPT_NS;
    }
    return 0;
}
