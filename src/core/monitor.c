/* SPDX-License-Identifier: MIT */
/*
 * monitor.c - finds stuck workers, and adds spare workers in their place.
 *
 * Problem: a thread that blocks in a system call of the program's own, or computes without ending its turn,
 * keeps its worker. An idle worker, the watcher (watch.c), takes over the threads queued behind it. If the
 * cluster has no idle worker, nobody looks at its queues and timers, and perhaps nobody polls. So one kernel thread,
 * the monitor, looks at clusters without an idle worker. If something waits there and a worker is stuck, the monitor
 * adds a worker, a spare. The spare has nothing to do, so it becomes the watcher and takes over as any watcher
 * does.
 *
 * A worker is stuck if it has begun no turn since an earlier look and, since then, has either used
 * COMPUTES_NS of CPU time, or is asleep in the kernel and has hardly run. A runnable worker is not stuck: a
 * preempted one uses no CPU time but is not asleep, and one more worker would only take CPU time from it. Neither is a
 * worker that computes in its ring: it serves all of its threads there.
 *
 * A spare is a normal worker. It stays while as many workers are stuck as there are spares, and LINGER_NS
 * longer, because a thread that has blocked once usually blocks again. But where no worker of the cluster is idle, a
 * spare takes processor time from the worker that it replaced, which is back: there it stays only BUSY_LINGER_NS
 * longer. There are at most `bound` spares, and at most `computing_most` in place of the workers of a cluster that
 * compute: more would only take processor time from each other. By default the first limit is as many workers as a
 * process may have, and the second is as many as it asked for.
 *
 * Sleep: the monitor sleeps without a limit while every cluster has an idle worker and there are no spares,
 * once nothing has moved from one look to the next.
 *   monitor: M1 awake = 0;         full fence;  M2 look at all idle counts again
 *   worker:  W1 leave the idle list, as the last;  full fence;  W2 look at awake; if 0: awake = 1, wake
 * One of the two sees the other. Model: tests/model/monitor.pml. Otherwise it looks after PERIOD_MIN_NS,
 * which doubles up to PERIOD_MAX_NS; while it has spares but no cluster is busy, after PERIOD_LONG_NS. When it has
 * added a spare it begins with PERIOD_MIN_NS again, because the next thread may get stuck as well.
 * Rejected: a signal that asks the stuck thread where it is. The signal may interrupt its system call, and
 * the program would see an EINTR that we caused.
 */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD_MIN_NS 200000u
#define PERIOD_MAX_NS 10000000u
#define PERIOD_LONG_NS 100000000u
#define COMPUTES_NS 5000000u
#define LINGER_NS 1000000000u
#define BUSY_LINGER_NS 50000000u
#define REMOVED_PART 8u /* of the spares that are not needed, removed at a time */
#define STACK_BYTES ((size_t)64 * 1024)
#define RECORDS 32u

/* The monitor's notes on a worker. */
struct watched {
    uint64_t turns;
    uint64_t since_ns; /* when it was first seen without a new turn; 0: it has made one since */
    uint64_t cpu_ns;   /* its CPU time at that moment */
    bool computes;     /* while it is stuck: it is not asleep */
    uint64_t stuck;    /* number of its record; 0: it is not stuck */
};

/* The monitor writes it, any thread reads it. `even` is a sequence count: an even value means a complete record. */
struct record {
    uint64_t even;
    struct rouse_stuck stuck;
};

static struct {
    uint32_t awake; /* futex; see above */
    uint32_t bound; /* most spares allowed; 0: no monitor */
    uint32_t computing_most;
    uint32_t is_running;
    bool has_added; /* since the last look */
    uint32_t spares, spares_most;
    uint64_t stuck_count, refused_count;
    uint64_t turns; /* of all workers, at the last look */
    uint32_t polls; /* rsi_rt.poll_count at the last look */
    /* By home - 1: since when there are more spares than stuck workers; 0: there are not. */
    uint64_t needless_since[ROUSE_CLUSTERS_MAX];
    sigset_t mask; /* of the thread that started the first workers */
    struct watched watched[RSI_WORKERS_MAX];
    struct record records[RECORDS]; /* number n at n % RECORDS */
} monitor = { .awake = 1 };

