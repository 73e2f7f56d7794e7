/* SPDX-License-Identifier: MIT */
/*
 * os.h - the Linux calls that rouse uses. All return a result >= 0 or -errno and leave errno alone: a
 * compiler may cache its address across a switch to another worker.
 */
#ifndef RSI_OS_OS_H
#define RSI_OS_OS_H

#include "base/syscall.h"

struct timespec;

/* CLOCK_MONOTONIC, ns. */
uint64_t rsi_now_ns(void);

/* ns as a timespec. ns must not be UINT64_MAX. */
struct timespec rsi_timespec(uint64_t ns);

/*
 * Sleep while *word == expected, until rsi_futex_wake or deadline_ns (absolute CLOCK_MONOTONIC,
 * UINT64_MAX: none). Returns 0, -EAGAIN (the word differs), -EINTR or -ETIMEDOUT. Process-private.
 */
int rsi_futex_wait(uint32_t *word, uint32_t expected, uint64_t deadline_ns);
int rsi_futex_wake(uint32_t *word, int count);

/*
 * A lock of our own for sections that may allocate memory: a kernel thread that finds it held sleeps. It is not libc's
 * mutex, since librouse-preload.so replaces that, and would take our locks for the program's. 0 is free. Source: mutex2
 * of U. Drepper, "Futexes Are Tricky", 2011.
 */
void rsi_own_lock(uint32_t *lock);
void rsi_own_unlock(uint32_t *lock);

/*
 * A fence in two halves. If one side runs
 *     store A; rsi_fence_light(); load B
 * and the other
 *     store B; rsi_fence_heavy(); load A
 * then at least one sees the other's store. The light half costs no instruction if the kernel has
 * membarrier(2). The heavy half makes every CPU that runs this process execute a full barrier (measured: 0.4
 * us alone, 3 us with one running peer). Without membarrier both are full fences. So they are where more than
 * RSI_FENCE_PROCESSORS_MOST processors would be interrupted: each worker that falls asleep would interrupt all others.
 * docs/scale.md has the figures.
 */
#define RSI_FENCE_PROCESSORS_MOST 16u
extern bool rsi_fence_light_is_full;
/* processors: on which workers may run at once. Call this once, before any fence. */
void rsi_fence_setup(unsigned processors);
void rsi_fence_heavy(void);

RSI_INLINE void rsi_fence_light(void)
{
    if (rsi_unlikely(rsi_fence_light_is_full))
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    else
        rsi_compiler_barrier();
}

/* The number of CPUs in the affinity mask of the calling kernel thread; at least 1. */
unsigned rsi_cpu_affinity(void);

/*
 * The number of CPUs this process may use: its affinity mask, limited by its cgroup's quota (v1 or v2); at
 * least 1.
 */
unsigned rsi_cpu_count(void);

/*
 * The smallest quota, in CPUs rounded up, of the groups that cgroup_file names (in the format of
 * /proc/self/cgroup) and of their parents, under mount. UINT32_MAX: there is none.
 */
unsigned rsi_cpu_quota(const char *cgroup_file, const char *mount);

/* Anonymous private memory, not reserved, without huge pages. NULL: out of memory. */
void *rsi_map(size_t bytes);
void rsi_unmap(void *address, size_t bytes);

/* Set the timer slack of the calling kernel thread to 1 ns, so that sleeps end on time. */
void rsi_timer_slack_min(void);

long rsi_gettid(void);

#endif
