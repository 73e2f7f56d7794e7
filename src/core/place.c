/* SPDX-License-Identifier: MIT */
/*
 * place.c - which worker gets a thread that was made runnable from outside its cluster.
 *
 * A thread woken by a thread of its own cluster stays on that worker: worker.c. All others come here: woken
 * by a kernel thread or by another cluster's worker, moved between clusters, created from outside, or left
 * over by a worker that ended. They are pushed to an inbox by an exchange that is a full fence. So for a
 * cluster's sleeping workers, a worker of another cluster is the same as a kernel thread: idle.c.
 *
 * A thread may be moved to another cluster at any time, by a plain store to its home. So a reader of home may
 * act on an old value, and moving a thread does not search the queues. A worker looks at home before it runs
 * a thread from its queue, and passes on those that belong elsewhere. Rejected: removing the thread from its
 * queue when it is moved. The mover would have to find it in a queue, an inbox or a thief's hands.
 */
#include "core/switch.h"

/* How many threads are ahead of one that is placed there, including the running one. */
static uint64_t load_of(struct rsi_worker *w)
{
    int32_t pushed = rsi_load_relaxed(&w->inbox_length);
    return (uint64_t)rsi_load_relaxed(&w->queue_length) + (uint32_t)(pushed > 0 ? pushed : 0) +
           (rsi_load_relaxed(&w->next) != NULL) + (rsi_load_relaxed(&w->exec.current) != NULL);
}

static bool takes(struct rsi_worker *w)
{
    return w && rsi_load_relaxed(&w->inbox) != RSI_INBOX_CLOSED;
}

/* Search from start on, so that workers with equally short queues are used in turn. */
static struct rsi_worker *shortest(struct rouse_cluster *cluster, uint32_t start)
{
    uint32_t count = rsi_load_relaxed(&cluster->slot_count);
    struct rsi_worker *best = NULL;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count && least != 0; i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[(start + i) % count]);
        uint64_t load = takes(w) ? load_of(w) : UINT64_MAX;
        if (load < least) {
            least = load;
            best = w;
        }
    }
    return best;
}

static struct rsi_worker *any(struct rouse_cluster *cluster, uint32_t start)
{
    uint32_t count = rsi_load_relaxed(&cluster->slot_count);
    for (uint32_t i = 0; i < count; i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[(start + i) % count]);
        if (takes(w))
            return w;
    }
    return NULL;
}

/* A worker of t's current cluster; NULL while every worker of it is leaving. */
static struct rsi_worker *choose(struct rouse_thread *t, bool is_new)
{
    struct rouse_cluster *cluster = rsi_cluster_of(rsi_load_relaxed(&t->waiter.home));
    struct rsi_worker *last = rsi_rt.workers[rsi_load_relaxed(&t->waiter.worker_index)];
    if (rsi_load_relaxed(&cluster->is_shortest))
        return shortest(cluster, (uint32_t)rsi_load_relaxed(&t->id));
    if (!is_new && takes(last) && rsi_load_relaxed(&last->cluster) == cluster)
        return last;
    return any(cluster, (uint32_t)rsi_load_relaxed(&t->id));
}

/* False: w is leaving. Releases t to rsi_inbox_drain. It is no full fence: F1 of idle.c follows in the caller. */
bool rsi_inbox_push(struct rsi_worker *w, struct rouse_thread *t)
{
    struct rouse_thread *newest = rsi_load_relaxed(&w->inbox);
    do {
        if (newest == RSI_INBOX_CLOSED)
            return false;
        t->queue_link = newest;
        rsi_test_delay();
    } while (!rsi_cas_seq_cst(&w->inbox, &newest, t));
    rsi_fetch_add_relaxed(&w->inbox_length, 1);
    return true;
}

static void run_elsewhere(struct rouse_thread *t, bool is_new)
{
    struct rsi_worker *self = rsi_exec_self()->worker, *w;
    for (;;) {
        w = choose(t, is_new);
        if (w && rsi_inbox_push(w, t))
            break;
        /* The cluster's last worker is being replaced, or t is being moved out of a closed cluster. */
        rsi_syscall0(SYS_sched_yield);
    }
    if (self && rsi_load_relaxed(&w->cluster) != self->cluster)
        self->sent++;
    rsi_idle_wake_for(w);
}

/* t is runnable, in no queue, and of any cluster. */
void rsi_run_elsewhere(struct rouse_thread *t)
{
    run_elsewhere(t, false);
}

/* Place a list linked through queue_link, in its order. */
void rsi_run_elsewhere_list(struct rouse_thread *first)
{
    while (first) {
        struct rouse_thread *t = first;
        first = t->queue_link;
        run_elsewhere(t, false);
    }
}

/* A thread of w created t. NULL: a kernel thread did. */
void rsi_run_new(struct rsi_worker *w, struct rouse_thread *t)
{
    if (!w || w->cluster->is_shortest || rsi_load_relaxed(&t->waiter.home) != w->exec.home) {
        run_elsewhere(t, true);
        return;
    }
    rsi_store_relaxed(&t->waiter.worker_index, w->index);
    rsi_run_later(w, t);
}
