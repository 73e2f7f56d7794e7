/* SPDX-License-Identifier: MIT */
/*
 * rouse/cluster.h - clusters: groups of workers that share the threads they run.
 *
 * A program starts with one cluster, the default cluster, and may create more. A user thread belongs to one
 * cluster, and only the workers of that cluster run it. If all workers of a cluster are busy, other clusters
 * are not slowed down. struct rouse_thread_attr (rouse/thread.h) chooses the cluster of a new thread.
 *
 * Threads of all clusters may use the same locks and descriptors. Data that the io_uring of one cluster's
 * worker has received or accepted ahead is delivered when that worker runs.
 *
 * Calls return 0 or a non-negative result, or -errno. Any kind of thread may make them. None blocks for longer
 * than it takes to start a kernel thread, unless its comment says otherwise.
 */
#ifndef ROUSE_CLUSTER_H
#define ROUSE_CLUSTER_H

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/*
 * The most clusters that may exist at once, the default cluster included. A destroyed cluster counts until its
 * workers have ended.
 */
#define ROUSE_CLUSTERS_MAX 64

/*
 * Steal affinity: how reluctant workers are to steal threads from each other. At 1 they steal as soon as they
 * can; at 6 threads stay where they are the longest.
 */
#define ROUSE_STEAL_AFFINITY_MIN 1
#define ROUSE_STEAL_AFFINITY_MAX 6

struct rouse_cluster;

/*
 * Placement: which worker's queue receives a new thread, or one that was woken from outside its cluster.
 *
 * ROUSE_PLACE_STEAL     The worker that created the thread or ran it last. Idle workers steal from others.
 * ROUSE_PLACE_SHORTEST  The worker with the fewest runnable threads. Workers steal only from a worker whose
 *                       current thread has occupied it for milliseconds.
 * ROUSE_PLACE_DEFAULT   The same as ROUSE_PLACE_STEAL.
 */
enum rouse_place { ROUSE_PLACE_DEFAULT, ROUSE_PLACE_STEAL, ROUSE_PLACE_SHORTEST };

struct rouse_cluster_attr {
    /* Copied, and cut to ROUSE_NAME_BYTES. NULL: no name. */
    const char *name;
    /* 0: one worker. */
    unsigned workers;
    enum rouse_place place;
    /* 1 to 6. 0: that of the default cluster. */
    unsigned steal_affinity;
    /* CPUs that its workers may use, such as "0-3,8". NULL: every CPU that the process may use. */
    const char *cpus;
};

#define ROUSE_CLUSTER_ATTR_INIT \
    { \
        NULL, 0, ROUSE_PLACE_DEFAULT, 0, NULL \
    }

/*
 * Create a cluster and start its workers.
 *
 * out      receives the handle, which is valid until the cluster is destroyed.
 * attr     NULL for the defaults.
 * Returns  0; -EINVAL (out or attr is invalid, or the process may use none of the CPUs); -EAGAIN (too many
 *          clusters, workers or kernel threads); -ENOMEM. On error nothing was started.
 * Blocks   usually not. While workers of destroyed clusters still hold what it needs, it lets other threads
 *          run, for at most one second.
 */
int rouse_cluster_create(struct rouse_cluster **out, const struct rouse_cluster_attr *attr);

/*
 * Destroy a cluster that has no threads left. Its workers end soon afterwards.
 *
 * Returns  0; -EBUSY (a thread that has not ended belongs to it); -EINVAL (the default cluster, or already
 *          destroyed).
 * Ordering a thread that is created in the cluster or moved to it at the same time either prevents the
 *          destruction or fails with -EINVAL.
 */
int rouse_cluster_destroy(struct rouse_cluster *cluster);

/* The default cluster, which always exists. ROUSE_WORKERS, ROUSE_PLACE and ROUSE_STEAL_AFFINITY configure it. */
struct rouse_cluster *rouse_cluster_default(void);

/* The cluster that a user thread belongs to; NULL for any other kind of thread. */
struct rouse_cluster *rouse_thread_cluster(const struct rouse_thread *t);

/*
 * Move t to another cluster. If t is the calling thread, it runs in the new cluster when the call returns.
 * Another thread moves before its next turn; a turn in progress finishes where it is.
 *
 * Returns  0; -EINVAL (t is not a user thread, or the cluster was destroyed); -ESRCH (t has ended).
 * Blocks   only if t is the calling thread: until a worker of the new cluster runs it.
 */
int rouse_thread_move(struct rouse_thread *t, struct rouse_cluster *cluster);

/*
 * Start one more worker. (ROUSE_WORKERS is the number of workers that the default cluster starts with.)
 *
 * Returns  the new worker's number, as returned by rouse_worker_index; or -EINVAL, -EAGAIN, -ENOMEM.
 */
int rouse_cluster_worker_add(struct rouse_cluster *cluster);

/*
 * Let a worker end once the thread that it is running parks, yields or ends. The cluster's other workers take
 * over its threads and their deadlines.
 *
 * worker   its number; negative: any worker.
 * Returns  its number, which a later worker may reuse; -EBUSY (it is the last worker of the cluster); -EINVAL (it
 *          is not a worker of the cluster, or it is ending already).
 */
int rouse_cluster_worker_remove(struct rouse_cluster *cluster, int worker);

/*
 * Bind a worker to CPUs.
 *
 * worker   its number; negative: all workers of the cluster, including those added later.
 * cpus     such as "0-3,8"; NULL: every CPU that the process may use.
 * Returns  0; -EINVAL (cpus is invalid, or there is no such worker).
 */
int rouse_cluster_worker_pin(struct rouse_cluster *cluster, int worker, const char *cpus);

/* Statistics of a cluster. Workers run on while they are read, so the fields need not be of one instant. */
struct rouse_cluster_stats {
    /* Workers, except those that are ending. */
    unsigned workers;
    /* Idle workers, including any that are ending. */
    unsigned idle;
    unsigned steal_affinity;
    enum rouse_place place;
    /* Runnable threads that wait for a worker. */
    uint64_t queued;
    /* The counts below begin when the workers start. turns: times that a worker ran a thread. */
    uint64_t turns;
    /* Successful steals, each of one or more threads. */
    uint64_t steals;
    /* Threads stolen. */
    uint64_t stolen;
};
void rouse_cluster_stats_read(struct rouse_cluster *cluster, struct rouse_cluster_stats *stats);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
