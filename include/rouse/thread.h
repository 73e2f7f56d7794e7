/* SPDX-License-Identifier: MIT */
/*
 * rouse/thread.h - threads, their keys, time, and the runtime's settings.
 *
 * Every call may be made from a rouse thread of either kind and, unless its comment says otherwise,
 * from any kernel thread of the process ("foreign" threads, main() among them). None may be made from
 * a signal handler. Calls return 0 or a non-negative result, or -errno; errno is neither read nor set.
 * The first call starts the runtime; there is no init and no shutdown.
 */
#ifndef ROUSE_THREAD_H
#define ROUSE_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define ROUSE_NORETURN [[noreturn]]
#else
#define ROUSE_NORETURN _Noreturn
#endif
#pragma GCC visibility push(default)

/* A deadline that never comes. Deadlines are absolute, CLOCK_MONOTONIC, in ns: see rouse_now_ns. */
#define ROUSE_FOREVER UINT64_MAX

/* Bytes of a thread's name, the final 0 included; longer names are cut. */
#define ROUSE_NAME_BYTES 24

struct rouse_thread;
struct rouse_cluster;

/*
 * ROUSE_KIND_USER     many threads on few workers; its stack is the runtime's; it shares its worker's
 *                     libc thread-local storage, so it keeps no such address over a blocking call.
 * ROUSE_KIND_KERNEL   one pthread each.
 * ROUSE_KIND_DEFAULT  user, unless the environment has ROUSE_THREADS=kernel.
 */
