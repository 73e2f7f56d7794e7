/* SPDX-License-Identifier: MIT */
/*
 * workers.c - how workers are added and removed.
 *
 * A worker's structure is never freed: wakers and timers name workers by index, possibly late. A new worker
 * reuses the structure of one that has ended, if there is one. Its kernel thread waits until all threads can
 * see it in its cluster's list and counts. Otherwise others could believe that it is asleep.
 *
 * A worker is removed in these steps, so that nothing is lost:
 *   1. The remover marks it as leaving and closes its inbox. The inbox's threads, and all later ones, go to other
 *      workers.
 *   2. Because its inbox is closed it finds nothing in its queue. After the current turn it is on its kernel
 *      thread's own stack and sees the mark.
 *   3. It leaves its cluster's list, takes out queue and timers under its queue lock, and gives them to others.
 *   4. It is no longer counted, and its kernel thread ends.
 * In between, thieves may still take from its queue, and the watcher may end waits that its timers are due
 * for.
 *
 * A kernel thread that may own an io_uring does not end, because the kernel lets no other thread reap that
 * ring's pending operations. It continues in rsi_cluster_retired, to which no thread belongs, and handles its
 * ring's completions and mail there: it is retired. When a worker is added, a retired one is reused first: it is in its
 * new cluster's list at once, may be given threads, and arrives when it next looks. Others need not wait for
 * its arrival: handling its ring's completions in the meantime may be what makes its first threads runnable.
 */
#include "core/switch.h"
#include "core/tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* adopted at a time under another worker's queue lock, which must not be held for long */
#define TIMERS_A_STEP 64

/* libstdc++'s accessor of a kernel thread's exception state; absent in a program without C++. */
extern void *__cxa_get_globals(void) __attribute__((weak));

static void threads_give(struct rsi_worker *w)
{
    rsi_queue_lock_enter(w);
    struct rouse_thread *first = w->queue_first, *next = w->next;
    w->queue_first = w->queue_last = NULL;
    rsi_store_relaxed(&w->next, NULL);
    rsi_store_relaxed(&w->queue_length, 0u);
    rsi_queue_lock_leave(w);
    if (next)
        rsi_run_elsewhere(next);
    rsi_run_elsewhere_list(first);
}

/*
 * A worker that is not leaving, as far as can be seen. If the cluster has none: one of the default cluster.
 */
static struct rsi_worker *stays(struct rouse_cluster *cluster)
{
    for (;;) {
        for (uint32_t i = 0; i < rsi_load_relaxed(&cluster->slot_count); i++) {
            struct rsi_worker *w = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
            if (w && !rsi_load_relaxed(&w->is_leaving))
                return w;
        }
        cluster = &rsi_cluster_default;
    }
}

/* False: the receiving worker is leaving as well, or its queue lock was busy. */
static bool timers_hand_over(const struct rsi_worker *w, const struct rsi_timer *entries,
                             uint32_t count)
{
    struct rsi_worker *to = stays(w->cluster);
    if (!rsi_queue_lock_enter_thief(to)) {
        rsi_syscall0(SYS_sched_yield);
        return false;
    }
    bool is_there = !rsi_load_relaxed(&to->has_left);
    if (is_there)
        rsi_timer_adopt(to, w, entries, count);
    rsi_queue_lock_leave_thief(to);
    rsi_idle_wake_worker(to); /* its sleep may be longer than these deadlines allow */
    return is_there;
}

/* w belongs to cluster from now on. Called before its kernel thread runs, or on it. */
static void enter(struct rsi_worker *w, struct rouse_cluster *cluster)
{
    rsi_store_release(&w->cluster, cluster); /* pairs with the watcher's acquire */
    w->exec.home = cluster->home;
    rsi_store_relaxed(&w->exec.current, NULL);
    w->look_left = w->look_every = 64;
    w->look_turn = 0;
    w->search_rounds = 1;
    rsi_store_relaxed(&w->turn_ns, UINT32_MAX);
    rsi_store_relaxed(&w->short_most, 0u);
    w->sampling = (struct rsi_sampling){ 0 };
    w->next_run = 0;
    w->steal_ns = 0;
    w->avoids_poller = false;
    rsi_store_relaxed(&w->turns, 0);
    rsi_store_relaxed(&w->steals, 0);
    rsi_store_relaxed(&w->stolen, 0);
}

/*
 * Reset w for a new worker. The previous one left its queues empty. Other threads that know the structure may
 * still look at it.
 */
static void reset(struct rsi_worker *w, struct rouse_cluster *cluster)
{
    enter(w, cluster);
    rsi_store_relaxed(&w->timer_stale, 0u);
    rsi_store_relaxed(&w->inbox_length, 0);
    rsi_store_relaxed(&w->is_leaving, false);
    rsi_store_relaxed(&w->is_spare, false);
    rsi_store_relaxed(&w->has_left, false);
    rsi_store_relaxed(&w->has_arrived, 0u);
}

