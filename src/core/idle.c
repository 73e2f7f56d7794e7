/* SPDX-License-Identifier: MIT */
/*
 * idle.c - workers out of work: searching, sleeping, watching, being woken.
 *
 * Invariant: no runnable thread stays queued while every worker sleeps.
 *   submit:  S1 push (section or inbox);      F1 light fence;  S2 load idle_count, searching
 *   sleep:   W1 join the idle list, searching -= 1;  F2 heavy fence;  W2 look at all queues again
 * F1 and F2 order push against load and joining against looking: S2 sees the sleeper or W2 sees the
 * push. Model: tests/model/idle.pml, which fails without either. When every other worker is asleep
 * there is nobody whose light fence needs the heavy one: a full fence will do, and the last worker to
 * fall asleep saves the system call. (A worker that wakes meanwhile leaves the list under idle_guard,
 * after W1, and sees it. Kernel threads push by a seq_cst exchange, a full fence of their own.)
 *
 * A wake-up of a halted CPU costs more than most threads' turns. So one ready thread in the next slot
 * of a worker that is about to park wakes nobody. What if that worker does not park but computes? One
 * idle worker is the watcher: it sleeps with a time-out while others run, and takes what has not moved
 * since it looked last, from queues, next slots and the poller. Its period doubles from WATCH_MIN_NS to
 * WATCH_MAX_NS while it finds nothing, and it falls asleep for good after a period without a turn
 * anywhere: an idle process makes no system call.
 *
 * searching counts workers that are awake for work and have none yet, those just woken included. While
 * there is one nobody else is woken; the one that finds work as the last searcher wakes the next if
 * there is more. Who was woken in vain and then finds a thread in its inbox has found work too: one that
 * ran threads and stayed counted would keep all others asleep.
 */
#include "core/section.h"

#define SEARCH_ROUNDS 16
#define SEARCH_PAUSES 32
#define STEAL_EVERY_NS 20000
#define WATCH_MIN_NS 200000
#define WATCH_MAX_NS 10000000

static uint64_t
    watch_turns[RSI_WORKERS_MAX]; /* the watcher's memory; handed on with rsi_rt.watching */

static bool has_work(const struct rsi_worker *w)
{
    return rsi_load_relaxed(&w->queue_length) != 0 || rsi_load_relaxed(&w->inbox) != NULL;
}

static void idle_unlink_locked(struct rsi_worker *w)
{
    struct rsi_worker **link = &rsi_rt.idle_first;
    while (*link != w)
        link = &(*link)->idle_link;
    *link = w->idle_link;
    w->is_idle = false;
    rsi_fetch_sub_seq_cst(&rsi_rt.idle_count, 1u);
}

/* The one to wake: preferred if it is idle, and rather not the one in the poller. */
static struct rsi_worker *idle_choose_locked(const struct rsi_worker *self,
                                             struct rsi_worker *preferred)
{
    struct rsi_worker *chosen = NULL;
    if (preferred && preferred->is_idle)
        return preferred;
    for (struct rsi_worker *w = rsi_rt.idle_first; w && (!chosen || chosen->is_polling);
         w = w->idle_link)
        if (w != self)
            chosen = w;
    return chosen;
}

/*
 * Wake one idle worker. Not the calling one, which is listed while it publishes what a poll or its timers
 * brought: it is awake and will look at its queue.
 */
RSI_NOINLINE void rsi_idle_wake_one(struct rsi_worker *preferred)
{
    const struct rsi_worker *self = rsi_exec_self()->worker;
    rsi_guard_lock(&rsi_rt.idle_guard);
    struct rsi_worker *w = idle_choose_locked(self, preferred);
    bool is_polling = false;
    if (w) {
        is_polling = w->is_polling;
        idle_unlink_locked(w);
        rsi_fetch_add_seq_cst(&rsi_rt.searching, 1u);
        rsi_store_release(&w->wake_word, 1u); /* pairs with the acquire in sleep_once */
    }
    rsi_guard_unlock(&rsi_rt.idle_guard);
    if (!w)
        return;
    if (is_polling)
        rsi_load_acquire(&rsi_rt.poller)->interrupt();
    else
        rsi_futex_wake(&w->wake_word, 1);
}

