/* SPDX-License-Identifier: MIT */
/*
 * cluster.c - the public calls on clusters: create and destroy them, give them threads and workers.
 *
 * A cluster's structure is never freed, because threads name clusters by number, possibly late. The threads
 * of a cluster are not counted: every creation would write to a shared cache line. So destroying works like
 * this:
 *   destroy: D1 state = CLOSING;  heavy fence;  D2 look at the home of every thread; if one is found: LIVE again
 *   enter:   N1 home = the cluster (and its thread lives);  light fence;  N2 look at state; if not LIVE: undo
 * D2 sees the thread or N2 sees the state. The default cluster does not need this, since it is never
 * destroyed.
 */
#include "core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AFFINITY_DEFAULT 3

struct rouse_cluster rsi_cluster_default = {
    .home = 1,
    .state = RSI_CLUSTER_LIVE,
    .name = "default",
};

struct rouse_cluster rsi_cluster_retired = {
    .home = RSI_HOME_NONE,
    .state = RSI_CLUSTER_LIVE,
    .is_shortest = true, /* no worker in it steals */
};

/*
 * How long a new cluster waits for the workers of destroyed clusters to end, if there is room for no other.
 */
#define ENDING_NS UINT64_C(1000000000)

/*
 * How eagerly idle workers steal, by steal affinity: the time between two steals, and the share taken.
 * docs/design/scheduling.md says what each costs.
 */
static const struct {
    uint32_t pause_ns, eighths;
} steal_levels[] = {
    { 0, 8 }, { 10000, 6 }, { 20000, 4 }, { 40000, 2 }, { 80000, 1 }, { 160000, 0 },
};
_Static_assert(sizeof steal_levels / sizeof *steal_levels == ROUSE_STEAL_AFFINITY_MAX,
               "a row each");

static void settle(struct rouse_cluster *cluster, enum rouse_place place, unsigned affinity)
{
    rsi_store_relaxed(&cluster->is_shortest, place == ROUSE_PLACE_SHORTEST);
    cluster->affinity = affinity;
    rsi_store_relaxed(&cluster->idle_timer_ns, UINT64_MAX);
    cluster->steal_pause_ns = steal_levels[affinity - 1].pause_ns;
    cluster->steal_eighths = steal_levels[affinity - 1].eighths;
}

static unsigned affinity_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_STEAL_AFFINITY");
    if (!text || !*text)
        return AFFINITY_DEFAULT;
    if (text[0] < '0' + ROUSE_STEAL_AFFINITY_MIN || text[0] > '0' + ROUSE_STEAL_AFFINITY_MAX ||
        text[1])
        rsi_fatal("ROUSE_STEAL_AFFINITY is \"%s\"; give a number from %d to %d", text,
                  ROUSE_STEAL_AFFINITY_MIN, ROUSE_STEAL_AFFINITY_MAX);
    return (unsigned)(text[0] - '0');
}

static enum rouse_place place_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_PLACE");
    if (!text || !*text || strcmp(text, "steal") == 0)
        return ROUSE_PLACE_STEAL;
    if (strcmp(text, "shortest") != 0)
        rsi_fatal("ROUSE_PLACE is \"%s\"; give steal or shortest", text);
    return ROUSE_PLACE_SHORTEST;
}

/* Settings of the default cluster, before its workers start. */
void rsi_clusters_from_environment(void)
{
    settle(&rsi_cluster_default, place_from_environment(), affinity_from_environment());
    rsi_rt.clusters[0] = &rsi_cluster_default;
    rsi_rt.cluster_count = 1;
}

/* Find the structure of a cluster that has ended, or allocate a new one. */
static int find_locked(struct rouse_cluster **out)
{
    uint32_t index = 0;
    while (index < rsi_rt.cluster_count && rsi_rt.clusters[index]->state != RSI_CLUSTER_FREE)
        index++;
    if (index == ROUSE_CLUSTERS_MAX)
        return -EAGAIN;
    struct rouse_cluster *cluster = rsi_rt.clusters[index];
    if (!cluster) {
        cluster = aligned_alloc(RSI_CACHE_LINE, sizeof *cluster);
        if (!cluster)
            return -ENOMEM;
        memset(cluster, 0, sizeof *cluster);
        cluster->home = (uint16_t)(index + 1);
        /* Pairs with readers of all clusters. */
        rsi_store_release(&rsi_rt.clusters[index], cluster);
        rsi_store_release(&rsi_rt.cluster_count, index + 1);
    }
    *out = cluster;
    return 0;
}

static void name_store(struct rouse_cluster *cluster, const char *name)
{
    size_t i = 0;
    for (; name && name[i] && i < ROUSE_NAME_BYTES - 1; i++) {
        unsigned char c = (unsigned char)name[i];
        cluster->name[i] = c < 32 || c == 127 ? '?' : (char)c;
    }
    cluster->name[i] = 0;
}