static void slot_take(struct rsi_worker *w, struct rouse_cluster *cluster)
{
    uint32_t slot = 0;
    while (slot < cluster->slot_count && cluster->workers[slot])
        slot++;
    w->slot = slot;
    rsi_store_relaxed(&cluster->worker_count, cluster->worker_count + 1);
    cluster->staying_count++;
    rsi_store_release(&cluster->workers[slot], w); /* pairs with all readers of the list */
    if (slot == cluster->slot_count)
        rsi_store_release(&cluster->slot_count, slot + 1);
}

/* From here on others see w: they may push to its inbox, and steal. */
static void list(struct rsi_worker *w, struct rouse_cluster *cluster)
{
    rsi_store_relaxed(&w->is_free, false);
    if (w->index == rsi_rt.worker_count)
        rsi_store_release(&rsi_rt.worker_count, w->index + 1); /* pairs with rsi_worker_count */
    rsi_fetch_add_seq_cst(&rsi_rt.live_count, 1u);
    rsi_store_release(&w->inbox, NULL);
    slot_take(w, cluster);
    rsi_store_release(&w->has_arrived, 1u);
    rsi_futex_wake(&w->has_arrived, 1);
}

/* Threads of other clusters may have entries here from before they were moved. */
static void timers_give(struct rsi_worker *w)
{
    struct rsi_timer entries[TIMERS_A_STEP];
    uint32_t count;
    do {
        rsi_queue_lock_enter(w);
        count = rsi_timer_take(w, entries, TIMERS_A_STEP);
        if (count == 0)
            rsi_store_relaxed(&w->has_left, true);
        rsi_queue_lock_leave(w);
        while (count != 0 && !timers_hand_over(w, entries, count))
            ;
    } while (count != 0);
}

static void count_out_locked(struct rsi_worker *w)
{
    struct rouse_cluster *cluster = w->cluster;
    cluster->past_turns += w->turns;
    cluster->past_steals += w->steals;
    cluster->past_stolen += w->stolen;
    rsi_store_relaxed(&cluster->worker_count, cluster->worker_count - 1);
    rsi_fetch_sub_seq_cst(&rsi_rt.live_count, 1u);
    if (cluster->worker_count == 0 && cluster->state == RSI_CLUSTER_ENDING)
        rsi_store_relaxed(&cluster->state, RSI_CLUSTER_FREE);
}

/* Another kernel thread may reuse w as soon as the lock is released. */
static void end_locked(struct rsi_worker *w)
{
    rsi_fault_end_worker();
    rsi_kernel_thread_guard(NULL);
    rsi_tls_exec = &rsi_exec_none;
    rsi_account_exec_end(&w->exec);
    rsi_store_relaxed(&w->tid, 0);
    rsi_store_relaxed(&w->is_free, true);
}

/* w has left its cluster. False: its kernel thread ends. */
static bool go_on(struct rsi_worker *w)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    bool has_ring = poller && poller->sleep;
    rsi_runtime_lock();
    count_out_locked(w);
    if (has_ring) {
        reset(w, &rsi_cluster_retired);
        list(w, &rsi_cluster_retired);
    } else {
        end_locked(w);
    }
    rsi_runtime_unlock();
    return has_ring;
}

/* On w's own kernel thread. False: the thread ends. */
static bool leave_cluster(struct rsi_worker *w)
{
    if (w->is_searching)
        rsi_idle_found(w);
    rsi_runtime_lock();
    rsi_store_relaxed(&w->cluster->workers[w->slot], NULL);
    rsi_runtime_unlock();
    threads_give(w);
    timers_give(w);
    rsi_thread_stacks_give(w);
    rsi_blocks_give(w);
    bool goes_on = go_on(w);
    /* As if it had been the last to fall asleep: some worker must notice that nothing runs, and poll. */
    rsi_idle_wake_any();
    return goes_on;
}

