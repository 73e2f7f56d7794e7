/* SPDX-License-Identifier: MIT */
/*
 * worker.c - which thread a worker runs next, and how it gets there.
 *
 * A worker has a queue (first in, first out), a next slot, and an inbox. A thread woken by a thread of the
 * same worker goes to the next slot, because the data it was woken with is in this CPU's cache. The slot's
 * previous thread goes to the queue. After RSI_NEXT_RUN_MAX turns from the slot in a row, the queue has its
 * turn: with k runnable threads, none waits for more than (1 + RSI_NEXT_RUN_MAX) * k turns of others. A
 * wake-up from outside the thread's cluster goes to an inbox: place.c.
 *
 * Leaving a stack: the worker picks the next thread while still on the old stack, switches, and only then, on
 * the new stack, releases the old one (rsi_switch_finish in switch.h sets on_cpu to 0). Before that, a thread
 * can be woken, queued and picked by another worker. That worker must wait for on_cpu. It does so on its own
 * kernel thread's stack, where no third worker has to wait for it.
 */
#include "core/idle_timers.h"
#include "core/switch.h"
#include "core/tls.h"

#define LOOK_NS 20000   /* interval at which a busy worker looks at its timers, approximately */
#define POLL_NS 100000  /* interval of its polls: rsi_worker_polled */
#define ROUND_NS 100000 /* longest time that collected I/O waits for submission: poller_round */
#define STEAL_MAX 256
#define BALANCE_LEAST 8
/* share of a stuck worker's queue that is taken; other workers may take the rest */
#define STUCK_EIGHTHS 4

struct rsi_exec rsi_exec_none = { .home = RSI_HOME_NONE };
__attribute__((used)) __thread struct rsi_exec *rsi_tls_exec = &rsi_exec_none;

/*
 * Move the whole inbox to the end of the queue, oldest first. Acquires what rsi_inbox_push released or, if
 * the inbox is closed, what the closer did.
 */
bool rsi_inbox_drain(struct rsi_worker *w)
{
    struct rouse_thread *newest = rsi_load_acquire(&w->inbox), *oldest = NULL;
    int32_t count = 0;
    do {
        if (newest == RSI_INBOX_CLOSED)
            return false;
    } while (!rsi_cas_acquire(&w->inbox, &newest, NULL));
    while (newest) {
        count++;
        struct rouse_thread *t = newest;
        newest = t->queue_link;
        t->queue_link = oldest;
        oldest = t;
    }
    while (oldest) {
        struct rouse_thread *t = oldest;
        oldest = t->queue_link;
        rsi_queue_push(w, t);
    }
    rsi_fetch_add_relaxed(&w->inbox_length, -count);
    return true;
}

/*
 * Note a poll. The threads it made runnable are in the queue. Another poll would only queue more behind them,
 * so it can wait until they have run.
 */
void rsi_worker_polled(struct rsi_worker *w, uint64_t now_ns)
{
    w->poll_ns = now_ns;
    w->poll_turn = w->turns + rsi_load_relaxed(&w->queue_length); /* a thief may change it */
}

/*
 * A busy worker steals from a worker with many more threads, whose threads would otherwise run far less often
 * than its own. It does not do so for a few threads, which would then move back and forth.
 */
static void balance(struct rsi_worker *w, uint64_t now_ns)
{
    const struct rouse_cluster *cluster = w->cluster;
    uint32_t slot =
        (uint32_t)(rsi_random_next(&w->random) % rsi_load_relaxed(&cluster->slot_count));
    struct rsi_worker *other = rsi_load_acquire(&cluster->workers[slot]); /* pairs with slot_take */
    uint32_t mine = rsi_load_relaxed(&w->queue_length);
    if (other && !cluster->is_shortest && now_ns - w->steal_ns >= cluster->steal_pause_ns &&
        rsi_load_relaxed(&other->queue_length) > 2 * mine + BALANCE_LEAST &&
        !rsi_share_not(other) && rsi_steal(w, other, false))
        w->steal_ns = now_ns;
}

/*
 * Submit what threads have collected for the poller: once all threads that were runnable at the last
 * submission have run, so that much is submitted at once, or after ROUND_NS at the latest. is_due: do so even
 * if nothing was collected.
 */
static void poller_round(struct rsi_worker *w, const struct rsi_poller *poller, uint64_t now_ns,
                         bool is_due)
{
    if (!poller->round || (!is_due && w->turns < w->round_turn && now_ns - w->round_ns < ROUND_NS))
        return;
    poller->round(is_due);
    w->round_ns = now_ns;
    w->round_turn = w->turns + rsi_load_relaxed(&w->queue_length);
}

