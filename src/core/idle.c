/* SPDX-License-Identifier: MIT */
/*
 * idle.c - how an idle worker sleeps, and who wakes it.
 *
 * A worker without work goes through rsi_idle_wait: it searches other queues, joins its cluster's idle list,
 * looks once more, and sleeps in the poller or on its wake_word. A thread that makes work runnable wakes one
 * idle worker through rsi_idle_wake_if_useful (idle.h), rsi_idle_wake_for or rsi_idle_wake_one; all end in
 * wake() below.
 *
 * Invariant: no runnable thread stays queued while every worker of its cluster sleeps.
 *   submit:  S1 push (queue or inbox);        F1 light fence;  S2 load stealers, searching
 *   sleep:   W1 join the idle list, searching -= 1;  F2 heavy fence;  W2 look at all queues again
 * F1 and F2 order the push against the load and the joining against the look: S2 sees the sleeper or W2 sees
 * the push. Models: tests/model/idle.pml and weak_idle.pml, which fail without either. This holds per cluster. A
 * thread outside the cluster, on a kernel thread or on a worker of another cluster, has a full fence as F1: its push is
 * a compare-and-swap, but on AArch64 S2 may come before that is visible. When every other worker of the cluster is
 * asleep, no light fence needs the heavy one: a full fence is enough, and the last worker to fall asleep saves the
 * system call. (A worker that wakes in the meantime leaves the list under idle_guard, after W1, and sees it.)
 *
 * In a cluster that places threads in the shortest queue, no worker steals, so stealers is 0. A push then wakes the
 * worker that it pushed to, if that is asleep, and W2 looks only at the worker's own queue. The fences are the same.
 *
 * A wake-up of a halted CPU costs more than most threads' turns. So a queue that its worker will have run by then wakes
 * nobody, and nobody steals from it: share.h. In case that worker computes instead, one idle worker of the process, the
 * watcher, looks after it: watch.c.
 *
 * searching counts workers that are awake to find work and have none yet, including those just woken. While there are
 * enough (rsi_idle_is_searched: with fewer than 8 workers, one), nobody else is woken. A searcher that finds work and
 * leaves too few behind wakes the next worker if there is more.
 * A worker whose wake-up was spurious and that then finds a thread in its inbox has found work too: if it ran
 * threads and stayed counted, it would keep all others asleep.
 *
 * I/O. One worker at a time, the polling worker, calls the poller (poller.h), for all clusters. An idle worker
 * sleeps in the poller's poll if no other worker polls. Busy workers poll from time to time, without blocking. A
 * worker that runs out of work while others run polls before it searches: what threads have just sent to each other
 * has often arrived, and belongs to this worker. If a worker of cluster A polls events for B, B needs a second
 * wake-up. So a worker whose last poll only found work for other clusters leaves polling to those while any worker
 * runs. The last worker to fall asleep polls in any case. While a worker runs, there is a watcher, and it becomes the
 * polling worker if nobody has polled since its last look.
 */
#include "core/idle_timers.h"
#include "core/queue_lock.h"

#define SEARCH_ROUNDS 16
#define SEARCH_PAUSES 32

static void count_locked(struct rouse_cluster *cluster, uint32_t idle_count)
{
    rsi_store_relaxed(&cluster->idle_count, idle_count);
    rsi_store_relaxed(&cluster->stealers, cluster->is_shortest ? 0 : idle_count);
}

static void idle_unlink_locked(struct rouse_cluster *cluster, struct rsi_worker *w)
{
    struct rsi_worker **link = &cluster->idle_first;
    while (*link != w)
        link = &(*link)->idle_link;
    *link = w->idle_link;
    rsi_store_relaxed(&w->is_idle, false);
    count_locked(cluster, cluster->idle_count - 1);
    rsi_fetch_sub_seq_cst(&rsi_rt.idle_count, 1u);
}