static void *worker_thread(void *value)
{
    struct rsi_worker *w = value;
    char name[16];
    sigset_t blocked;
    while (!rsi_load_acquire(&w->has_arrived)) /* pairs with list */
        rsi_futex_wait(&w->has_arrived, 0, UINT64_MAX);
    rsi_format(name, sizeof name, "rouse-%u", w->index);
    pthread_setname_np(pthread_self(), name);
    w->thread_pointer = rsi_thread_pointer();
    /* A handler (on_setxid in tls_setxid.c) takes the pointer as valid once it finds the tid and the exec. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    rsi_store_relaxed(&w->tid, (int32_t)rsi_gettid());
    rsi_tls_exec = &w->exec;
    w->errno_at = &errno;
    w->eh_globals = w->eh_native = __cxa_get_globals ? __cxa_get_globals() : NULL;
    rsi_timer_slack_min();
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    rsi_obs_thread_begin(&blocked);
    rsi_fault_setup_worker(w);
    rsi_kernel_thread_guard(
        "a user thread, and its worker with it: return, or call rouse_thread_exit");
    rsi_ctx_init_native(&w->idle.ctx);
    w->look_ns = w->poll_ns = rsi_now_ns();
    do
        rsi_worker_main(w);
    while (leave_cluster(w));
    return NULL;
}

static struct rsi_worker *worker_new(uint32_t index)
{
    struct rsi_worker *w = aligned_alloc(RSI_CACHE_LINE, sizeof *w);
    if (!w)
        return NULL;
    memset(w, 0, sizeof *w);
    w->index = index;
    w->exec.worker = w;
    w->is_free = true;
    w->inbox = RSI_INBOX_CLOSED;
    w->random = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    if (!rsi_timer_setup(w)) {
        free(w);
        return NULL;
    }
    return w;
}

/* Find a free structure, at the first free index. */
static int worker_find_locked(struct rsi_worker **out)
{
    uint32_t index = 0;
    while (index < rsi_rt.worker_count && !rsi_rt.workers[index]->is_free)
        index++;
    if (index == RSI_WORKERS_MAX)
        return -EAGAIN;
    if (!rsi_rt.workers[index])
        rsi_rt.workers[index] = worker_new(index);
    *out = rsi_rt.workers[index];
    return *out && rsi_fault_prepare_worker(*out) ? 0 : -ENOMEM;
}

static int thread_start(struct rsi_worker *w, const struct rsi_cpus *cpus)
{
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);
    if (error)
        return -error;
    error = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (!error && rsi_cpus_differ())
        error = pthread_attr_setaffinity_np(&attr, sizeof *cpus, (const cpu_set_t *)cpus);
    if (!error)
        error = pthread_create(&w->pthread, &attr, worker_thread, w);
    pthread_attr_destroy(&attr);
    return -error;
}

/* The cluster whose list contains w. */
static struct rouse_cluster *list_of(const struct rsi_worker *w)
{
    return w->next_cluster ? w->next_cluster : w->cluster;
}

/* Step 1. Returns the threads of its inbox, in order. */
static struct rouse_thread *leave_locked(struct rsi_worker *w)
{
    list_of(w)->staying_count--;
    rsi_store_release(&w->is_leaving, true); /* pairs with rsi_worker_main */
    /* Releases the mark to rsi_inbox_drain, acquires what was pushed. */
    struct rouse_thread *newest = rsi_exchange_seq_cst(&w->inbox, RSI_INBOX_CLOSED), *oldest = NULL;
    while (newest) {
        struct rouse_thread *t = newest;
        newest = t->queue_link;
        t->queue_link = oldest;
        oldest = t;
    }
    return oldest;
}

/* Reuse a retired worker. Returns 0, -EINVAL, or -ENOENT if there is none. */
static int retired_add_locked(struct rouse_cluster *cluster, struct rsi_worker **out)
{
    for (uint32_t i = 0; i < rsi_cluster_retired.slot_count; i++) {
        struct rsi_worker *w = rsi_cluster_retired.workers[i];
        if (!w)
            continue;
        int error = rsi_cpus_differ() ? rsi_cpus_pin_locked(w, rsi_cpus_of(cluster)) : 0;
        if (error)
            return error;
        rsi_store_relaxed(&rsi_cluster_retired.workers[i], NULL);
        rsi_store_relaxed(&rsi_cluster_retired.worker_count, rsi_cluster_retired.worker_count - 1);
        rsi_cluster_retired.staying_count--;
        rsi_store_relaxed(&w->next_cluster, cluster);
        slot_take(w, cluster);
        rsi_idle_wake_worker(w);
        *out = w;
        return 0;
    }
    return -ENOENT;
}

/* On w's kernel thread: it was a retired worker and has been reused. It may already be about to leave. */
void rsi_workers_arrive(struct rsi_worker *w)
{
    if (w->is_searching)
        rsi_idle_found(w);
    rsi_runtime_lock();
    enter(w, w->next_cluster);
    rsi_store_relaxed(&w->next_cluster, NULL);
    rsi_runtime_unlock();
}

static int new_add_locked(struct rouse_cluster *cluster, struct rsi_worker **out)
{
    struct rsi_worker *w = NULL;
    int error = worker_find_locked(&w);
    if (error)
        return error;
    reset(w, cluster);
    error = thread_start(w, rsi_cpus_of(cluster));
    if (error)
        return error;
    list(w, cluster);
    *out = w;
    return 0;
}