/* Wake w and no other, if it sleeps. */
void rsi_idle_wake_worker(struct rsi_worker *w)
{
    /* Under idle_guard it is seen asleep, or it joins the list later and then sees why it was to be woken. */
    rsi_guard_lock(&rsi_rt.idle_guard);
    bool is_idle = w->is_idle;
    rsi_guard_unlock(&rsi_rt.idle_guard);
    if (is_idle)
        rsi_idle_wake_one(w);
}

void rsi_idle_wake_for(struct rsi_worker *w)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* F1, for kernel threads: see above */
    if (rsi_load_relaxed(&rsi_rt.idle_count) == 0 || rsi_load_relaxed(&rsi_rt.searching) != 0)
        return;
    rsi_idle_wake_one(w);
}

static bool steal_from_all(struct rsi_worker *w)
{
    uint32_t count = rsi_worker_count();
    uint32_t at = (uint32_t)(rsi_random_next(&w->random) % count);
    for (uint32_t i = 0; i < count; i++, at = at + 1 == count ? 0 : at + 1) {
        struct rsi_worker *victim = rsi_rt.workers[at];
        if (victim != w && has_work(victim) && rsi_steal(w, victim, false)) {
            w->steal_ns = rsi_now_ns();
            return true;
        }
    }
    return false;
}

static bool anyone_has_work(void)
{
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        if (has_work(rsi_rt.workers[i]))
            return true;
    return false;
}

/*
 * A steal stops its victim for microseconds (the heavy fence). A thief whose loot did not last for long
 * lets more come together: where one thread creates others that end at once, it would stop the creator for
 * every few of them. It looks at its own queue only, for a look at another's is a cache miss there.
 */
static void steal_pause(const struct rsi_worker *w)
{
    while (rsi_now_ns() - w->steal_ns < STEAL_EVERY_NS && !has_work(w))
        for (unsigned i = 0; i < SEARCH_PAUSES; i++)
            rsi_cpu_relax();
}

/* Look for work while others run; true when w has some now. */
static bool search(struct rsi_worker *w)
{
    bool found = false;
    steal_pause(w);
    for (unsigned round = 0; !found && round < SEARCH_ROUNDS; round++) {
        found = has_work(w) || steal_from_all(w);
        for (unsigned i = 0; !found && i < SEARCH_PAUSES; i++)
            rsi_cpu_relax();
    }
    return found;
}

/*
 * w stops being a searcher because it has work. The last one wakes another if there is more, or if nobody
 * watches: what was submitted meanwhile relied on it.
 */
void rsi_idle_found(struct rsi_worker *w)
{
    w->is_searching = false;
    if (rsi_fetch_sub_seq_cst(&rsi_rt.searching, 1u) == 1)
        rsi_idle_wake_if_useful(rsi_load_relaxed(&w->queue_length) <= 1);
}

static bool poll_role_take(const struct rsi_poller *poller)
{
    return poller && rsi_exchange_acquire(&rsi_rt.polling, 1u) == 0;
}

/* Sleep in the poller's set; whoever wakes w must interrupt it. */
static void sleep_in_set(struct rsi_worker *w, const struct rsi_poller *poller,
                         uint64_t deadline_ns)
{
    rsi_guard_lock(&rsi_rt.idle_guard);
    w->is_polling = w->is_idle;
    rsi_guard_unlock(&rsi_rt.idle_guard);
    if (!w->is_polling) /* woken meanwhile, by futex: do not block */
        return;
    poller->poll(deadline_ns);
    rsi_guard_lock(&rsi_rt.idle_guard);
    w->is_polling = false;
    rsi_guard_unlock(&rsi_rt.idle_guard);
}