/* Choose the worker to wake: preferred if it is idle, otherwise, if possible, one that does not poll. */
static struct rsi_worker *idle_choose_locked(const struct rouse_cluster *cluster,
                                             const struct rsi_worker *self,
                                             struct rsi_worker *preferred)
{
    struct rsi_worker *chosen = NULL;
    /*
     * Check the cluster first: the guard that the caller holds protects is_idle of this cluster's workers only. The
     * acquire pairs with enter in workers.c: a worker that has moved here is no longer idle in its former cluster.
     */
    if (preferred && rsi_load_acquire(&preferred->cluster) == cluster &&
        rsi_load_relaxed(&preferred->is_idle))
        return preferred;
    for (struct rsi_worker *w = cluster->idle_first; w && (!chosen || chosen->is_polling);
         w = w->idle_link)
        if (w != self)
            chosen = w;
    return chosen;
}

/*
 * Wake one idle worker, but not the calling one: it is listed while it publishes what a poll or its timers
 * found, but it is awake and will look at its queue. exactly: wake preferred or nobody.
 */
static RSI_NOINLINE void wake(struct rouse_cluster *cluster, struct rsi_worker *preferred,
                              bool exactly)
{
    const struct rsi_worker *self = rsi_exec_self()->worker;
    rsi_guard_lock(&cluster->idle_guard);
    struct rsi_worker *w = idle_choose_locked(cluster, self, preferred);
    if (exactly && (w != preferred || w == self))
        w = NULL;
    bool is_polling = false;
    if (w) {
        is_polling = w->is_polling;
        idle_unlink_locked(cluster, w);
        rsi_fetch_add_seq_cst(&cluster->searching, 1u);
        rsi_store_release(&w->wake_word, 1u); /* pairs with the acquire in sleep_once */
    }
    bool is_last = cluster->idle_count == 0;
    rsi_guard_unlock(&cluster->idle_guard);
    if (!w)
        return;
    if (is_last)
        rsi_monitor_wake();
    uint64_t begin = rsi_now_ns();
    if (is_polling)
        rsi_load_acquire(&rsi_rt.poller)->interrupt();
    else
        rsi_futex_wake(&w->wake_word, 1);
    rsi_share_measure_wake(rsi_now_ns() - begin);
}

void rsi_idle_wake_one(struct rouse_cluster *cluster, struct rsi_worker *preferred)
{
    wake(cluster, preferred, false);
}

/*
 * Wake w, and no other worker, if it sleeps. F1: either this sees it asleep, or it sees the reason to wake.
 */
void rsi_idle_wake_worker(struct rsi_worker *w)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (rsi_load_relaxed(&w->is_idle))
        wake(rsi_load_relaxed(&w->cluster), w, true);
}

/* Call this after a push to w's inbox. */
void rsi_idle_wake_for(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = rsi_load_relaxed(&w->cluster);
    if (rsi_load_relaxed(&cluster->is_shortest)) {
        rsi_idle_wake_worker(w);
        return;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* F1, for callers outside the cluster: see above */
    if (rsi_load_relaxed(&cluster->stealers) == 0 || rsi_idle_is_searched(cluster))
        return;
    wake(cluster, w, false);
}

/* Some idle worker of the cluster, or NULL. It may no longer be idle when this returns. */
struct rsi_worker *rsi_idle_peek(struct rouse_cluster *cluster)
{
    rsi_guard_lock(&cluster->idle_guard);
    struct rsi_worker *w = idle_choose_locked(cluster, NULL, NULL);
    rsi_guard_unlock(&cluster->idle_guard);
    return w;
}

/* The i-th cluster. The last one is rsi_cluster_retired. NULL: there are no more. */
static struct rouse_cluster *cluster_at(uint32_t i)
{
    /* Pairs with cluster.c's find_locked. */
    uint32_t count = rsi_load_acquire(&rsi_rt.cluster_count);
    return i < count ? rsi_rt.clusters[i] : i == count ? &rsi_cluster_retired : NULL;
}

/* Wake one idle worker, preferably in first. */
static void wake_somewhere(struct rouse_cluster *first)
{
    struct rouse_cluster *cluster = first;
    for (uint32_t i = 0; cluster && rsi_load_relaxed(&cluster->idle_count) == 0; i++)
        cluster = cluster_at(i);
    if (cluster)
        wake(cluster, NULL, false);
}

void rsi_idle_wake_any(void)
{
    wake_somewhere(&rsi_cluster_default);
}

/*
 * w was idle and now runs. If there is no watcher, wake an idle worker to become it, unless a worker searches: that
 * one will do so when it falls asleep. The fence: either a resigning watcher sees that w runs, or this sees no
 * watcher.
 */
static void ensure_watcher(struct rsi_worker *w)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (rsi_load_relaxed(&rsi_rt.watching) == 0 && rsi_load_relaxed(&rsi_rt.idle_count) != 0 &&
        rsi_load_relaxed(&w->cluster->searching) == 0)
        wake_somewhere(w->cluster);
}

