/* SPDX-License-Identifier: MIT */
/*
 * watch.c - the watcher: one idle worker of the process, of any cluster, that looks after the running ones.
 *
 * It sleeps with a time-out while others run, and looks for work that has not moved since its last look because a
 * thread computes or blocks in a system call: in queues, next slots, timers and finished I/O. It takes
 * threads of its own cluster itself. Threads of another cluster go to an idle worker there, if there is one. Its
 * period doubles from WATCH_MIN_NS to WATCH_MAX_NS while it finds nothing. After a period without a
 * turn anywhere it sleeps without a limit: an idle process makes no system calls.
 *
 * Invariant: while a worker runs and another is idle, some worker watches, or searches and will watch when it
 * falls asleep. A worker that begins to run checks for a watcher (ensure_watcher in idle.c) after it has left
 * the idle list. A watcher that resigns looks at the lists once more after that. On both sides a full fence
 * stands between the two steps. Rejected: one watcher per cluster. Each idle cluster would have one that
 * wakes up 100 times per second for as long as anything runs, because a worker has to poll for it.
 */
#include "core/queue_lock.h"

#define WATCH_MIN_NS 200000
#define WATCH_SOON_NS 1000000
#define WATCH_MAX_NS 10000000

/* with watch_turns, the watcher's notes; they pass with rsi_rt.watching to the next one */
static uint32_t watch_polls;

/*
 * other belongs to another cluster and has threads to run. Some of them are moved to an idle worker there; to be woken
 * would not be enough for that one, since it would leave a short queue alone. If there is none (any more), they go back to
 * other.
 */
static void help_cluster(struct rsi_worker *other, bool is_stuck)
{
    struct rouse_cluster *cluster = rsi_load_acquire(&other->cluster); /* pairs with reset */
    if (rsi_load_relaxed(is_stuck ? &cluster->idle_count : &cluster->stealers) == 0)
        return;
    struct rsi_worker *idle = rsi_idle_peek(cluster);
    if (idle)
        rsi_steal_for(idle, other, is_stuck);
}

/*
 * Take threads of other that did not move, or that are more than it can run at once, however short its queue is: threads
 * that never sleep keep it busy for as long as they stay there. True: w has work now.
 */
static bool look_at_queue(struct rsi_worker *w, struct rsi_worker *other, bool is_stuck)
{
    if (!rsi_worker_has_work(other) && !(is_stuck && rsi_load_relaxed(&other->next)))
        return false;
    if (rsi_load_relaxed(&other->cluster) == w->cluster)
        return (is_stuck || !w->cluster->is_shortest) && rsi_steal(w, other, is_stuck);
    help_cluster(other, is_stuck);
    return false;
}

/* End waits that other's timers are due for, because other does not look at them. True: there were some. */
static bool look_at_timers(struct rsi_worker *w, struct rsi_worker *other, uint64_t now_ns)
{
    if (now_ns < rsi_load_relaxed(&other->timer_next_ns) || !rsi_queue_lock_enter_thief(other))
        return false;
    struct rouse_thread *due = rsi_timer_expire(other, now_ns);
    rsi_queue_lock_leave_thief(other);
    if (due)
        rsi_run_later_list(w, due);
    return due != NULL;
}

/* End waits that have finished on other's ring, because other does not look at it. True: more may finish there. */
static bool look_at_ring(const struct rsi_worker *other)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    return poller && poller->rescue && !rsi_load_relaxed(&other->is_idle) &&
           poller->has_waiters() && poller->rescue(other->index);
}

/* Whether threads of other would be late if it did not end its turn now. */
static bool has_followers(const struct rsi_worker *other, uint64_t now_ns)
{
    return rsi_worker_has_work(other) ||
           rsi_load_relaxed(&other->timer_next_ns) < now_ns + WATCH_SOON_NS;
}

/*
 * One look of the watcher. True: w has work now. *is_quiet: nothing has happened since the last look. *is_needed: the
 * next look should be soon.
 */
static bool look(struct rsi_worker *w, bool *is_quiet, bool *is_needed)
{
    bool found = false;
    *is_needed = false;
    *is_quiet = rsi_idle_all_sleep();
    uint64_t now = rsi_now_ns();
    rsi_sampling_begin_era();
    uint32_t polls = rsi_load_relaxed(&rsi_rt.poll_count);
    if (polls == watch_polls && !rsi_load_relaxed(&rsi_rt.polling))
        w->avoids_poller = false;
    watch_polls = polls;
    for (uint32_t i = 0; i < rsi_worker_count(); i++) {
        struct rsi_worker *other = rsi_rt.workers[i];
        uint64_t turns = rsi_load_relaxed(&other->turns);
        bool is_stuck = turns == other->watch_turns;
        other->watch_turns = turns;
        if (other == w)
            continue;
        *is_needed |= !rsi_load_relaxed(&other->is_idle) && has_followers(other, now);
        if (!is_stuck)
            *is_quiet = false;
        else {
            found = look_at_timers(w, other, now) || found;
            *is_quiet = !look_at_ring(other) && *is_quiet;
        }
        found = look_at_queue(w, other, is_stuck) || found;
    }
    return found || rsi_worker_has_work(w);
}

void rsi_watch_begin(struct rsi_worker *w)
{
    uint32_t free = 0;
    if (w->is_watcher || rsi_idle_all_sleep() ||
        !rsi_cas_acquire(&rsi_rt.watching, &free, 1u)) /* pairs with rsi_watch_end: watch_turns */
        return;
    w->is_watcher = true;
    w->watch_period_ns = WATCH_MIN_NS;
    w->watch_at_ns = rsi_now_ns() + WATCH_MIN_NS;
    watch_polls = rsi_load_relaxed(&rsi_rt.poll_count);
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        rsi_rt.workers[i]->watch_turns = rsi_load_relaxed(&rsi_rt.workers[i]->turns);
}

void rsi_watch_end(struct rsi_worker *w)
{
    if (!w->is_watcher)
        return;
    w->is_watcher = false;
    rsi_store_release(&rsi_rt.watching, 0u);
}

/* Look, if w is the watcher and a look is due. True: there is work. */
bool rsi_watch_if_due(struct rsi_worker *w)
{
    bool is_quiet, is_needed;
    if (!w->is_watcher || rsi_now_ns() < w->watch_at_ns)
        return false;
    if (look(w, &is_quiet, &is_needed)) {
        w->watch_period_ns = WATCH_MIN_NS;
        return true;
    }
    if (is_quiet && w->watch_period_ns == WATCH_MAX_NS) {
        rsi_watch_end(w);
        /*
         * Before rsi_watch_begin looks again: either it sees a worker that leaves the list now, or that
         * worker sees no watcher.
         */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return false;
    }
    uint64_t most = is_needed ? WATCH_SOON_NS : WATCH_MAX_NS;
    w->watch_period_ns = w->watch_period_ns * 2 < most ? w->watch_period_ns * 2 : most;
    w->watch_at_ns = rsi_now_ns() + w->watch_period_ns;
    return false;
}