/* Look for events while the worker is busy: expired timers, finished I/O. */
void rsi_worker_look(struct rsi_worker *w)
{
    uint64_t now = rsi_now_ns(), since = now - w->look_ns;
    balance(w, now);
    if (since < LOOK_NS / 2 && w->look_every < 1024)
        w->look_every *= 2;
    else if (since > LOOK_NS * 2 && w->look_every > 1)
        w->look_every /= 2;
    w->look_left = w->look_every;
    w->look_ns = now;
    rsi_share_measure_turns(w, since);
    if (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF)
        rsi_account_look(w, now);
    if (rsi_load_relaxed(&w->queue_length) !=
        0) /* turns may be longer than when these were queued */
        rsi_idle_wake_if_useful(w);
    (void)rsi_idle_timers_run(w, now);
    if (now >= rsi_load_relaxed(&w->timer_next_ns)) {
        rsi_queue_lock_enter(w);
        struct rouse_thread *due = rsi_timer_expire(w, now);
        rsi_queue_lock_leave(w);
        if (due)
            rsi_run_later_list(w, due);
    }
    rsi_mail_take(w);
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    if (!poller)
        return;
    bool is_due = now - w->poll_ns >= POLL_NS && w->turns >= w->poll_turn;
    poller_round(w, poller, now, is_due);
    if (is_due) {
        rsi_poller_try();
        rsi_worker_polled(w, now);
    }
}

void rsi_poller_try(void)
{
    if (rsi_load_relaxed(&rsi_rt.polling) != 0 || rsi_exchange_acquire(&rsi_rt.polling, 1u) != 0)
        return;
    rsi_store_relaxed(&rsi_rt.poll_count, rsi_rt.poll_count + 1);
    rsi_load_acquire(&rsi_rt.poller)->poll(0); /* pairs with rsi_poller_register */
    rsi_store_release(&rsi_rt.polling, 0u);
}

unsigned rsi_mail_boxes(void)
{
    return rsi_worker_count();
}

void rsi_mail_send(unsigned worker_index, struct rsi_mail *mail)
{
    struct rsi_worker *w = rsi_rt.workers[worker_index];
    struct rsi_mail *newest = rsi_load_relaxed(&w->mail);
    do {
        mail->next = newest;
    } while (!rsi_cas_seq_cst(&w->mail, &newest, mail)); /* pairs with rsi_mail_take */
    rsi_idle_wake_worker(w);
}

void rsi_mail_take(struct rsi_worker *w)
{
    if (rsi_likely(rsi_load_relaxed(&w->mail) == NULL))
        return;
    struct rsi_mail *mail = rsi_exchange_acquire(&w->mail, NULL); /* pairs with rsi_mail_send */
    while (mail) {
        struct rsi_mail *next = mail->next;
        mail->take(mail);
        mail = next;
    }
}

uint32_t rsi_worker_others(void)
{
    const struct rsi_worker *w = rsi_exec_self()->worker;
    return rsi_load_relaxed(&w->queue_length) + (rsi_load_relaxed(&w->next) != NULL);
}

/*
 * A switch by a thread that handles an exception. libstdc++ keeps a kernel thread's exceptions in flight in
 * two words, and a rouse thread takes its own along. Rejected: saving and restoring them on every switch;
 * most threads have none.
 */
RSI_NOINLINE void rsi_switch_in_catch(struct rsi_worker *w, struct rouse_thread *self,
                                      struct rsi_ctx *ctx, uintptr_t bits)
{
    if (self->tls) {
        rsi_tls_switch(w, self, ctx, bits);
        return;
    }
    uint64_t caught = w->eh_globals[0], uncaught = w->eh_globals[1];
    w->eh_globals[0] = w->eh_globals[1] = 0;
    rsi_switch_step(w, self, ctx, bits);
    w = rsi_exec_self()->worker;
    w->eh_globals[0] = caught;
    w->eh_globals[1] = uncaught;
}

/* On the kernel thread's own stack. */
static void run(struct rsi_worker *w, struct rouse_thread *t)
{
    if (rsi_load_relaxed(&t->waiter.on_cpu) == RSI_CPU_NEW) {
        rsi_thread_bind(w, t);
        rsi_store_relaxed(&t->waiter.on_cpu, 0u);
    }
    for (unsigned spins = 0; rsi_load_acquire(&t->waiter.on_cpu); spins++) {
        if (spins < 256)
            rsi_cpu_relax();
        else
            rsi_syscall0(SYS_sched_yield);
    }
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_run(w, t);
    rsi_worker_enter(w, t);
    void *value = w;
    struct rsi_ctx *left = rsi_ctx_switch(&w->idle.ctx, &t->waiter.ctx, &value);
    rsi_store_relaxed(&w->exec.current, NULL);
    rsi_switch_finish(value, left);
}

static struct rouse_thread *pick(struct rsi_worker *w)
{
    rsi_turn_begin(w);
    rsi_queue_lock_enter(w);
    struct rouse_thread *t = rsi_take_locked(w);
    rsi_queue_lock_leave(w);
    return t;
}