/* Whether other has threads that another worker should take. An inbox has no mean turn. */
static bool is_worth(const struct rsi_worker *other)
{
    return rsi_worker_has_work(other) &&
           (rsi_load_relaxed(&other->inbox) != NULL || !rsi_share_not(other));
}

/*
 * Choose whom to steal from: the first worker with work, starting at a random one. If a thief takes only one thread,
 * the worker with the longest queue instead.
 */
static struct rsi_worker *victim_choose(struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint32_t count = rsi_load_relaxed(&cluster->slot_count), longest = 0;
    uint32_t at = (uint32_t)(rsi_random_next(&w->random) % count);
    struct rsi_worker *victim = NULL;
    for (uint32_t i = 0; i < count; i++, at = at + 1 == count ? 0 : at + 1) {
        struct rsi_worker *other = rsi_load_acquire(&cluster->workers[at]); /* pairs with list */
        if (!other || other == w || !is_worth(other))
            continue;
        uint32_t length = rsi_load_relaxed(&other->queue_length);
        if (!victim || length > longest) {
            victim = other;
            longest = length;
        }
        if (cluster->steal_eighths != 0)
            break;
    }
    return victim;
}

static bool steal_from_any(struct rsi_worker *w)
{
    struct rsi_worker *victim = w->cluster->is_shortest ? NULL : victim_choose(w);
    if (!victim || !rsi_steal(w, victim, false))
        return false;
    w->steal_ns = rsi_now_ns();
    return true;
}

/* Whether w could find something to run. Where no worker steals, this is only its own queue. */
static bool anyone_has_work(const struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    if (rsi_worker_has_work(w) || rsi_load_relaxed(&w->is_leaving) ||
        rsi_load_relaxed(&w->next_cluster))
        return true;
    for (uint32_t i = 0; !cluster->is_shortest && i < rsi_load_acquire(&cluster->slot_count); i++) {
        /* Pairs with list. */
        const struct rsi_worker *other = rsi_load_acquire(&cluster->workers[i]);
        if (other && (other == w ? rsi_worker_has_work(w) : is_worth(other)))
            return true;
    }
    return false;
}

/*
 * A steal stops its victim for microseconds (the heavy fence). A thief that soon ran out of what it stole
 * lets more accumulate: if one thread creates others that end at once, the thief would stop the creator for
 * every few of them. It looks only at its own queue here, because a look at another worker's queue causes a
 * cache miss there.
 */
static void steal_pause(const struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint64_t end = w->steal_ns + cluster->steal_pause_ns;
    if (end > rsi_load_relaxed(&w->timer_next_ns))
        end = rsi_load_relaxed(&w->timer_next_ns);
    while (rsi_now_ns() < end && !rsi_worker_has_work(w) && !rsi_load_relaxed(&w->is_leaving))
        for (unsigned i = 0; i < SEARCH_PAUSES; i++)
            rsi_cpu_relax();
}

static bool is_timer_due(const struct rsi_worker *w)
{
    uint64_t next = rsi_load_relaxed(&w->timer_next_ns);
    return next != UINT64_MAX && rsi_now_ns() >= next;
}

/* End the waits that are due. True: there was one, and w has work. */
static bool timers_run(struct rsi_worker *w)
{
    uint64_t next = rsi_idle_timers_next(w), now;
    if (next == UINT64_MAX || (now = rsi_now_ns()) < next)
        return false;
    bool found = rsi_idle_timers_run(w, now);
    if (now < rsi_load_relaxed(&w->timer_next_ns))
        return found;
    rsi_queue_lock_enter(w);
    struct rouse_thread *due = rsi_timer_expire(w, now);
    rsi_queue_lock_leave(w);
    if (due)
        rsi_run_later_list(w, due);
    return found || due != NULL;
}

/* Poll. True: w has work. Not for a worker whose polls only find work for other clusters. */
static bool poll_brings_work(struct rsi_worker *w)
{
    if (!rsi_load_acquire(&rsi_rt.poller) || w->avoids_poller)
        return false;
    rsi_poller_try();
    return rsi_worker_has_work(w);
}