int rsi_workers_add_locked(struct rouse_cluster *cluster, struct rsi_worker **out)
{
    struct rsi_worker *w = NULL;
    int error = retired_add_locked(cluster, &w);
    if (error == -ENOENT)
        error = new_add_locked(cluster, &w);
    if (error)
        return error;
    if (out)
        *out = w;
    rsi_monitor_wake(); /* the new worker may never be idle */
    return 0;
}

int rsi_workers_add(struct rouse_cluster *cluster, bool is_spare, struct rsi_worker **out)
{
    rsi_runtime_lock();
    int error = cluster->state == RSI_CLUSTER_LIVE ? rsi_workers_add_locked(cluster, out) : -EINVAL;
    if (!error) {
        cluster->wanted = cluster->staying_count;
        /* Under the lock, so that a fork sees it: the child starts no worker in place of a spare. */
        rsi_store_relaxed(&(*out)->is_spare, is_spare);
    }
    rsi_runtime_unlock();
    return error;
}

/* The worker of the cluster with that number. Negative: the last one in the list. None that is leaving. */
static struct rsi_worker *find_locked(const struct rouse_cluster *cluster, int number)
{
    struct rsi_worker *found = NULL;
    for (uint32_t i = 0; i < cluster->slot_count; i++) {
        struct rsi_worker *w = cluster->workers[i];
        if (w && !w->is_leaving && (number < 0 || w->index == (uint32_t)number))
            found = w;
    }
    return found;
}

/* The search and the removal are one step: a worker that was found may be removed, and reused elsewhere, meanwhile. */
int rsi_workers_remove(struct rouse_cluster *cluster, int number)
{
    struct rouse_thread *queued = NULL;
    rsi_runtime_lock();
    struct rsi_worker *w = find_locked(cluster, number);
    int result = !w ? -EINVAL : cluster->staying_count == 1 ? -EBUSY : (int)w->index;
    if (result >= 0) {
        queued = leave_locked(w);
        cluster->wanted = cluster->staying_count;
    }
    rsi_runtime_unlock();
    if (result < 0)
        return result;
    rsi_run_elsewhere_list(queued);
    rsi_idle_wake_worker(w);
    return result;
}

/*
 * Remove all workers of a cluster to which no thread belongs. *queued: threads of other clusters in their
 * inboxes.
 */
void rsi_workers_end_locked(struct rouse_cluster *cluster, struct rouse_thread **queued)
{
    for (uint32_t i = 0; i < cluster->slot_count; i++) {
        struct rsi_worker *w = cluster->workers[i];
        if (!w || w->is_leaving)
            continue;
        *queued = leave_locked(w);
        while (*queued)
            queued = &(*queued)->queue_link;
        rsi_idle_wake_worker(w);
    }
}

static void worker_child(struct rsi_worker *w)
{
    w->owner_in = w->thief_in = w->steal_guard = 0;
    w->queue_length = 0;
    w->queue_first = w->queue_last = w->next = NULL;
    w->inbox = RSI_INBOX_CLOSED;
    w->handoff = w->block_cache = w->block_spare = NULL;
    w->block_count = w->stack_promises = w->stack_count = w->stack_keep = 0;
    rsi_timer_reset(w);
    w->mail = NULL;
    w->next_cluster = NULL;
    w->is_idle = w->is_polling = w->is_searching = w->is_watcher = false;
    w->idle_link = NULL;
    w->wake_word = 0;
    w->is_free = true;
    if (&w->exec != rsi_exec_self())
        w->exec.current = NULL; /* the thread it ran does not exist in the child */
}

/*
 * In a child after fork. survivor is the worker that forked, NULL if a kernel thread did. The next call that
 * starts the runtime starts the others again.
 */
void rsi_workers_child(struct rsi_worker *survivor)
{
    for (uint32_t i = 0; i < RSI_WORKERS_MAX && rsi_rt.workers[i]; i++)
        worker_child(rsi_rt.workers[i]);
    rsi_rt.worker_count = rsi_rt.live_count = 0;
    if (!survivor)
        return;
    struct rsi_worker *first = rsi_rt.workers[0];
    rsi_rt.workers[0] = survivor;
    rsi_rt.workers[survivor->index] = first;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is one at least, which survives */
    first->index = survivor->index;
    survivor->index = 0;
    survivor->tid = (int32_t)rsi_gettid();
    survivor->pthread = pthread_self();
    if (survivor->cluster->state != RSI_CLUSTER_LIVE) { /* it was about to end */
        survivor->cluster = &rsi_cluster_default;
        survivor->exec.home = rsi_cluster_default.home;
    }
    survivor->is_leaving = survivor->has_left = false;
    list(survivor, survivor->cluster);
}
