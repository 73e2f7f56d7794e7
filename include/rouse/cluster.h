/* SPDX-License-Identifier: MIT */
/*
 * rouse/cluster.h - clusters: workers that share their threads.
 *
 * A program has one cluster, the default one, unless it makes more. A user thread belongs to one cluster
 * and is run by that one's workers alone; a cluster whose workers are all busy does not slow down another.
 * Threads of all clusters may use the same sync objects and descriptors; what an io_uring of one cluster's
 * worker receives or accepts waits for that worker. rouse_thread_attr says in which cluster a thread begins.
 *
 * Calls return 0 or a non-negative result, or -errno, from a thread of any kind; none blocks for longer than
 * it takes to start a kernel thread.
 */
#ifndef ROUSE_CLUSTER_H
#define ROUSE_CLUSTER_H

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Clusters at once, the default one among them; those that were destroyed count until their workers ended. */
#define ROUSE_CLUSTERS_MAX 64

/* Steal affinity: from workers that take from each other as soon as they can, to threads that stay. */
#define ROUSE_STEAL_AFFINITY_MIN 1
#define ROUSE_STEAL_AFFINITY_MAX 6

struct rouse_cluster;

/*
 * Where a thread goes that is new, or that was woken from outside of its cluster.
 * ROUSE_PLACE_STEAL     to the worker that created it or ran it last; workers that have nothing to do take
 *                       over from others.
 * ROUSE_PLACE_SHORTEST  to the worker with the fewest threads to run. Workers take nothing from each other,
 *                       but from one whose thread has kept it for milliseconds.
 * ROUSE_PLACE_DEFAULT   steal.
 */
enum rouse_place { ROUSE_PLACE_DEFAULT, ROUSE_PLACE_STEAL, ROUSE_PLACE_SHORTEST };

struct rouse_cluster_attr {
    const char *name;        /* copied, cut to ROUSE_NAME_BYTES; NULL: none */
    unsigned workers;        /* 0: one */
    enum rouse_place place;  /* see above */
    unsigned steal_affinity; /* 1 to 6; 0: as the default cluster */
    const char *cpus; /* "0-3,8": where its workers may run; NULL: wherever the process may */
};

#define ROUSE_CLUSTER_ATTR_INIT \
    { \
        NULL, 0, ROUSE_PLACE_DEFAULT, 0, NULL \
    }

/*
 * Make a cluster and start its workers.
 *
 * out      gets the handle, valid until the cluster is destroyed.
 * attr     NULL for the defaults.
 * Returns  0, -EINVAL (out or attr unusable, or no CPU of cpus is this process's), -EAGAIN (too many clusters,
 *          workers or kernel threads), -ENOMEM; on error nothing was started.
 * Blocks   no; but while workers of destroyed clusters hold what it needs, it lets others run, up to a second.
 */
int rouse_cluster_create(struct rouse_cluster **out, const struct rouse_cluster_attr *attr);

/*
 * End a cluster in which no thread is left; its workers end soon.
 *
 * Returns  0, -EBUSY (a thread belongs to it that has not ended), -EINVAL (the default cluster, or already
 *          destroyed).
 * Ordering a thread that is created in it or moved to it at the same time either keeps it, or gets -EINVAL.
 */
int rouse_cluster_destroy(struct rouse_cluster *cluster);

/* The cluster that is always there: of ROUSE_WORKERS workers, ROUSE_PLACE and ROUSE_STEAL_AFFINITY. */
struct rouse_cluster *rouse_cluster_default(void);

/* The cluster that a user thread belongs to; NULL of a thread of another kind. */
struct rouse_cluster *rouse_thread_cluster(const struct rouse_thread *t);

/*
 * Let t belong to another cluster. Oneself: the calling thread is run there when this returns. Another
 * thread goes there before its next turn; a turn under way is finished where it is.
 *
 * Returns  0, -EINVAL (no user thread, or a cluster that was destroyed), -ESRCH (t has ended).
 * Blocks   nobody; oneself: until a worker of that cluster has a turn for the caller.
 */
int rouse_thread_move(struct rouse_thread *t, struct rouse_cluster *cluster);

/*
 * Start one more worker; ROUSE_WORKERS says how many the default cluster has at first.
 * Returns its number, as rouse_worker_index tells it; or -EINVAL, -EAGAIN, -ENOMEM.
 */
int rouse_cluster_worker_add(struct rouse_cluster *cluster);

/*
 * Let a worker end when the turn of the thread that it runs is over. Its threads and their deadlines go to
 * the others of its cluster.
 *
 * worker   its number; negative: any.
 * Returns  its number, which a worker to come may have; -EBUSY (it is the cluster's last), -EINVAL (none of
 *          the cluster, or it is ending).
 */
int rouse_cluster_worker_remove(struct rouse_cluster *cluster, int worker);

/*
 * Bind a worker to CPUs; negative: all of the cluster's, those to come as well.
 *
 * cpus     "0-3,8"; NULL: wherever the process may run.
 * Returns  0, -EINVAL (cpus unusable, or no such worker).
 */
int rouse_cluster_worker_pin(struct rouse_cluster *cluster, int worker, const char *cpus);

/* A cluster's figures. Read while its workers go on: each is true of some instant. */
struct rouse_cluster_stats {
    unsigned workers; /* those that are ending left out */
    unsigned idle;    /* of all of them */
    unsigned steal_affinity;
    enum rouse_place place;
    uint64_t queued; /* threads that wait for a turn */
    uint64_t turns;  /* since the workers started; as are these: */
    uint64_t steals; /* how often a worker took threads over */
    uint64_t stolen; /* threads taken over */
};
void rouse_cluster_stats_read(struct rouse_cluster *cluster, struct rouse_cluster_stats *stats);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