/*
 * Look for work while others run, until w's own next deadline. A search after one that found nothing is half as long. True:
 * w has some now.
 */
static bool search(struct rsi_worker *w)
{
    bool found = poll_brings_work(w);
    uint32_t rounds = w->search_rounds;
    for (unsigned round = 0; !found && round < rounds && !is_timer_due(w); round++) {
        found = rsi_worker_has_work(w) || steal_from_any(w);
        for (unsigned i = 0; !found && i < SEARCH_PAUSES; i++)
            rsi_cpu_relax();
    }
    w->search_rounds = found ? SEARCH_ROUNDS : rounds > 1 ? rounds / 2 : 1;
    return found || timers_run(w);
}

/*
 * w has found work and is no longer a searcher. If no more search than need to, w wakes another worker if there is more
 * work, and the last searcher also if nobody watches: threads submitted in the meantime relied on the searchers.
 */
void rsi_idle_found(struct rsi_worker *w)
{
    w->is_searching = false;
    uint32_t others = rsi_fetch_sub_seq_cst(&w->cluster->searching, 1u) - 1;
    if (others == 0 || !rsi_idle_is_searched(w->cluster))
        rsi_idle_wake_if_useful(w);
    if (others == 0)
        ensure_watcher(w);
}

/* Make w the polling worker, if there is none. */
static bool poll_role_take(const struct rsi_worker *w, const struct rsi_poller *poller)
{
    if (!poller || (w->avoids_poller && !rsi_idle_all_sleep()) ||
        rsi_exchange_acquire(&rsi_rt.polling, 1u) != 0)
        return false;
    rsi_store_relaxed(&rsi_rt.poll_count, rsi_rt.poll_count + 1);
    return true;
}

/* Sleep in the poller. A waker of w must interrupt the poll. */
static void sleep_in_set(struct rsi_worker *w, const struct rsi_poller *poller,
                         uint64_t deadline_ns)
{
    rsi_guard_lock(&w->cluster->idle_guard);
    w->is_polling = w->is_idle;
    rsi_guard_unlock(&w->cluster->idle_guard);
    if (!w->is_polling) /* already woken, by futex: do not block */
        return;
    poller->poll(deadline_ns);
    rsi_guard_lock(&w->cluster->idle_guard);
    w->is_polling = false;
    rsi_guard_unlock(&w->cluster->idle_guard);
}

/* Block until woken, until the poller has a finished wait, or until deadline_ns. */
static void sleep_once(struct rsi_worker *w, uint64_t deadline_ns)
{
    if (rsi_load_acquire(&w->wake_word))
        return;
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    uint32_t sent = w->sent;
    bool polls = poll_role_take(w, poller);
    if (poller && poller->sleep && poller->sleep(&w->wake_word, deadline_ns, polls))
        ;
    else if (polls)
        sleep_in_set(w, poller, deadline_ns);
    else
        rsi_futex_wait(&w->wake_word, 0, deadline_ns);
    if (!polls)
        return;
    rsi_store_release(&rsi_rt.polling, 0u);
    w->avoids_poller = w->sent != sent && !rsi_worker_has_work(w);
}

