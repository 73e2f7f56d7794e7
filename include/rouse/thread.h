/* SPDX-License-Identifier: MIT */
/*
 * rouse/thread.h - threads, thread-local keys, time, and the settings of the runtime.
 *
 * Unless a comment says otherwise, every call may be made from a rouse thread of either kind and from any other
 * kernel thread of the process. Those others, main() among them, are called foreign threads. No call may be made
 * from a signal handler. Calls return 0 or a non-negative result, or -errno; they leave errno as it was. The
 * first call starts the runtime; there is no init and no shutdown call.
 */
#ifndef ROUSE_THREAD_H
#define ROUSE_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rouse/errno.h>

#ifdef __cplusplus
extern "C" {
#define ROUSE_NORETURN [[noreturn]]
#else
#define ROUSE_NORETURN _Noreturn
#endif
#pragma GCC visibility push(default)

/* The deadline that never comes. Deadlines are absolute times of CLOCK_MONOTONIC, in ns (rouse_now_ns). */
#define ROUSE_FOREVER UINT64_MAX

/* Size of a thread's name in bytes, including the final 0. Longer names are cut. */
#define ROUSE_NAME_BYTES 24

struct rouse_thread;
struct rouse_cluster;

/*
 * ROUSE_KIND_USER     One of many threads that run on few workers, on a stack of the runtime. It shares the libc
 *                     thread-local storage of its worker, so it must not keep the address of a thread-local
 *                     variable across a blocking call.
 * ROUSE_KIND_KERNEL   A pthread of its own.
 * ROUSE_KIND_DEFAULT  ROUSE_KIND_USER, unless the environment has ROUSE_THREADS=kernel.
 */
enum rouse_kind { ROUSE_KIND_DEFAULT, ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

struct rouse_thread_attr {
    enum rouse_kind kind;
    bool detached;
    /* Copied. NULL: no name. */
    const char *name;
    /* Size of the stack's address space; rounded up to a power of two, at most 1 GiB. 0: 64 KiB. */
    size_t stack_bytes;
    /* The cluster of a user thread (rouse/cluster.h). NULL: that of its creator, or else the default cluster. */
    struct rouse_cluster *cluster;
    /*
     * A user thread gets thread-local storage of its own: errno, thread_local variables, pthread_self(), malloc's cache.
     * Each uses a parked kernel thread. Kernel threads always have their own.
     */
    bool own_tls;
};

#define ROUSE_THREAD_ATTR_INIT \
    { \
        ROUSE_KIND_DEFAULT, false, NULL, 0, NULL, false \
    }

/*
 * Start a thread that runs fn(arg).
 *
 * out      receives the handle, which is valid until the thread is joined or, if detached, has ended. May be NULL
 *          if attr asks for a detached thread.
 * attr     NULL for the defaults.
 * Returns  0; -EINVAL (attr, its cluster, fn or out is invalid); -EAGAIN (too many threads); -ENOMEM. On error
 *          nothing was started and nothing leaks. -EAGAIN and -ENOMEM may also mean that the runtime could not
 *          start; a later call may succeed.
 * Blocks   never. The caller continues; the new thread runs soon, on this worker or another.
 * Ordering fn sees everything that the caller did before.
 */
int rouse_thread_create(struct rouse_thread **out, const struct rouse_thread_attr *attr,
                        void *(*fn)(void *), void *arg);

/*
 * Wait until t has ended, fetch its result and release it. Every thread must be joined once, or detached.
 *
 * result   may be NULL.
 * Returns  0; -EDEADLK (t is the caller); -EINVAL (t is detached, or another thread joins it); -ECANCELED (the caller
 *          was cancelled); _until: -ETIMEDOUT; _try: -EBUSY (t has not ended). After -ECANCELED, -ETIMEDOUT and
 *          -EBUSY t must still be joined.
 * Blocks   the calling thread only.
 * Ordering the caller sees everything that t did.
 */
int rouse_thread_join(struct rouse_thread *t, void **result);
int rouse_thread_join_until(struct rouse_thread *t, void **result, uint64_t deadline_ns);
int rouse_thread_join_try(struct rouse_thread *t, void **result);

/* Detach t: it is released when it ends. Returns 0, or -EINVAL (already detached, or being joined). */
int rouse_thread_detach(struct rouse_thread *t);

/*
 * End the calling thread, after the destructors of its keys have run.
 *
 * A thread of kind KERNEL and a foreign thread end as by pthread_exit: their stack is unwound, and C++ destructors
 * and cleanup handlers run. The stack of a user thread is discarded, and they do not run.
 *
 * Do not end a rouse thread, nor a function that rouse_blocking runs, with pthread_exit or pthread_cancel: that ends
 * the program with one line on standard error.
 */
ROUSE_NORETURN void rouse_thread_exit(void *result);

/* Let every other runnable thread of this worker run first. Not cancelled. */
void rouse_thread_yield(void);

/* The handle of the calling thread, never NULL. That of a foreign thread is valid until the thread ends. */
struct rouse_thread *rouse_thread_self(void);

/* The number of t, which no other thread of this process has or had. */
uint64_t rouse_thread_id(const struct rouse_thread *t);

/* The actual kind of t: ROUSE_KIND_USER, or ROUSE_KIND_KERNEL, which includes foreign threads. */
enum rouse_kind rouse_thread_kind(const struct rouse_thread *t);

/* Name a thread. Dumps, reports and fatal messages show the name. Control characters become '?'. */
void rouse_thread_set_name(struct rouse_thread *t, const char *name);

/* Copy the name to buffer, 0-terminated and cut to `bytes` bytes. Returns its full length. */
size_t rouse_thread_name(const struct rouse_thread *t, char *buffer, size_t bytes);

/*
 * Ask t to stop: its current or next cancellable call returns -ECANCELED, once per request. t
 * itself decides how it continues.
 *
 * Cancellable are sleep, join, I/O, waits for conditions and semaphores, and every _until form. Plain locks of
 * mutexes and reader-writer locks, plain waits for barriers, and transfers of regular files are not. A call that has
 * already obtained its result returns it, so nothing is lost.
 *
 * Returns  0; -ESRCH (t has ended).
 * Blocks   never.
 */
int rouse_thread_cancel(struct rouse_thread *t);

/* Whether the calling thread has a pending request to stop. The request stays pending. */
bool rouse_thread_cancel_pending(void);

/*
 * Thread-local values, for every kind of thread. A key is a small number; at most ROUSE_KEYS_MAX exist at once.
 *
 * When a thread ends, each value that is not NULL is set to NULL and passed to its key's destructor. This is repeated
 * for up to 4 rounds, as in POSIX. rouse_key_delete runs no destructor.
 * Returns  create: 0 or -EAGAIN (too many keys); delete: 0 or -EINVAL; set: 0, -EINVAL or -ENOMEM; get: the value, NULL
 *          if none was set.
 */
#define ROUSE_KEYS_MAX 128
int rouse_key_create(unsigned *key, void (*destructor)(void *));
int rouse_key_delete(unsigned key);
int rouse_key_set(unsigned key, const void *value);
void *rouse_key_get(unsigned key);

/* The current time of CLOCK_MONOTONIC, in ns. */
uint64_t rouse_now_ns(void);

/*
 * Sleep for `ns` nanoseconds, or until deadline_ns. Returns 0, never early, or -ECANCELED. If the deadline has passed,
 * the call yields and returns 0.
 */
int rouse_sleep(uint64_t ns);
int rouse_sleep_until(uint64_t deadline_ns);

/*
 * Run fn(arg) on a helper kernel thread while the caller's worker runs other threads. Use it for calls that would
 * block the kernel thread, such as those of other libraries. On a kernel or foreign thread, fn is called directly.
 *
 * fn       runs as a foreign thread that exists for this call, with its own handle and its own values of keys. It must
 *          not call rouse_thread_exit.
 * result   receives what fn returned; may be NULL.
 * Returns  0; -EAGAIN (no helper could be started).
 * Blocks   the calling thread until fn returns. Not cancelled, since fn may use the caller's data.
 */
int rouse_blocking(void *(*fn)(void *), void *arg, void **result);

/*
 * Set the runtime's settings, before the call that starts the runtime.
 *
 * workers  of the default cluster. 0: ROUSE_WORKERS, or else one per CPU that the process may use (affinity mask and
 *          cgroup quota).
 * spares   the most workers that are added while others are stuck in a system call or a computation (see
 *          rouse_obs_stuck). Negative: none. 0: ROUSE_SPARES, or else one for each thread that sits in a system call,
 *          up to 1,024 workers in all, and as many as workers for threads that compute.
 * io       how I/O waits (see rouse_io_backend). AUTO: ROUSE_IO (auto, epoll or uring); auto means io_uring if the
 *          kernel allows it.
 * Returns  0; -EINVAL (more than 1,024 workers or spares, or an unknown io); -EBUSY (the runtime has started).
 */
enum rouse_io { ROUSE_IO_AUTO, ROUSE_IO_EPOLL, ROUSE_IO_URING };
struct rouse_config {
    unsigned workers;
    enum rouse_io io;
    int spares;
};
int rouse_configure(const struct rouse_config *config);

/*
 * Return unused stack memory to the kernel: the pages below the current depth of parked user threads, and the stacks
 * of ended threads that are kept for reuse, except at most 16 per worker. A page is provided again when it is touched.
 *
 * min_idle_ns  0: trim all parked threads. Otherwise trim only threads that are still in the same wait in which an
 *              earlier call, at least this long ago, saw them. Meant for periodic calls; the first one only observes.
 * Returns      the number of bytes returned; 0 also while another thread is in this call.
 * Blocks       the calling thread, for some 0.3 us per thread of the program and 2 us per thread that has memory to
 *              return. The worker of a user thread runs others meanwhile. A thread that is woken while its stack is
 *              examined runs some 20 us later.
 */
size_t rouse_stacks_trim(uint64_t min_idle_ns);

/*
 * From now on, call rouse_stacks_trim(0) whenever memory is short: when tasks of the process's control group have
 * waited for memory for 100 ms within 2 s. (If the group has no such figures, those of the machine are used.) One
 * kernel thread waits for the kernel's notification and does nothing else.
 *
 * Returns  0, also if it is on already; -EAGAIN (the thread could not be started); or the error of open if the kernel
 *          has no pressure stall information or denies access to it: -ENOENT, -EOPNOTSUPP, -EACCES, -EPERM and others.
 * A child of fork does not inherit it. ROUSE_TRIM=pressure in the environment makes this call when the runtime starts.
 */
int rouse_stacks_trim_on_pressure(void);

/* The number of workers in all clusters; before the runtime starts, how many it will have. */
unsigned rouse_worker_count(void);

/* The number of the calling thread's worker, from 0; -1 on a kernel thread. It may already be stale. */
int rouse_worker_index(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