void rsi_worker_main(struct rsi_worker *w)
{
    for (;;) {
        if (rsi_load_relaxed(&w->next_cluster))
            rsi_workers_arrive(w);
        struct rouse_thread *t = w->handoff;
        w->handoff = NULL;
        if (!t)
            t = pick(w);
        if (!t) {
            rsi_test_delay();
            /* Acquire: pairs with leave_locked. If w was reused since the loop began, it arrives before it leaves. */
            if (rsi_load_acquire(&w->is_leaving) && !rsi_load_relaxed(&w->next_cluster))
                return;
            rsi_idle_wait(w);
            continue;
        }
        if (w->is_searching) /* its wake-up was spurious, and then a thread arrived */
            rsi_idle_found(w);
        if (rsi_load_relaxed(&t->waiter.home) == w->exec.home)
            run(w, t);
        else
            rsi_run_elsewhere(t); /* moved to another cluster while it was queued */
    }
}

/* A thread of w woke t: t runs next. */
void rsi_run_soon(struct rsi_worker *w, struct rouse_thread *t)
{
    rsi_queue_lock_enter(w);
    struct rouse_thread *old = w->next;
    rsi_store_relaxed(&w->next, t);
    if (old)
        rsi_queue_push(w, old);
    rsi_queue_lock_leave(w);
    rsi_idle_wake_if_useful(w);
}

/* t runs after all threads that are runnable on w now. */
void rsi_run_later(struct rsi_worker *w, struct rouse_thread *t)
{
    rsi_queue_lock_enter(w);
    rsi_queue_push(w, t);
    rsi_queue_lock_leave(w);
    rsi_idle_wake_if_useful(w);
}

/* Queue a list linked through queue_link, in its order. Threads of other clusters go to their clusters. */
void rsi_run_later_list(struct rsi_worker *w, struct rouse_thread *first)
{
    struct rouse_thread *mine = NULL, **last = &mine;
    while (first) {
        struct rouse_thread *t = first;
        first = t->queue_link;
        if (rsi_likely(rsi_load_relaxed(&t->waiter.home) == w->exec.home)) {
            *last = t;
            last = &t->queue_link;
        } else {
            rsi_run_elsewhere(t);
        }
    }
    *last = NULL;
    if (!mine)
        return;
    rsi_queue_lock_enter(w);
    while (mine) {
        struct rouse_thread *t = mine;
        mine = t->queue_link;
        rsi_queue_push(w, t);
    }
    rsi_queue_lock_leave(w);
    rsi_idle_wake_if_useful(w);
}

/* How many of length threads a thief in the cluster takes, at most STEAL_MAX. */
static uint32_t share(const struct rouse_cluster *cluster, uint32_t length, bool stuck)
{
    uint32_t eighths = stuck ? STUCK_EIGHTHS : cluster->steal_eighths;
    uint32_t want = (length * eighths + 7) / 8;
    if (want == 0 && length != 0)
        want = 1;
    return want < STEAL_MAX ? want : STEAL_MAX;
}

/*
 * Take threads from victim: a share of its queue, oldest first, including its inbox. stuck: also its next
 * slot, which otherwise belongs to the thread that is about to park there. Returns a list linked through
 * queue_link, not an array: a busy worker steals on the stack of the thread that it runs, and an array would
 * touch a second page of that stack.
 */
static struct rouse_thread *take(struct rsi_worker *victim, bool stuck, unsigned *taken)
{
    struct rouse_thread *first = NULL, **last = &first;
    unsigned count = 0;
    *taken = 0;
    if (!rsi_queue_lock_enter_thief(victim))
        return NULL;
    if (rsi_load_relaxed(&victim->inbox))
        (void)rsi_inbox_drain(victim);
    uint32_t want = share(rsi_load_relaxed(&victim->cluster), victim->queue_length, stuck);
    for (; count < want && (*last = rsi_queue_pop(victim)) != NULL; count++)
        last = &(*last)->queue_link;
    if (stuck && count == 0 && victim->next) {
        *last = victim->next;
        last = &(*last)->queue_link;
        rsi_store_relaxed(&victim->next, NULL);
        count = 1;
    }
    *last = NULL;
    rsi_queue_lock_leave_thief(victim);
    *taken = count;
    return first;
}

/* w takes threads from victim, in its own cluster. Returns how many. */
unsigned rsi_steal(struct rsi_worker *w, struct rsi_worker *victim, bool stuck)
{
    unsigned count;
    struct rouse_thread *first = take(victim, stuck, &count);
    rsi_queue_lock_enter(w);
    while (first) {
        struct rouse_thread *t = first;
        first = t->queue_link;
        rsi_queue_push(w, t);
    }
    rsi_queue_lock_leave(w);
    rsi_store_relaxed(&w->steals, w->steals + (count != 0));
    rsi_store_relaxed(&w->stolen, w->stolen + count);
    if (count != 0 && rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF)
        rsi_account_steal(w, count);
    return count;
}

/* Move threads of victim to an idle worker of the same cluster, which need not be the caller's. stuck: as in take. */
void rsi_steal_for(struct rsi_worker *idle, struct rsi_worker *victim, bool stuck)
{
    unsigned count;
    struct rouse_thread *first = take(victim, stuck, &count);
    while (first) {
        struct rouse_thread *t = first;
        first = t->queue_link;
        if (!rsi_inbox_push(idle, t))
            rsi_run_elsewhere(t);
    }
    if (count != 0)
        rsi_idle_wake_worker(idle);
}
