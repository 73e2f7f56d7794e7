/* SPDX-License-Identifier: MIT */
/* runtime.c - starts the runtime at the first call that needs it; its settings; thread ids. */
#include "core/core.h"
#include "core/tls.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define ID_RANGE 1024

struct rsi_runtime rsi_rt;

static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned workers_wanted; /* under start_mutex; 0: not decided yet */
static int spares_config;       /* under start_mutex; as in rouse_config */
static unsigned spares_wanted;  /* under start_mutex */
static unsigned computing_most; /* under start_mutex; see rsi_monitor_start */
static enum rouse_io io_wanted; /* written under start_mutex */

static unsigned workers_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_WORKERS");
    if (!text || !*text)
        return 0;
    char *end;
    unsigned long workers = strtoul(text, &end, 10);
    if (*end || workers == 0 || workers > RSI_WORKERS_MAX)
        rsi_fatal("ROUSE_WORKERS is \"%s\"; give a number from 1 to %d", text, RSI_WORKERS_MAX);
    return (unsigned)workers;
}

/* As many as a process may have, unless ROUSE_SPARES gives another number. */
static unsigned spares_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_SPARES");
    computing_most = workers_wanted;
    if (!text || !*text)
        return RSI_WORKERS_MAX;
    char *end;
    unsigned long spares = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || spares > RSI_WORKERS_MAX)
        rsi_fatal("ROUSE_SPARES is \"%s\"; give a number from 0 to %d", text, RSI_WORKERS_MAX);
    computing_most = (unsigned)spares;
    return (unsigned)spares;
}

static enum rouse_kind kind_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_THREADS");
    if (!text || !*text || strcmp(text, "user") == 0)
        return ROUSE_KIND_USER;
    if (strcmp(text, "kernel") != 0)
        rsi_fatal("ROUSE_THREADS is \"%s\"; give user or kernel", text);
    return ROUSE_KIND_KERNEL;
}

static bool own_tls_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_TLS");
    if (!text || !*text || strcmp(text, "shared") == 0)
        return false;
    if (strcmp(text, "own") != 0)
        rsi_fatal("ROUSE_TLS is \"%s\"; give shared or own", text);
    if (!rsi_tls_is_supported())
        rsi_fatal(
            "ROUSE_TLS=own needs glibc, a program without sanitizers, and on x86-64 the wrfsbase instruction "
            "(Linux 5.9, flag fsgsbase in /proc/cpuinfo). Use ROUSE_THREADS=kernel");
    return true;
}

static void workers_settle_locked(void)
{
    if (workers_wanted == 0)
        workers_wanted = workers_from_environment();
    if (workers_wanted == 0)
        workers_wanted = rsi_cpu_count();
    if (workers_wanted > RSI_WORKERS_MAX)
        workers_wanted = RSI_WORKERS_MAX;
    if (spares_config == 0)
        spares_wanted = spares_from_environment();
    else
        computing_most = spares_wanted = spares_config < 0 ? 0 : (unsigned)spares_config;
}

int rouse_configure(const struct rouse_config *config)
{
    if (!config || config->workers > RSI_WORKERS_MAX || config->spares > RSI_WORKERS_MAX ||
        (unsigned)config->io > ROUSE_IO_URING)
        return -EINVAL;
    pthread_mutex_lock(&start_mutex);
    bool is_late = rsi_load_relaxed(&rsi_rt.is_started);
    if (!is_late)
        workers_wanted = config->workers;
    if (!is_late)
        spares_config = config->spares;
    if (!is_late)
        rsi_store_relaxed(&io_wanted, config->io);
    pthread_mutex_unlock(&start_mutex);
    return is_late ? -EBUSY : 0;
}

enum rouse_io rsi_config_io(void)
{
    return rsi_load_relaxed(&io_wanted);
}

unsigned rouse_worker_count(void)
{
    pthread_mutex_lock(&start_mutex);
    workers_settle_locked();
    bool is_started = rsi_load_relaxed(&rsi_rt.is_started);
    unsigned count = is_started || rsi_cluster_default.wanted ? 0 : workers_wanted;
    for (uint32_t i = 0; i < rsi_rt.cluster_count; i++) {
        const struct rouse_cluster *cluster = rsi_rt.clusters[i];
        if (cluster->state == RSI_CLUSTER_LIVE)
            count += is_started ? cluster->staying_count : cluster->wanted;
    }
    pthread_mutex_unlock(&start_mutex);
    return count;
}

int rouse_worker_index(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    return exec->worker ? (int)exec->worker->index : -1;
}