/* Start the cluster's workers. If one cannot be started, end those that were. */
static int start_locked(struct rouse_cluster *cluster, struct rouse_thread **queued)
{
    int error = 0;
    rsi_store_relaxed(&cluster->state, RSI_CLUSTER_LIVE);
    while (cluster->staying_count < cluster->wanted && error == 0) {
        struct rsi_worker *w;
        error = rsi_workers_add_locked(cluster, &w);
        if (error == 0)
            rsi_poller_own(w->index);
    }
    if (error) {
        rsi_store_relaxed(&cluster->state,
                          cluster->worker_count ? RSI_CLUSTER_ENDING : RSI_CLUSTER_FREE);
        rsi_workers_end_locked(cluster, queued);
    }
    return error;
}

static bool is_usable(const struct rouse_cluster_attr *attr)
{
    return (unsigned)attr->place <= ROUSE_PLACE_SHORTEST && attr->workers <= RSI_WORKERS_MAX &&
           attr->steal_affinity <= ROUSE_STEAL_AFFINITY_MAX;
}

/* Whether a destroyed cluster still waits for its workers to end. */
static bool any_ends(void)
{
    bool found = false;
    rsi_runtime_lock();
    for (uint32_t i = 0; i < rsi_rt.cluster_count && !found; i++)
        found = rsi_rt.clusters[i]->state == RSI_CLUSTER_ENDING;
    rsi_runtime_unlock();
    return found;
}

static int create(struct rouse_cluster **out, const struct rouse_cluster_attr *attr,
                  const struct rsi_cpus *cpus)
{
    struct rouse_cluster *cluster = NULL;
    struct rouse_thread *queued = NULL;
    rsi_runtime_lock();
    int error = find_locked(&cluster);
    if (!error) {
        settle(cluster, attr->place,
               attr->steal_affinity ? attr->steal_affinity : rsi_cluster_default.affinity);
        name_store(cluster, attr->name);
        cluster->wanted = attr->workers ? attr->workers : 1;
        cluster->past_turns = cluster->past_steals = cluster->past_stolen = 0;
        rsi_cpus_bind_locked(cluster, cpus);
        error = start_locked(cluster, &queued);
    }
    rsi_runtime_unlock();
    rsi_run_elsewhere_list(queued);
    if (!error)
        *out = cluster;
    return error;
}

int rouse_cluster_create(struct rouse_cluster **out, const struct rouse_cluster_attr *attr)
{
    static const struct rouse_cluster_attr defaults = ROUSE_CLUSTER_ATTR_INIT;
    struct rsi_cpus cpus;
    attr = attr ? attr : &defaults;
    if (!out || !is_usable(attr) || (attr->cpus && rsi_cpus_parse(attr->cpus, &cpus) != 0))
        return -EINVAL;
    int error = rsi_runtime_try_start();
    if (error)
        return error;
    uint64_t limit_ns = rsi_now_ns() + ENDING_NS;
    for (;;) {
        /* Checked before the attempt, because the last of them may end during it. */
        bool may_help = any_ends() && rsi_now_ns() < limit_ns;
        error = create(out, attr, attr->cpus ? &cpus : NULL);
        if (error != -EAGAIN || !may_help)
            break;
        rouse_thread_yield();
    }
    return error;
}

/* Whether a live thread belongs to the cluster. */
static bool has_thread(const struct rouse_cluster *cluster)
{
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        for (uint32_t slot = 0; slot < rsi_load_acquire(&slab->used); slot++) {
            struct rouse_thread *t = rsi_slab_block(slab, slot);
            if (rsi_load_acquire(&t->waiter.life) == RSI_LIFE_LIVE &&
                rsi_load_relaxed(&t->waiter.home) == cluster->home)
                return true;
        }
    }
    return false;
}

int rouse_cluster_destroy(struct rouse_cluster *cluster)
{
    struct rouse_thread *queued = NULL;
    int error = -EINVAL;
    if (!cluster || cluster == &rsi_cluster_default)
        return error;
    rsi_runtime_lock();
    if (cluster->state == RSI_CLUSTER_LIVE) {
        rsi_store_relaxed(&cluster->state, RSI_CLUSTER_CLOSING); /* D1 */
        rsi_fence_heavy();
        error = has_thread(cluster) ? -EBUSY : 0; /* D2 */
        rsi_store_relaxed(&cluster->state, error ? RSI_CLUSTER_LIVE : RSI_CLUSTER_ENDING);
        if (!error)
            rsi_workers_end_locked(cluster, &queued);
    }
    rsi_runtime_unlock();
    rsi_run_elsewhere_list(queued);
    return error;
}