/* CPU time of a kernel thread of this process. 0: it has ended. */
static uint64_t cpu_ns_of(int32_t tid)
{
    struct timespec time = { 0, 0 };
    /* The clock id that pthread_getcpuclockid would return. */
    int32_t clock = (int32_t)(~(uint32_t)tid << 3 | 6);
    rsi_syscall2(SYS_clock_gettime, clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/*
 * Read the start of /proc/self/task/tid/name, after rsi_spares_prepare. Returns the number of bytes, which a
 * 0 follows; 0 on failure.
 */
static size_t task_read(int32_t tid, const char *name, char *buffer, size_t bytes)
{
    char path[64];
    rsi_format(path, sizeof path, "/proc/self/task/%d/%s", (int)tid, name);
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    long length = rsi_syscall3(SYS_read, fd, buffer, bytes - 1);
    rsi_syscall1(SYS_close, fd);
    buffer[length > 0 ? length : 0] = 0;
    return length > 0 ? (size_t)length : 0;
}

/* Whether it sleeps in the kernel, as opposed to waiting for a CPU. */
static bool is_asleep(int32_t tid)
{
    char text[256];
    if (!rsi_spares_prepare() || !task_read(tid, "stat", text, sizeof text))
        return false;
    const char *end = strrchr(text, ')'); /* end of the name, which may contain anything */
    return end && end[1] == ' ' && (end[2] == 'S' || end[2] == 'D');
}

/*
 * Read its system call and where it was made. The file contains "number six arguments sp pc", or "running".
 */
static void call_read(int32_t tid, struct rouse_stuck *stuck)
{
    char text[256];
    stuck->call = -1;
    if (!task_read(tid, "syscall", text, sizeof text) || text[0] < '0' || text[0] > '9')
        return;
    stuck->call = (int32_t)strtol(text, NULL, 10);
    const char *pc = strrchr(text, ' ');
    stuck->site = pc ? (const void *)(uintptr_t)strtoul(pc + 1, NULL, 16) : NULL;
}

static void record_write(uint64_t number, const struct rouse_stuck *stuck)
{
    struct record *record = &monitor.records[number % RECORDS];
    const uint64_t *from = (const uint64_t *)(const void *)stuck;
    uint64_t *to = (uint64_t *)(void *)&record->stuck;
    uint64_t even = record->even;
    rsi_store_relaxed(&record->even, even + 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* pairs with the one in record_read */
    for (size_t i = 0; i < sizeof *stuck / sizeof *to; i++)
        rsi_store_relaxed(&to[i], from[i]);
    rsi_store_release(&record->even, even + 2);
}
_Static_assert(sizeof(struct rouse_stuck) % sizeof(uint64_t) == 0, "copied by words");

/* False: the monitor is writing it. */
static bool record_read(uint64_t number, struct rouse_stuck *stuck)
{
    struct record *record = &monitor.records[number % RECORDS];
    uint64_t *from = (uint64_t *)(void *)&record->stuck, *to = (uint64_t *)(void *)stuck;
    uint64_t even = rsi_load_acquire(&record->even);
    for (size_t i = 0; i < sizeof *stuck / sizeof *to; i++)
        to[i] = rsi_load_relaxed(&from[i]);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* pairs with the one in record_write */
    return even % 2 == 0 && rsi_load_relaxed(&record->even) == even;
}

unsigned rouse_obs_stuck(struct rouse_stuck *out, unsigned most)
{
    uint64_t newest = rsi_load_acquire(&monitor.stuck_count); /* pairs with record_begin */
    unsigned count = 0;
    for (uint64_t n = newest; n != 0 && newest - n < RECORDS - 1 && count < most; n--)
        for (unsigned tries = 0; tries < 100; tries++)
            if (record_read(n, &out[count])) {
                count++;
                break;
            }
    return count;
}

void rouse_obs_monitor(struct rouse_monitor_figures *figures)
{
    figures->stuck_count = rsi_load_relaxed(&monitor.stuck_count);
    figures->refused_count = rsi_load_relaxed(&monitor.refused_count);
    figures->spares = rsi_load_relaxed(&monitor.spares);
    figures->spares_most = rsi_load_relaxed(&monitor.spares_most);
    figures->spares_bound = rsi_load_relaxed(&monitor.is_running) ? rsi_load_relaxed(&monitor.bound)
                                                                  : 0;
}

static void record_begin(struct rsi_worker *w, struct watched *watched, bool computes,
                         uint64_t now_ns)
{
    const struct rouse_thread *t = rsi_load_relaxed(&w->exec.current);
    /* t is in one of the slabs: acquire its creation. */
    for (unsigned i = 0; i < rsi_slab_count(); i++)
        (void)rsi_load_acquire(&rsi_slab_at(i)->used);
    struct rouse_stuck stuck = { .worker = w->index, .call = -1, .is_now = true };
    if (t) {
        stuck.thread_id = rsi_load_relaxed(&t->id);
        rouse_thread_name(t, stuck.name, sizeof stuck.name);
    }
    stuck.computes = computes;
    stuck.since_ns = watched->since_ns;
    stuck.lasted_ns = now_ns - watched->since_ns;
    if (!computes)
        call_read(rsi_load_relaxed(&w->tid), &stuck);
    watched->computes = computes;
    watched->stuck = monitor.stuck_count + 1;
    record_write(watched->stuck, &stuck);
    rsi_store_release(&monitor.stuck_count, watched->stuck); /* pairs with rouse_obs_stuck */
}

/* Update how long it has lasted, unless newer records have replaced this one. */
static void record_go_on(struct watched *watched, bool is_now, uint64_t now_ns)
{
    struct rouse_stuck stuck;
    if (monitor.stuck_count - watched->stuck < RECORDS - 1 && record_read(watched->stuck, &stuck)) {
        stuck.lasted_ns = now_ns - stuck.since_ns;
        stuck.is_now = is_now;
        record_write(watched->stuck, &stuck);
    }
    if (!is_now)
        watched->stuck = 0;
}

/* Whether w is known to be stuck at this time. */
static bool look_at(struct rsi_worker *w, uint64_t now_ns)
{
    struct watched *watched = &monitor.watched[w->index];
    uint64_t turns = rsi_load_relaxed(&w->turns);
    int32_t tid = rsi_load_relaxed(&w->tid);
    bool moved = turns != watched->turns || rsi_load_relaxed(&w->is_idle) ||
                 !rsi_load_relaxed(&w->exec.current);
    watched->turns = turns;
    if (moved || watched->since_ns == 0) {
        if (watched->stuck)
            record_go_on(watched, false, now_ns);
        watched->since_ns = moved ? 0 : now_ns;
        watched->cpu_ns = moved ? 0 : cpu_ns_of(tid);
        return false;
    }
    if (watched->stuck) {
        record_go_on(watched, true, now_ns);
        return true;
    }
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    bool is_inside = poller && poller->is_inside && poller->is_inside(w->index);
    uint64_t ran_ns = cpu_ns_of(tid) - watched->cpu_ns;
    bool computes = ran_ns >= COMPUTES_NS && !is_inside;
    if (!computes && (ran_ns >= (now_ns - watched->since_ns) / 2 || !is_asleep(tid)))
        return false;
    record_begin(w, watched, computes, now_ns);
    return true;
}

static bool has_waiting(struct rsi_worker *w, uint64_t now_ns)
{
    return rsi_worker_has_work(w) || rsi_load_relaxed(&w->next) ||
           rsi_load_relaxed(&w->timer_next_ns) <= now_ns;
}

/* Whether threads wait for descriptors and nobody polls. */
static bool poller_waits(void)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    uint32_t count = rsi_load_relaxed(&rsi_rt.poll_count);
    bool is_alone = count == monitor.polls && rsi_load_relaxed(&rsi_rt.polling) == 0;
    monitor.polls = count;
    return poller && is_alone && poller->has_waiters();
}

static bool is_spare(const struct rsi_worker *w)
{
    return rsi_load_relaxed(&w->is_spare) && !rsi_load_relaxed(&w->is_leaving);
}

/* most: how many the cluster may have. has: how many it has. */
static void spare_add(struct rouse_cluster *cluster, uint32_t has, uint32_t most)
{
    if (has >= most || monitor.spares >= monitor.bound || !rsi_spares_prepare() ||
        rsi_spares_add(cluster, &monitor.mask) != 0) {
        rsi_store_relaxed(&monitor.refused_count, monitor.refused_count + 1);
        return;
    }
    monitor.has_added = true;
    rsi_store_relaxed(&monitor.spares, monitor.spares + 1);
    if (monitor.spares > monitor.spares_most)
        rsi_store_relaxed(&monitor.spares_most, monitor.spares);
}

static bool is_stuck(const struct rsi_worker *w)
{
    return monitor.watched[w->index].stuck != 0;
}

/* Those that are idle or, in a busy cluster, that are not stuck. */
static void spares_remove(struct rouse_cluster *cluster, uint32_t count, bool in_busy)
{
    for (uint32_t i = 0; count != 0 && i < rsi_load_relaxed(&cluster->slot_count); i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (w && is_spare(w) && (in_busy ? !is_stuck(w) : rsi_load_relaxed(&w->is_idle)) &&
            rsi_spares_remove(cluster, w->index) >= 0)
            count--;
    }
}

static bool is_busy(const struct rouse_cluster *cluster)
{
    return rsi_load_relaxed(&cluster->worker_count) != 0 &&
           rsi_load_relaxed(&cluster->idle_count) == 0;
}

/* In any cluster. */
static bool any_is_busy(void)
{
    for (uint32_t i = 0; i < rsi_load_acquire(&rsi_rt.cluster_count); i++)
        if (is_busy(rsi_load_acquire(&rsi_rt.clusters[i])))
            return true;
    return false;
}

/*
 * Move what waits for stuck workers to another worker of the cluster. Normally the watcher does that, but perhaps no
 * worker is ever idle, and there are no more spares.
 */
static void relieve(struct rouse_cluster *cluster)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    struct rsi_worker *to = NULL;
    for (uint32_t i = 0; i < rsi_load_relaxed(&cluster->slot_count); i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (w && !is_stuck(w) && !rsi_load_relaxed(&w->is_leaving))
            to = w;
    }
    for (uint32_t i = 0; to && i < rsi_load_relaxed(&cluster->slot_count); i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        bool has_ring = w && poller && poller->needs_rescue && poller->needs_rescue(w->index);
        if (w && is_stuck(w) && (has_ring || rsi_worker_has_work(w)) && rsi_spares_prepare())
            rsi_spares_relieve(w, to);
    }
}

/* How many spares a cluster may have while so many of its workers are stuck, and so many of these compute. */
static uint32_t most_spares(uint32_t stuck, uint32_t computing)
{
    uint32_t most = monitor.computing_most;
    return stuck - computing + (computing < most ? computing : most);
}

/* polls: threads wait for I/O and no worker polls (poller_waits). */
static void check_cluster(struct rouse_cluster *cluster, bool polls, uint64_t now_ns)
{
    uint64_t *needless = &monitor.needless_since[cluster->home - 1];
    uint32_t stuck = 0, computing = 0, spares = 0;
    bool waits = polls;
    for (uint32_t i = 0; i < rsi_load_relaxed(&cluster->slot_count); i++) {
        struct rsi_worker *w = rsi_load_acquire(&cluster->workers[i]); /* pairs with list */
        if (!w)
            continue;
        bool is_now_stuck = look_at(w, now_ns);
        stuck += is_now_stuck;
        computing += is_now_stuck && monitor.watched[w->index].computes;
        spares += is_spare(w);
        waits = waits || has_waiting(w, now_ns);
    }
    const bool in_busy = is_busy(cluster);
    if (stuck != 0 && in_busy)
        relieve(cluster);
    if (spares <= stuck)
        *needless = 0;
    else if (*needless == 0)
        *needless = now_ns;
    else if (now_ns - *needless >= (in_busy ? BUSY_LINGER_NS : LINGER_NS))
        spares_remove(cluster, 1 + (spares - stuck) / REMOVED_PART, in_busy);
    /* A searcher was woken and is on its way. */
    if (stuck > spares && waits && is_busy(cluster) && rsi_load_relaxed(&cluster->searching) == 0)
        spare_add(cluster, spares, most_spares(stuck, computing));
}

/* Count the spares. Returns the turns of all workers. */
static uint64_t count_all(void)
{
    uint32_t spares = 0;
    uint64_t turns = 0;
    for (uint32_t i = 0; i < rsi_worker_count(); i++) {
        struct rsi_worker *w = rsi_rt.workers[i];
        turns += rsi_load_relaxed(&w->turns);
        spares += is_spare(w) && !rsi_load_relaxed(&w->is_free);
    }
    rsi_store_relaxed(&monitor.spares, spares);
    return turns;
}

/* Look at all clusters once. False: no need to look again soon. */
static bool look(uint64_t now_ns)
{
    uint64_t turns = count_all();
    rsi_sampling_begin_era();
    bool polls = poller_waits(), goes_on = turns != monitor.turns;
    monitor.turns = turns;
    for (uint32_t i = 0; i < rsi_load_acquire(&rsi_rt.cluster_count); i++) {
        struct rouse_cluster *cluster = rsi_load_acquire(&rsi_rt.clusters[i]);
        goes_on = goes_on || is_busy(cluster);
        if (is_busy(cluster) || monitor.spares != 0)
            check_cluster(cluster, polls, now_ns);
    }
    return goes_on;
}

/* Sleep until a cluster has no idle worker; while there are spares, not for long. */
static void sleep_until_busy(uint64_t now_ns)
{
    rsi_store_relaxed(&monitor.awake, 0u); /* M1 */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!any_is_busy()) /* M2 */
        rsi_futex_wait(&monitor.awake, 0, monitor.spares ? now_ns + PERIOD_LONG_NS : UINT64_MAX);
    rsi_store_relaxed(&monitor.awake, 1u);
}