/* An id that was never used before. Workers take ids in ranges, so that they share no cache line. */
uint64_t rsi_id_next(struct rsi_worker *w)
{
    if (!w)
        return rsi_fetch_add_relaxed(&rsi_rt.ids, 1u) + 1;
    if (w->id_next == w->id_end) {
        w->id_next = rsi_fetch_add_relaxed(&rsi_rt.ids, ID_RANGE) + 1;
        w->id_end = w->id_next + ID_RANGE;
    }
    return w->id_next++;
}

/* On how many processors workers may run at once. The number that rouse_configure gets may come later: it does not count. */
static unsigned processors_of_workers(void)
{
#ifdef ROUSE_TEST
    const char *pretended = secure_getenv("ROUSE_TEST_PROCESSORS");
    if (pretended)
        return (unsigned)atoi(pretended);
#endif
    unsigned processors = rsi_cpu_affinity();
    if (processors <= RSI_FENCE_PROCESSORS_MOST) /* the files of quotas make no difference */
        return processors;
    processors = rsi_cpu_count();
    unsigned workers = workers_from_environment();
    return workers && workers < processors ? workers : processors;
}

static void setup_once(void)
{
    rsi_fence_setup(processors_of_workers());
    rsi_stack_guards_are_light();
    rsi_rt.default_kind = kind_from_environment();
    rsi_rt.is_tls_own = own_tls_from_environment();
    rsi_clusters_from_environment();
    rsi_cpus_setup();
    rsi_kernel_thread_setup();
    rsi_tls_setup();
    rsi_fault_setup();
    rsi_fork_setup();
    rsi_obs_setup();
    rsi_pressure_setup();
}

/* Start as many of the cluster's workers as possible; after a fork, again. Fails if there is none. */
static int cluster_start_locked(struct rouse_cluster *cluster)
{
    int error = 0;
    while (cluster->staying_count < cluster->wanted && error == 0)
        error = rsi_workers_add_locked(cluster, NULL);
    return cluster->staying_count != 0 ? 0 : error;
}

/* Start as many workers as possible. Fails if a cluster has none. */
int rsi_runtime_try_start_slow(void)
{
    static bool is_set_up;
    int error = 0;
    pthread_mutex_lock(&start_mutex);
    if (!rsi_load_relaxed(&rsi_rt.is_started)) {
        workers_settle_locked();
        if (!is_set_up)
            setup_once();
        is_set_up = true;
        if (rsi_cluster_default.wanted == 0)
            rsi_cluster_default.wanted = workers_wanted;
        for (uint32_t i = 0; i < rsi_rt.cluster_count && error == 0; i++)
            if (rsi_rt.clusters[i]->state == RSI_CLUSTER_LIVE)
                error = cluster_start_locked(rsi_rt.clusters[i]);
        if (error == 0) {
            rsi_monitor_start(spares_wanted, computing_most);
            rsi_store_release(&rsi_rt.is_started, 1u);
        }
    }
    pthread_mutex_unlock(&start_mutex);
    return error;
}

/*
 * For calls of kernel threads, which need no worker. If none can be started now, a later call tries again, as does the
 * creation of the first user thread, which returns the error.
 */
void rsi_runtime_start_slow(void)
{
    (void)rsi_runtime_try_start_slow();
}

void rsi_runtime_lock(void)
{
    pthread_mutex_lock(&start_mutex);
}

void rsi_runtime_unlock(void)
{
    pthread_mutex_unlock(&start_mutex);
}

void rsi_poller_register(const struct rsi_poller *poller)
{
    rsi_runtime_start();
    rsi_store_release(&rsi_rt.poller, poller); /* pairs with idle workers' acquire */
    /*
     * Workers that already sleep do so without the poller, and a kernel thread that waits would wake none of
     * them.
     */
    rsi_idle_wake_any();
}

void rsi_poller_own(unsigned worker_index)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller); /* pairs with register */
    if (poller && poller->own)
        poller->own(worker_index);
}

/*
 * In a child after fork. survivor is the worker that forked, NULL if a kernel thread did. The next call that
 * starts the runtime starts the other workers again.
 */
void rsi_runtime_child(struct rsi_worker *survivor)
{
    rsi_idle_child();
    rsi_clusters_child();
    rsi_workers_child(survivor);
    rsi_rt.helpers_busy = rsi_rt.kernel_parked = 0;
    rsi_rt.kernel_known = survivor || !rsi_exec_self()->current ? 0 : 1;
    rsi_rt.is_main_worker = survivor != NULL;
    rsi_store_release(&rsi_rt.is_started, 0u);
}
