/* SPDX-License-Identifier: MIT */
/*
 * idle.c - workers out of work: searching, sleeping, watching, being woken.
 *
 * Invariant: no runnable thread stays queued while every worker of its cluster sleeps.
 *   submit:  S1 push (section or inbox);      F1 light fence;  S2 load takers, searching
 *   sleep:   W1 join the idle list, searching -= 1;  F2 heavy fence;  W2 look at all queues again
 * F1 and F2 order push against load and joining against looking: S2 sees the sleeper or W2 sees the
 * push. Model: tests/model/idle.pml, which fails without either. It is a cluster's: who pushes from outside of
 * it, be it a kernel thread or a worker of another cluster, does so by a seq_cst exchange, a full fence of its
 * own. When every other worker of the cluster is asleep there is nobody whose light fence needs the heavy
 * one: a full fence will do, and the last worker to fall asleep saves the system call. (A worker that wakes
 * meanwhile leaves the list under idle_guard, after W1, and sees it.)
 *
 * Where threads go to the shortest queue nobody takes over, so takers is 0: whoever pushes wakes the worker
 * that it pushed to, if that is asleep, and W2 looks at the worker's own queue alone. Fences as above.
 *
 * A wake-up of a halted CPU costs more than most threads' turns. So one ready thread in the next slot
 * of a worker that is about to park wakes nobody. What if that worker does not park but computes? One
 * idle worker, of whatever cluster, is the watcher: watch.c.
 *
 * searching counts workers that are awake for work and have none yet, those just woken included. While
 * there is one nobody else is woken; the one that finds work as the last searcher wakes the next if
 * there is more. Who was woken in vain and then finds a thread in its inbox has found work too: one that
 * ran threads and stayed counted would keep all others asleep.
 *
 * The poller. One worker at a time polls, for all clusters. Idle workers sleep in it if they can have it;
 * busy ones look at it from time to time. One that runs out while others run looks before it searches: what
 * threads have just sent to each other is often there by then, and is its own to run. What a worker of A polls
 * for B costs a second wake-up, so that one whose poll was of use to others alone leaves the poller to those,
 * as long as somebody runs. So the last to fall asleep polls; and while somebody runs there is a watcher, which
 * has the poller if it finds that nobody has polled since its last look.
 */
#include "core/queue_lock.h"

#define SEARCH_ROUNDS 16
#define SEARCH_PAUSES 32

