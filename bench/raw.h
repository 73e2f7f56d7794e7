/* SPDX-License-Identifier: MIT */
/*
 * raw.h - system calls without libc: no errno, no cancellation, no thread-local storage.
 *
 * The measuring threads use these calls. Threads made by a bare clone() share their parent's
 * thread-local block, so they must not enter libc. The other kinds use the same calls, so that the
 * harness has the same cost everywhere. Results are the kernel's: negative errno on failure.
 */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#if defined(__x86_64__)
static inline long raw6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static inline long raw6(long number, long a, long b, long c, long d, long e, long f)
{
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
}
#else
#error "rouse-bench knows x86-64 and AArch64"
#endif

static inline uint64_t raw_clock_ns(clockid_t clock)
{
    struct timespec t = { 0 };
    raw6(SYS_clock_gettime, clock, (long)&t, 0, 0, 0, 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void raw_sleep_ns(uint64_t ns)
{
    struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u) };
    raw6(SYS_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

static inline unsigned raw_cpu(void)
{
    unsigned cpu = 0;
    raw6(SYS_getcpu, (long)&cpu, 0, 0, 0, 0, 0);
    return cpu;
}

/* Bind the calling kernel thread to one processor. */
static inline long raw_pin(unsigned cpu)
{
    unsigned long mask[16] = { 0 };
    if (cpu >= sizeof mask * 8)
        return -22;
    mask[cpu / 64] = 1ul << (cpu % 64);
    return raw6(SYS_sched_setaffinity, 0, sizeof mask, (long)mask, 0, 0, 0);
}

/* The resident pages of this process, from /proc/self/statm. 0 if it cannot be read. */
static inline uint64_t raw_resident_pages(void)
{
    char text[128] = "";
    uint64_t pages = 0;
    long fd = raw6(SYS_openat, -100, (long)"/proc/self/statm", 0, 0, 0, 0);
    if (fd < 0)
        return 0;
    long n = raw6(SYS_read, fd, (long)text, sizeof text, 0, 0, 0);
    raw6(SYS_close, fd, 0, 0, 0, 0, 0);
    long i = 0;
    while (i < n && text[i] != ' ')
        i++;
    for (i++; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        pages = pages * 10 + (uint64_t)(text[i] - '0');
    return pages;
}

#endif