/* Block until woken, until something finished in the poller, or until deadline_ns. */
static void sleep_once(struct rsi_worker *w, uint64_t deadline_ns)
{
    if (rsi_load_acquire(&w->wake_word))
        return;
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    bool polls = poll_role_take(poller);
    if (poller && poller->sleep && poller->sleep(&w->wake_word, deadline_ns, polls))
        ;
    else if (polls)
        sleep_in_set(w, poller, deadline_ns);
    else
        rsi_futex_wait(&w->wake_word, 0, deadline_ns);
    if (polls)
        rsi_store_release(&rsi_rt.polling, 0u);
}

/* One look of the watcher. True: w has work now. *is_quiet: nothing happened since the last look. */
static bool watch(struct rsi_worker *w, bool *is_quiet)
{
    bool found = false;
    *is_quiet = rsi_load_relaxed(&rsi_rt.idle_count) == rsi_worker_count();
    uint64_t now = rsi_now_ns();
    for (uint32_t i = 0; i < rsi_worker_count(); i++) {
        struct rsi_worker *other = rsi_rt.workers[i];
        uint64_t turns = rsi_load_relaxed(&other->turns);
        bool is_stuck = turns == watch_turns[i];
        watch_turns[i] = turns;
        if (other == w)
            continue;
        if (!is_stuck)
            *is_quiet = false;
        else if (now >= rsi_load_relaxed(&other->timer_next_ns) && rsi_section_enter_thief(other)) {
            struct rouse_thread *due = rsi_timer_expire(other, now);
            rsi_section_leave_thief(other);
            if (due)
                rsi_run_later_list(w, due);
            found = found || due;
        }
        if (has_work(other) || (is_stuck && rsi_load_relaxed(&other->next)))
            found = rsi_steal(w, other, is_stuck) || found;
    }
    return found;
}

static void watch_begin(struct rsi_worker *w)
{
    uint32_t free = 0;
    if (w->is_watcher || rsi_load_relaxed(&rsi_rt.idle_count) == rsi_worker_count() ||
        !rsi_cas_acquire(&rsi_rt.watching, &free, 1u)) /* pairs with watch_end: watch_turns */
        return;
    w->is_watcher = true;
    w->watch_period_ns = WATCH_MIN_NS;
    w->watch_at_ns = rsi_now_ns() + WATCH_MIN_NS;
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        watch_turns[i] = rsi_load_relaxed(&rsi_rt.workers[i]->turns);
}

static void watch_end(struct rsi_worker *w)
{
    if (!w->is_watcher)
        return;
    w->is_watcher = false;
    rsi_store_release(&rsi_rt.watching, 0u);
}