static void *monitor_main(void *unused)
{
    uint64_t period_ns = PERIOD_MIN_NS;
    pthread_setname_np(pthread_self(), "rouse-monitor");
    for (;;) {
        uint64_t now_ns = rsi_now_ns();
        if (look(now_ns)) {
            if (monitor.has_added)
                period_ns = PERIOD_MIN_NS;
            monitor.has_added = false;
            rsi_futex_wait(&monitor.awake, 1, now_ns + period_ns);
            period_ns = period_ns * 2 < PERIOD_MAX_NS ? period_ns * 2 : PERIOD_MAX_NS;
        } else {
            sleep_until_busy(now_ns);
            period_ns = PERIOD_MIN_NS;
        }
    }
    return unused;
}

/* The last idle worker of a cluster has left the idle list. */
void rsi_monitor_wake(void)
{
    uint32_t asleep = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* W1 is before W2 */
    if (rsi_likely(rsi_load_relaxed(&monitor.awake) != 0))
        return;
    if (rsi_cas_relaxed(&monitor.awake, &asleep, 1u)) /* W2 */
        rsi_futex_wake(&monitor.awake, 1);
}

/*
 * Called with the runtime's lock when the runtime starts. If the kernel thread cannot be started there is no
 * monitor.
 */
void rsi_monitor_start(uint32_t bound, uint32_t computing_most)
{
    rsi_store_relaxed(&monitor.bound, bound);
    monitor.computing_most = computing_most;
    if (bound == 0 || rsi_load_relaxed(&monitor.is_running))
        return;
    pthread_sigmask(SIG_SETMASK, NULL, &monitor.mask);
    rsi_store_relaxed(&monitor.is_running, 1u);
    if (!rsi_helper_start(monitor_main))
        rsi_store_relaxed(&monitor.is_running, 0u);
}

unsigned rsi_monitor_threads(void)
{
    return rsi_load_relaxed(&monitor.is_running) + rsi_spares_threads();
}

/* In a child after fork there is neither monitor nor spare. Called before the workers' state is reset. */
void rsi_monitor_child(void)
{
    for (uint32_t i = 0; i < rsi_rt.worker_count; i++) {
        struct rsi_worker *w = rsi_rt.workers[i];
        if (is_spare(w) && !w->is_free && w->cluster->wanted > 1)
            w->cluster->wanted--;
        w->is_spare = false;
    }
    rsi_spares_child();
    monitor.is_running = 0;
    monitor.awake = 1;
    monitor.spares = monitor.spares_most = 0;
    monitor.stuck_count = monitor.refused_count = 0;
    memset(monitor.needless_since, 0, sizeof monitor.needless_since);
    memset(monitor.watched, 0, sizeof monitor.watched);
}