static void idle_join(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = w->cluster;
    rsi_guard_lock(&cluster->idle_guard);
    rsi_store_relaxed(&w->wake_word, 0u);
    rsi_store_relaxed(&w->is_idle, true);
    w->idle_link = cluster->idle_first;
    cluster->idle_first = w;
    uint32_t idle = cluster->idle_count + 1;
    count_locked(cluster, idle); /* W1 */
    rsi_fetch_add_seq_cst(&rsi_rt.idle_count, 1u);
    if (w->is_searching)
        rsi_fetch_sub_seq_cst(&cluster->searching, 1u);
    w->is_searching = false;
    rsi_guard_unlock(&cluster->idle_guard);
    if (idle < rsi_load_relaxed(&cluster->worker_count))
        rsi_fence_heavy(); /* F2 */
    else
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* w is awake again. If another worker woke it, that worker has already unlisted it and counted it as searching. */
static void idle_leave(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = w->cluster;
    rsi_guard_lock(&cluster->idle_guard);
    if (w->is_idle)
        idle_unlink_locked(cluster, w);
    else
        w->is_searching = true; /* counted by wake */
    bool is_last = cluster->idle_count == 0;
    rsi_guard_unlock(&cluster->idle_guard);
    if (is_last)
        rsi_monitor_wake();
    rsi_watch_end(w);
    ensure_watcher(w);
}

/*
 * A kernel thread has ended. It may have been the last that did not wait for another thread, and no worker
 * falls asleep now to notice the deadlock. So wake one worker, which looks once more before it sleeps.
 */
void rsi_idle_look_again(void)
{
    if (rsi_load_seq_cst(&rsi_rt.kernel_parked) == rsi_load_seq_cst(&rsi_rt.kernel_known) &&
        rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_live_count())
        rsi_idle_wake_any();
}

/* Submit the operations that w has collected for the poller before it looks for work elsewhere. True: w has work. */
static bool collected_brings_work(struct rsi_worker *w)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    rsi_mail_take(w);
    if (!poller || !poller->round)
        return false;
    poller->round(false);
    return rsi_worker_has_work(w);
}

/* Return when w has something to run, or may have. */
void rsi_idle_wait(struct rsi_worker *w)
{
    struct rsi_quiet quiet = { 0, 0 };
    struct rouse_cluster *cluster = w->cluster;
    if (collected_brings_work(w))
        return;
    bool others_run = rsi_load_relaxed(&cluster->idle_count) + 1 <
                      rsi_load_relaxed(&cluster->worker_count);
    /* Its own next thread is due soon: not worth waking anyone or searching elsewhere. */
    if (!w->is_searching && (timers_run(w) || (!(others_run && rsi_idle_timers_kept_until(w)) &&
                                               rsi_sleep_lead_spin(w, rsi_idle_timers_next(w)) &&
                                               (timers_run(w) || rsi_worker_has_work(w)))))
        return;
    if (others_run && !w->is_searching) {
        if (poll_brings_work(w))
            return;
        w->is_searching = true;
        rsi_fetch_add_seq_cst(&cluster->searching, 1u);
    }
    if (others_run)
        steal_pause(w);
    uint64_t begin = rsi_now_ns();
    if (others_run && search(w)) {
        rsi_idle_found(w);
        return;
    }
    idle_join(w);
    uint64_t searched_ns = rsi_now_ns() - begin;
    while (!rsi_load_acquire(&w->wake_word)) {
        timers_run(w);
        if (anyone_has_work(w) || rsi_load_relaxed(&w->mail) || rsi_watch_if_due(w)) /* W2 */
            break;
        uint64_t deadline = rsi_idle_timers_kept_until(w);
        if (deadline != 0)
            rsi_idle_timers_offer(cluster, rsi_load_relaxed(&w->timer_next_ns));
        else if (rsi_sleep_lead_spin(w, rsi_idle_timers_next(w)))
            continue;
        else
            deadline = rsi_sleep_lead_deadline(w, rsi_idle_timers_next(w));
        rsi_watch_begin(w);
        if (w->is_watcher && w->watch_at_ns < deadline)
            deadline = w->watch_at_ns;
        if (deadline == UINT64_MAX && rsi_idle_all_sleep())
            deadline = rsi_obs_all_wait(&quiet);
        sleep_once(w, deadline);
        rsi_sleep_lead_ended(w, deadline);
    }
    idle_leave(w);
    w->look_ns = rsi_now_ns();
    w->look_turn = w->turns;
    rsi_worker_polled(w, w->look_ns);
    if (!w->is_searching)
        return;
    if (rsi_worker_has_work(w) || steal_from_any(w))
        rsi_idle_found(w);
    rsi_share_measure_search(searched_ns + rsi_now_ns() - w->look_ns);
    rsi_test_delay();
}

/* In a child after fork the sleeping workers do not exist. */
void rsi_idle_child(void)
{
    rsi_rt.idle_count = rsi_rt.watching = rsi_rt.polling = 0;
    struct rouse_cluster *cluster;
    for (uint32_t i = 0; (cluster = cluster_at(i)) != NULL; i++) {
        cluster->stealers = cluster->searching = cluster->idle_count = cluster->idle_guard = 0;
        cluster->idle_first = NULL;
        cluster->idle_timer_ns = UINT64_MAX;
    }
}