/* The watcher's due look; true: there is work. */
static bool watch_if_due(struct rsi_worker *w)
{
    bool is_quiet;
    if (!w->is_watcher || rsi_now_ns() < w->watch_at_ns)
        return false;
    if (watch(w, &is_quiet)) {
        w->watch_period_ns = WATCH_MIN_NS;
        return true;
    }
    if (is_quiet && w->watch_period_ns == WATCH_MAX_NS) {
        watch_end(w);
        /* Before watch_begin looks again: it sees who leaves the list now, or that one sees no watcher. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return false;
    }
    w->watch_period_ns = w->watch_period_ns * 2 < WATCH_MAX_NS ? w->watch_period_ns * 2
                                                               : WATCH_MAX_NS;
    w->watch_at_ns = rsi_now_ns() + w->watch_period_ns;
    return false;
}

static void idle_join(struct rsi_worker *w)
{
    rsi_guard_lock(&rsi_rt.idle_guard);
    rsi_store_relaxed(&w->wake_word, 0u);
    w->is_idle = true;
    w->idle_link = rsi_rt.idle_first;
    rsi_rt.idle_first = w;
    uint32_t idle = rsi_fetch_add_seq_cst(&rsi_rt.idle_count, 1u) + 1; /* W1 */
    if (w->is_searching)
        rsi_fetch_sub_seq_cst(&rsi_rt.searching, 1u);
    w->is_searching = false;
    rsi_guard_unlock(&rsi_rt.idle_guard);
    if (idle < rsi_worker_count())
        rsi_fence_heavy(); /* F2 */
    else
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Back among the living; somebody who woke w has done most of it. */
static void idle_leave(struct rsi_worker *w)
{
    rsi_guard_lock(&rsi_rt.idle_guard);
    if (w->is_idle)
        idle_unlink_locked(w);
    else
        w->is_searching = true; /* counted by wake_one */
    rsi_guard_unlock(&rsi_rt.idle_guard);
    bool was_watcher = w->is_watcher;
    watch_end(w);
    /* Somebody has to watch w, from now on. */
    if (was_watcher || rsi_load_relaxed(&rsi_rt.watching) == 0)
        rsi_idle_wake_if_useful(true);
}

/* End the waits that are due; true: there was one, and w has work. */
static bool timers_run(struct rsi_worker *w)
{
    uint64_t next = rsi_load_relaxed(&w->timer_next_ns), now;
    if (next == UINT64_MAX || (now = rsi_now_ns()) < next)
        return false;
    rsi_section_enter(w);
    struct rouse_thread *due = rsi_timer_expire(w, now);
    rsi_section_leave(w);
    if (due)
        rsi_run_later_list(w, due);
    return due != NULL;
}

/*
 * A kernel thread has ended, and may have been the last that did not wait for another: nobody else falls
 * asleep to notice it. One worker does, once more.
 */
void rsi_idle_look_again(void)
{
    if (rsi_load_seq_cst(&rsi_rt.kernel_parked) == rsi_load_seq_cst(&rsi_rt.kernel_known) &&
        rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_count())
        rsi_idle_wake_one(NULL);
}

/* Hand over what w has collected for its poller before it looks for work elsewhere. */
static bool collected_brings_work(struct rsi_worker *w)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    rsi_mail_take(w);
    if (!poller || !poller->turn)
        return false;
    poller->turn(false);
    return has_work(w);
}

/* Return when there is, or may be, something to run on w. */
void rsi_idle_wait(struct rsi_worker *w)
{
    struct rsi_quiet quiet = { 0, 0 };
    if (collected_brings_work(w))
        return;
    bool others_run = rsi_load_relaxed(&rsi_rt.idle_count) + 1 < rsi_worker_count();
    /* Its own next thread is about to come: not worth telling anyone, or looking elsewhere. */
    if (!w->is_searching && (timers_run(w) || (rsi_nap_awake(w) && (timers_run(w) || has_work(w)))))
        return;
    if (others_run && !w->is_searching) {
        w->is_searching = true;
        rsi_fetch_add_seq_cst(&rsi_rt.searching, 1u);
    }
    if (others_run && search(w)) {
        rsi_idle_found(w);
        return;
    }
    idle_join(w);
    while (!rsi_load_acquire(&w->wake_word)) {
        timers_run(w);
        if (anyone_has_work() || rsi_load_relaxed(&w->mail) || watch_if_due(w)) /* W2 */
            break;
        if (rsi_nap_awake(w))
            continue;
        watch_begin(w);
        uint64_t deadline = rsi_nap_ask(w, rsi_load_relaxed(&w->timer_next_ns));
        if (w->is_watcher && w->watch_at_ns < deadline)
            deadline = w->watch_at_ns;
        if (deadline == UINT64_MAX && rsi_load_relaxed(&rsi_rt.idle_count) == rsi_worker_count())
            deadline = rsi_obs_all_wait(&quiet);
        sleep_once(w, deadline);
        rsi_nap_ended(w, deadline);
    }
    idle_leave(w);
    w->look_ns = rsi_now_ns();
    rsi_worker_polled(w, w->look_ns);
    if (!w->is_searching)
        return;
    if (has_work(w) || steal_from_all(w))
        rsi_idle_found(w);
    rsi_test_delay();
}

/* In a child after fork: whoever slept is gone. */
void rsi_idle_child(void)
{
    rsi_rt.idle_count = rsi_rt.searching = rsi_rt.watching = rsi_rt.idle_guard = rsi_rt.polling = 0;
    rsi_rt.idle_first = NULL;
}
