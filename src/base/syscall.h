/* SPDX-License-Identifier: MIT */
/*
 * syscall.h - system calls, without libc.
 *
 * They return a result >= 0 or -errno, and leave errno unchanged. Also, in a recorded program, the interposer
 * would count a call through libc as the program's own.
 */
#ifndef RSI_BASE_SYSCALL_H
#define RSI_BASE_SYSCALL_H

#include "base/base.h"

#include <sys/syscall.h>

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

#endif
