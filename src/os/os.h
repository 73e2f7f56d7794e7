/* SPDX-License-Identifier: MIT */
/*
 * os.h - what rouse asks of Linux, call by call. All return a result >= 0 or -errno, and leave errno
 * alone: its address may be cached by a compiler across a switch to another worker.
 */
#ifndef RSI_OS_OS_H
#define RSI_OS_OS_H

#include "base/base.h"

#include <sys/syscall.h>

struct timespec;

/* The raw call. Pointers are passed as long. */
RSI_INLINE long rsi_syscall6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#endif
}
#define RSI_SYSCALL_ARG(x) ((long)(x))
#define rsi_syscall0(n) rsi_syscall6((n), 0, 0, 0, 0, 0, 0)
#define rsi_syscall1(n, a) rsi_syscall6((n), RSI_SYSCALL_ARG(a), 0, 0, 0, 0, 0)
#define rsi_syscall2(n, a, b) rsi_syscall6((n), RSI_SYSCALL_ARG(a), RSI_SYSCALL_ARG(b), 0, 0, 0, 0)
#define rsi_syscall3(n, a, b, c) \
    rsi_syscall6((n), RSI_SYSCALL_ARG(a), RSI_SYSCALL_ARG(b), RSI_SYSCALL_ARG(c), 0, 0, 0)
#define rsi_syscall4(n, a, b, c, d) \
    rsi_syscall6((n), RSI_SYSCALL_ARG(a), RSI_SYSCALL_ARG(b), RSI_SYSCALL_ARG(c), \
                 RSI_SYSCALL_ARG(d), 0, 0)
#define rsi_syscall5(n, a, b, c, d, e) \
    rsi_syscall6((n), RSI_SYSCALL_ARG(a), RSI_SYSCALL_ARG(b), RSI_SYSCALL_ARG(c), \
                 RSI_SYSCALL_ARG(d), RSI_SYSCALL_ARG(e), 0)

/* CLOCK_MONOTONIC, ns. */
uint64_t rsi_now_ns(void);

/* deadline_ns as a timespec; UINT64_MAX must not be passed. */
struct timespec rsi_timespec(uint64_t ns);

/*
 * Sleep while *word == expected, until rsi_futex_wake or deadline_ns (absolute CLOCK_MONOTONIC,
 * UINT64_MAX: none). Returns 0, -EAGAIN (the word differs), -EINTR or -ETIMEDOUT. Process-private.
 */
int rsi_futex_wait(uint32_t *word, uint32_t expected, uint64_t deadline_ns);
int rsi_futex_wake(uint32_t *word, int count);

/*
 * A fence in two halves. If one side runs
 *     store A; rsi_fence_light(); load B
 * and the other
 *     store B; rsi_fence_heavy(); load A
 * then at least one sees the other's store. The light half costs no instruction where the kernel has
 * membarrier(2); the heavy half makes every CPU that runs this process pass a full barrier (0.4 us alone,
 * 3 us with a running peer, measured). Without membarrier both are full fences.
 */
extern bool rsi_fence_light_is_full;
void rsi_fence_setup(void);
void rsi_fence_heavy(void);

RSI_INLINE void rsi_fence_light(void)
{
    if (rsi_unlikely(rsi_fence_light_is_full))
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    else
        rsi_compiler_barrier();
}

/* CPUs this process may use: its affinity mask, cut by its cgroup's quota (v1 or v2), at least 1. */
unsigned rsi_cpu_count(void);

/*
 * The least quota, in CPUs rounded up, of the groups named by cgroup_file (as /proc/self/cgroup is) and
 * of those around them, under mount; UINT32_MAX when none has one.
 */
unsigned rsi_cpu_quota(const char *cgroup_file, const char *mount);

/* Anonymous private memory, not reserved, without huge pages; NULL when there is none. */
void *rsi_map(size_t bytes);
void rsi_unmap(void *address, size_t bytes);

/* Timer slack of the calling kernel thread, 1 ns: sleeps end when they should. */
void rsi_timer_slack_min(void);

long rsi_gettid(void);

#endif