/* Make t belong to cluster. Returns 0, or -EINVAL with nothing changed if the cluster was destroyed. */
int rsi_cluster_enter(struct rouse_thread *t, struct rouse_cluster *cluster)
{
    uint16_t before = rsi_load_relaxed(&t->waiter.home), home = cluster->home;
    if (rsi_load_relaxed(&cluster->state) != RSI_CLUSTER_LIVE)
        return -EINVAL;
    rsi_store_relaxed(&t->waiter.home, home); /* N1 */
    rsi_fence_light();
    rsi_test_delay();
    if (rsi_load_relaxed(&cluster->state) == RSI_CLUSTER_LIVE) /* N2 */
        return 0;
    rsi_cas_relaxed(&t->waiter.home, &home, before);
    return -EINVAL;
}

int rouse_thread_move(struct rouse_thread *t, struct rouse_cluster *cluster)
{
    struct rouse_thread *self = rsi_self();
    if (!t || !cluster || t->waiter.origin != RSI_ORIGIN_USER)
        return -EINVAL;
    if (rsi_load_relaxed(&t->waiter.life) != RSI_LIFE_LIVE)
        return -ESRCH;
    int error = rsi_runtime_try_start();
    if (!error)
        error = rsi_cluster_enter(t, cluster);
    if (!error && t == self)
        rsi_thread_leave(self);
    return error;
}

struct rouse_cluster *rouse_cluster_default(void)
{
    return &rsi_cluster_default;
}

struct rouse_cluster *rouse_thread_cluster(const struct rouse_thread *t)
{
    uint16_t home = rsi_load_relaxed(&t->waiter.home);
    return home ? rsi_cluster_of(home) : NULL;
}

int rouse_cluster_worker_add(struct rouse_cluster *cluster)
{
    struct rsi_worker *w = NULL;
    int error = cluster ? rsi_runtime_try_start() : -EINVAL;
    if (!error)
        error = rsi_workers_add(cluster, false, &w);
    if (!error)
        rsi_poller_own(w->index);
    return error ? error : (int)w->index;
}

int rouse_cluster_worker_remove(struct rouse_cluster *cluster, int worker)
{
    int error = cluster ? rsi_runtime_try_start() : -EINVAL;
    return error ? error : rsi_workers_remove(cluster, worker);
}

int rouse_cluster_worker_pin(struct rouse_cluster *cluster, int worker, const char *cpus)
{
    struct rsi_cpus set;
    if (!cluster || (cpus && rsi_cpus_parse(cpus, &set) != 0))
        return -EINVAL;
    int error = rsi_runtime_try_start();
    return error ? error : rsi_cpus_pin(cluster, worker, cpus ? &set : NULL);
}

void rouse_cluster_stats_read(struct rouse_cluster *cluster, struct rouse_cluster_stats *stats)
{
    *stats = (struct rouse_cluster_stats){ 0 };
    if (rsi_runtime_try_start() != 0)
        return;
    rsi_runtime_lock();
    stats->workers = cluster->staying_count;
    stats->idle = rsi_load_relaxed(&cluster->idle_count);
    stats->steal_affinity = cluster->affinity;
    stats->place = cluster->is_shortest ? ROUSE_PLACE_SHORTEST : ROUSE_PLACE_STEAL;
    stats->turns = cluster->past_turns;
    stats->steals = cluster->past_steals;
    stats->stolen = cluster->past_stolen;
    for (uint32_t i = 0; i < cluster->slot_count; i++) {
        const struct rsi_worker *w = cluster->workers[i];
        if (!w)
            continue;
        stats->queued += rsi_load_relaxed(&w->queue_length) + (rsi_load_relaxed(&w->next) != NULL);
        stats->turns += rsi_load_relaxed(&w->turns);
        stats->steals += rsi_load_relaxed(&w->steals);
        stats->stolen += rsi_load_relaxed(&w->stolen);
    }
    rsi_runtime_unlock();
}

/* In a child after fork: workers are started again later. Clusters that were about to end have ended. */
void rsi_clusters_child(void)
{
    for (uint32_t i = 0; i <= rsi_rt.cluster_count; i++) {
        bool is_retired = i == rsi_rt.cluster_count;
        struct rouse_cluster *cluster = is_retired ? &rsi_cluster_retired : rsi_rt.clusters[i];
        if (cluster->state == RSI_CLUSTER_ENDING)
            cluster->state = RSI_CLUSTER_FREE;
        memset(cluster->workers, 0, cluster->slot_count * sizeof *cluster->workers);
        cluster->slot_count = cluster->worker_count = cluster->staying_count = 0;
    }
}
