/* SPDX-License-Identifier: MIT */
/* os.c - time, futex, the asymmetric fence, CPUs, memory. */
#include "os/os.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define CPUS_MAX 4096

bool rsi_fence_light_is_full = true;

uint64_t rsi_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct timespec rsi_timespec(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                              .tv_nsec = (long)(ns % 1000000000u) };
}

int rsi_futex_wait(uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    struct timespec limit, *timeout = NULL;
    if (deadline_ns != UINT64_MAX) {
        limit = rsi_timespec(deadline_ns);
        timeout = &limit;
    }
    /* WAIT_BITSET, because its time-out is absolute. */
    return (int)rsi_syscall6(SYS_futex, (long)word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG,
                             expected, (long)timeout, 0, (long)FUTEX_BITSET_MATCH_ANY);
}

int rsi_futex_wake(uint32_t *word, int count)
{
    return (int)rsi_syscall3(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count);
}

/* Values of the word: free, held, and held while some thread may sleep. */
enum { OWN_FREE, OWN_HELD, OWN_AWAITED };

void rsi_own_lock(uint32_t *lock)
{
    uint32_t seen = OWN_FREE;
    if (rsi_cas_acquire(lock, &seen, OWN_HELD)) /* pairs with rsi_own_unlock */
        return;
    while (rsi_exchange_acquire(lock, (uint32_t)OWN_AWAITED) != OWN_FREE) /* likewise */
        (void)rsi_futex_wait(lock, OWN_AWAITED, UINT64_MAX);
}

void rsi_own_unlock(uint32_t *lock)
{
    if (rsi_exchange_acq_rel(lock, (uint32_t)OWN_FREE) == OWN_AWAITED) /* pairs with rsi_own_lock */
        (void)rsi_futex_wake(lock, 1);
}

void rsi_fence_setup(unsigned processors)
{
    if (processors > RSI_FENCE_PROCESSORS_MOST)
        return;
    long commands = rsi_syscall3(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 &&
        rsi_syscall3(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
        rsi_fence_light_is_full = false;
}

void rsi_fence_heavy(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (rsi_fence_light_is_full)
        return;
    if (rsi_syscall3(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        rsi_fatal("membarrier failed after it was registered: was a system call filter installed?");
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void *rsi_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

void rsi_unmap(void *address, size_t bytes)
{
    munmap(address, bytes);
}

void rsi_timer_slack_min(void)
{
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

long rsi_gettid(void)
{
    return rsi_syscall0(SYS_gettid);
}

unsigned rsi_cpu_affinity(void)
{
    unsigned long mask[CPUS_MAX / (8 * sizeof(unsigned long))] = { 0 };
    long bytes = rsi_syscall3(SYS_sched_getaffinity, 0, sizeof mask, mask);
    unsigned count = 0;
    for (size_t i = 0; bytes > 0 && i < (size_t)bytes / sizeof mask[0]; i++)
        count += (unsigned)__builtin_popcountl(mask[i]);
    return count ? count : 1;
}