static void count_locked(struct rouse_cluster *cluster, uint32_t idle_count)
{
    rsi_store_relaxed(&cluster->idle_count, idle_count);
    rsi_store_relaxed(&cluster->takers, cluster->is_shortest ? 0 : idle_count);
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

/* The one to wake: preferred if it is idle, and rather not the one in the poller. */
static struct rsi_worker *idle_choose_locked(const struct rouse_cluster *cluster,
                                             const struct rsi_worker *self,
                                             struct rsi_worker *preferred)
{
    struct rsi_worker *chosen = NULL;
    /*
     * Which cluster first: what it was in another one does not count, and only in this one does the guard keep it
     * idle. Acquire pairs with reset: it was idle no more in the other.
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
 * Wake one idle worker. Not the calling one, which is listed while it publishes what a poll or its timers
 * brought: it is awake and will look at its queue. exactly: preferred or none.
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
    if (is_polling)
        rsi_load_acquire(&rsi_rt.poller)->interrupt();
    else
        rsi_futex_wake(&w->wake_word, 1);
}

void rsi_idle_wake_one(struct rouse_cluster *cluster, struct rsi_worker *preferred)
{
    wake(cluster, preferred, false);
}

/* Wake w and no other, if it sleeps. F1: it is seen asleep, or it sees why it was to be woken. */
void rsi_idle_wake_worker(struct rsi_worker *w)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (rsi_load_relaxed(&w->is_idle))
        wake(rsi_load_relaxed(&w->cluster), w, true);
}

/* After a push to w's inbox. */
void rsi_idle_wake_for(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = rsi_load_relaxed(&w->cluster);
    if (rsi_load_relaxed(&cluster->is_shortest)) {
        rsi_idle_wake_worker(w);
        return;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* F1, for who is none of the cluster: see above */
    if (rsi_load_relaxed(&cluster->takers) == 0 || rsi_load_relaxed(&cluster->searching) != 0)
        return;
    wake(cluster, w, false);
}

/* Some idle worker of the cluster, which may be idle no more when this returns; or NULL. */
struct rsi_worker *rsi_idle_peek(struct rouse_cluster *cluster)
{
    rsi_guard_lock(&cluster->idle_guard);
    struct rsi_worker *w = idle_choose_locked(cluster, NULL, NULL);
    rsi_guard_unlock(&cluster->idle_guard);
    return w;
}

/* All clusters, the one without threads last; NULL: there are no more. */
static struct rouse_cluster *cluster_at(uint32_t i)
{
    uint32_t count =
        rsi_load_acquire(&rsi_rt.cluster_count); /* pairs with cluster.c's find_locked */
    return i < count ? rsi_rt.clusters[i] : i == count ? &rsi_cluster_spare : NULL;
}

/* One idle worker, of first if that has one. */
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
 * w, which was idle, runs: somebody has to watch it, if there is an idle worker anywhere. One who searches
 * will, when it falls asleep. The fence: the watcher that resigns sees that w runs, or this sees no watcher.
 */
static void see_to_watcher(struct rsi_worker *w)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (rsi_load_relaxed(&rsi_rt.watching) == 0 && rsi_load_relaxed(&rsi_rt.idle_count) != 0 &&
        rsi_load_relaxed(&w->cluster->searching) == 0)
        wake_somewhere(w->cluster);
}

/* The first with work, from a random one on; or, where a thief takes only one thread, the longest queue. */
static struct rsi_worker *victim_choose(struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint32_t count = rsi_load_relaxed(&cluster->slot_count), longest = 0;
    uint32_t at = (uint32_t)(rsi_random_next(&w->random) % count);
    struct rsi_worker *victim = NULL;
    for (uint32_t i = 0; i < count; i++, at = at + 1 == count ? 0 : at + 1) {
        struct rsi_worker *other = rsi_load_acquire(&cluster->workers[at]); /* pairs with list */
        if (!other || other == w || !rsi_worker_has_work(other))
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

/* Whether w could find something to run. A worker is left alone with its own queue by those who take nothing. */
static bool anyone_has_work(const struct rsi_worker *w)
{
    const struct rouse_cluster *cluster = w->cluster;
    if (rsi_worker_has_work(w) || rsi_load_relaxed(&w->is_leaving) ||
        rsi_load_relaxed(&w->next_cluster))
        return true;
    for (uint32_t i = 0; !cluster->is_shortest && i < rsi_load_acquire(&cluster->slot_count); i++) {
        const struct rsi_worker *other =
            rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (other && rsi_worker_has_work(other))
            return true;
    }
    return false;
}

/*
 * A steal stops its victim for microseconds (the heavy fence). A thief whose loot did not last for long
 * lets more come together: where one thread creates others that end at once, it would stop the creator for
 * every few of them. It looks at its own queue only, for a look at another's is a cache miss there.
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

/* End the waits that are due; true: there was one, and w has work. */
static bool timers_run(struct rsi_worker *w)
{
    uint64_t next = rsi_load_relaxed(&w->timer_next_ns), now;
    if (next == UINT64_MAX || (now = rsi_now_ns()) < next)
        return false;
    rsi_queue_lock_enter(w);
    struct rouse_thread *due = rsi_timer_expire(w, now);
    rsi_queue_lock_leave(w);
    if (due)
        rsi_run_later_list(w, due);
    return due != NULL;
}

/* Whether events have come already. Not for a worker whose polls are of use to other clusters only. */
static bool poll_brings_work(struct rsi_worker *w)
{
    if (!rsi_load_acquire(&rsi_rt.poller) || w->avoids_poller)
        return false;
    rsi_poller_try();
    return rsi_worker_has_work(w);
}

/* Look for work while others run, until a deadline of w's own; true when w has some now. */
static bool search(struct rsi_worker *w)
{
    steal_pause(w);
    bool found = poll_brings_work(w);
    for (unsigned round = 0; !found && round < SEARCH_ROUNDS && !is_timer_due(w); round++) {
        found = rsi_worker_has_work(w) || steal_from_any(w);
        for (unsigned i = 0; !found && i < SEARCH_PAUSES; i++)
            rsi_cpu_relax();
    }
    return found || timers_run(w);
}

/*
 * w stops being a searcher because it has work. The last one wakes another if there is more, or if nobody
 * watches: what was submitted meanwhile relied on it.
 */
void rsi_idle_found(struct rsi_worker *w)
{
    w->is_searching = false;
    if (rsi_fetch_sub_seq_cst(&w->cluster->searching, 1u) != 1)
        return;
    rsi_idle_wake_if_useful(w, rsi_load_relaxed(&w->queue_length) <= 1);
    see_to_watcher(w);
}

static bool poll_role_take(const struct rsi_worker *w, const struct rsi_poller *poller)
{
    if (!poller || (w->avoids_poller && !rsi_idle_all_sleep()) ||
        rsi_exchange_acquire(&rsi_rt.polling, 1u) != 0)
        return false;
    rsi_store_relaxed(&rsi_rt.poll_count, rsi_rt.poll_count + 1);
    return true;
}

/* Sleep in the poller's set; whoever wakes w must interrupt it. */
static void sleep_in_set(struct rsi_worker *w, const struct rsi_poller *poller,
                         uint64_t deadline_ns)
{
    rsi_guard_lock(&w->cluster->idle_guard);
    w->is_polling = w->is_idle;
    rsi_guard_unlock(&w->cluster->idle_guard);
    if (!w->is_polling) /* woken meanwhile, by futex: do not block */
        return;
    poller->poll(deadline_ns);
    rsi_guard_lock(&w->cluster->idle_guard);
    w->is_polling = false;
    rsi_guard_unlock(&w->cluster->idle_guard);
}

/* Block until woken, until something finished in the poller, or until deadline_ns. */
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

/* Back among the living; somebody who woke w has done most of it. */
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
    see_to_watcher(w);
}

/*
 * A kernel thread has ended, and may have been the last that did not wait for another: nobody else falls
 * asleep to notice it. One worker does, once more.
 */
void rsi_idle_look_again(void)
{
    if (rsi_load_seq_cst(&rsi_rt.kernel_parked) == rsi_load_seq_cst(&rsi_rt.kernel_known) &&
        rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_live_count())
        rsi_idle_wake_any();
}

/* Hand over what w has collected for its poller before it looks for work elsewhere. */
static bool collected_brings_work(struct rsi_worker *w)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    rsi_mail_take(w);
    if (!poller || !poller->turn)
        return false;
    poller->turn(false);
    return rsi_worker_has_work(w);
}

/* Return when there is, or may be, something to run on w. */
void rsi_idle_wait(struct rsi_worker *w)
{
    struct rsi_quiet quiet = { 0, 0 };
    struct rouse_cluster *cluster = w->cluster;
    if (collected_brings_work(w))
        return;
    bool others_run = rsi_load_relaxed(&cluster->idle_count) + 1 <
                      rsi_load_relaxed(&cluster->worker_count);
    /* Its own next thread is about to come: not worth telling anyone, or looking elsewhere. */
    if (!w->is_searching &&
        (timers_run(w) || (rsi_sleep_lead_spin(w) && (timers_run(w) || rsi_worker_has_work(w)))))
        return;
    if (others_run && !w->is_searching) {
        if (poll_brings_work(w))
            return;
        w->is_searching = true;
        rsi_fetch_add_seq_cst(&cluster->searching, 1u);
    }
    if (others_run && search(w)) {
        rsi_idle_found(w);
        return;
    }
    idle_join(w);
    while (!rsi_load_acquire(&w->wake_word)) {
        timers_run(w);
        if (anyone_has_work(w) || rsi_load_relaxed(&w->mail) || rsi_watch_if_due(w)) /* W2 */
            break;
        if (rsi_sleep_lead_spin(w))
            continue;
        rsi_watch_begin(w);
        uint64_t deadline = rsi_sleep_lead_deadline(w, rsi_load_relaxed(&w->timer_next_ns));
        if (w->is_watcher && w->watch_at_ns < deadline)
            deadline = w->watch_at_ns;
        if (deadline == UINT64_MAX && rsi_idle_all_sleep())
            deadline = rsi_obs_all_wait(&quiet);
        sleep_once(w, deadline);
        rsi_sleep_lead_ended(w, deadline);
    }
    idle_leave(w);
    w->look_ns = rsi_now_ns();
    rsi_worker_polled(w, w->look_ns);
    if (!w->is_searching)
        return;
    if (rsi_worker_has_work(w) || steal_from_any(w))
        rsi_idle_found(w);
    rsi_test_delay();
}

/* In a child after fork: whoever slept is gone. */
void rsi_idle_child(void)
{
    rsi_rt.idle_count = rsi_rt.watching = rsi_rt.polling = 0;
    struct rouse_cluster *cluster;
    for (uint32_t i = 0; (cluster = cluster_at(i)) != NULL; i++) {
        cluster->takers = cluster->searching = cluster->idle_count = cluster->idle_guard = 0;
        cluster->idle_first = NULL;
    }
}