enum rouse_kind { ROUSE_KIND_DEFAULT, ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

struct rouse_thread_attr {
    enum rouse_kind kind;
    bool detached;
    const char *name;   /* copied; NULL: none */
    size_t stack_bytes; /* address space; 0: 64 KiB; rounded up to a power of two, at most 1 GiB */
    struct rouse_cluster
        *cluster; /* of a user thread; NULL: its creator's, or the default: cluster.h */
};

#define ROUSE_THREAD_ATTR_INIT \
    { \
        ROUSE_KIND_DEFAULT, false, NULL, 0, NULL \
    }

/*
 * Start a thread that runs fn(arg).
 *
 * out      gets the handle, valid until the thread is joined or, detached, has ended; may be NULL
 *          when attr asks for a detached thread.
 * attr     NULL for the defaults.
 * Returns  0, -EINVAL (attr, its cluster, fn or out unusable), -EAGAIN (too many threads), -ENOMEM; on error nothing
 *          was started and nothing leaks. -EAGAIN and -ENOMEM also when the runtime cannot start; a later
 *          call may start it.
 * Blocks   never. The new thread runs soon, on this worker or on another; the caller goes on first.
 * Ordering what the caller did before is seen by fn.
 */
int rouse_thread_create(struct rouse_thread **out, const struct rouse_thread_attr *attr,
                        void *(*fn)(void *), void *arg);

/*
 * Wait until t has ended, take its result and release it. Every thread is joined once or detached.
 *
 * result   may be NULL.
 * Returns  0; -EDEADLK for oneself; -EINVAL if t is detached or another joins it; _until: -ETIMEDOUT;
 *          -ECANCELED when the caller was cancelled (t is still to be joined after either);
 *          _try: -EBUSY when t has not ended.
 * Blocks   the calling thread only.
 * Ordering all that t did is seen by the caller.
 */
int rouse_thread_join(struct rouse_thread *t, void **result);
int rouse_thread_join_until(struct rouse_thread *t, void **result, uint64_t deadline_ns);
int rouse_thread_join_try(struct rouse_thread *t, void **result);

/* Let t be released when it ends. Returns 0 or -EINVAL (already detached or being joined). */
int rouse_thread_detach(struct rouse_thread *t);

/*
 * End the calling thread; its keys' destructors run first. On a foreign thread: pthread_exit.
 * A thread of kind kernel or foreign unwinds its stack as pthread_exit does: C++ destructors and cleanup
 * handlers run. A user thread's stack is dropped: they do not.
 * pthread_exit and pthread_cancel must not end a thread of rouse, nor what rouse_blocking runs: that ends
 * the program with one line.
 */
ROUSE_NORETURN void rouse_thread_exit(void *result);

/* Let every other runnable thread of this worker go first. No error, no cancellation. */
void rouse_thread_yield(void);

/* The calling thread. A foreign kernel thread gets a handle too, valid until it ends. Never NULL. */
struct rouse_thread *rouse_thread_self(void);

/* A number no other thread of this process has had. */
uint64_t rouse_thread_id(const struct rouse_thread *t);

/* What the thread really is: ROUSE_KIND_USER, or ROUSE_KIND_KERNEL also for foreign threads. */
enum rouse_kind rouse_thread_kind(const struct rouse_thread *t);

/* Name a thread; shown by SIGQUIT and in fatal lines. Control characters become '?'. */
void rouse_thread_set_name(struct rouse_thread *t, const char *name);

/* Copy the name, 0-terminated, cut to bytes. Returns its full length. */
size_t rouse_thread_name(const struct rouse_thread *t, char *buffer, size_t bytes);

/*
 * Ask t to stop. The next blocking call that can be cancelled (sleep, join, I/O, condition and
 * semaphore waits, and every _until form), or the one it is in, returns -ECANCELED, once for each
 * request; what t then does is t's own affair. Plain mutex and reader-writer locks, barriers and
 * transfers of regular files are not cancelled. A call that has already got what it waited for keeps it:
 * nothing is lost. Returns 0, or -ESRCH when t has ended. Blocks never.
 */
int rouse_thread_cancel(struct rouse_thread *t);

/* Whether a request to stop is waiting for the calling thread's next blocking call; takes nothing. */
bool rouse_thread_cancel_pending(void);

/*
 * Thread-local values. A key is a small number; at most ROUSE_KEYS_MAX exist at once. When a thread
 * ends, each value that is not NULL is set to NULL and handed to its key's destructor, repeatedly, up
 * to 4 rounds, as POSIX has it. Works for every kind of thread.
 * create: 0 or -EAGAIN; delete: 0 or -EINVAL (no destructor runs); set: 0, -EINVAL or -ENOMEM.
 */
#define ROUSE_KEYS_MAX 128
int rouse_key_create(unsigned *key, void (*destructor)(void *));
int rouse_key_delete(unsigned key);
int rouse_key_set(unsigned key, const void *value);
void *rouse_key_get(unsigned key);

/* Now, CLOCK_MONOTONIC, ns. */
uint64_t rouse_now_ns(void);

/*
 * Sleep for a time, or until an instant. Returns 0, or -ECANCELED. Never returns early with 0. A
 * deadline in the past yields and returns 0.
 */
int rouse_sleep(uint64_t ns);
int rouse_sleep_until(uint64_t deadline_ns);

/*
 * Run fn(arg) on a helper kernel thread while the caller's worker runs others: for calls into code that
 * blocks the kernel thread. On a kernel or foreign thread fn is called directly. Not cancelled: fn may
 * be using the caller's data. fn must not call rouse_thread_exit. On a helper it is a foreign thread that
 * lasts as long as the call, with a handle and values of keys of its own.
 * Returns 0 and *result (may be NULL), or -EAGAIN when no helper could be had.
 */
int rouse_blocking(void *(*fn)(void *), void *arg, void **result);

/*
 * Settings, taken by the first call that starts the runtime; later -EBUSY.
 * workers  of the default cluster; 0: one a usable CPU (affinity mask and cgroup quota respected;
 *          ROUSE_WORKERS overrides).
 * spares   at most so many workers are added while others are stuck in a system call or a computation:
 *          rouse_obs_stuck. Negative: none; 0: as ROUSE_SPARES says, else as many as workers.
 * io       how I/O waits: see rouse_io_backend. AUTO: what ROUSE_IO says (auto, epoll or uring); auto is
 *          io_uring where the kernel allows it.
 * Returns  0, -EINVAL (more than 1,024 workers or spares, no such io), -EBUSY.
 */
enum rouse_io { ROUSE_IO_AUTO, ROUSE_IO_EPOLL, ROUSE_IO_URING };
struct rouse_config {
    unsigned workers;
    enum rouse_io io;
    int spares;
};
int rouse_configure(const struct rouse_config *config);

/*
 * Give memory of stacks that nobody uses back to the kernel: what parked user threads have left of deeper
 * calls, and the stacks of ended threads that are kept for others (but for at most 16 a worker). It is there
 * again, page by page, when it is touched.
 *
 * min_idle_ns  0: of all threads that are parked. Else only of those in a wait that an earlier call, at least
 *              so long ago, has seen them in: for calls at regular times, of which the first only looks.
 * Returns      bytes given back; 0 also while another thread is in this call.
 * Blocks       the calling thread: some 0.3 us for each thread of the program and 2 us for each that has
 *              something to give. A user thread's worker runs others meanwhile. A thread that is woken
 *              while its stack is looked at runs some 20 us later.
 */
size_t rouse_stacks_trim(uint64_t min_idle_ns);

/*
 * From now on give back as rouse_stacks_trim(0) does whenever memory is short: when tasks of the process's
 * control group (where it has no figures of its own, of the machine) have waited for memory for 100 ms
 * within 2 s. One kernel thread waits for the kernel to say so, and does nothing else.
 * Returns 0, also when it is so already; -EAGAIN (no thread could be had), or open's error where the kernel
 * has no pressure stall information or does not let us use it: -ENOENT, -EOPNOTSUPP, -EACCES, -EPERM, ...
 * Not inherited by a child of fork. ROUSE_TRIM=pressure in the environment makes this call at the start.
 */
int rouse_stacks_trim_on_pressure(void);

/* How many workers the runtime has, in all clusters, or will have. */
unsigned rouse_worker_count(void);

/* The calling thread's worker, 0.., or -1 on a kernel thread. Old news as soon as it is told. */
int rouse_worker_index(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
