/* SPDX-License-Identifier: MIT */
/*
 * seccomp.c - calls by which a program confines itself to some system calls: seccomp(2) under all its names.
 *
 * The program chooses the allowed calls, and from then on the kernel may end it for one of ours. So recording stops
 * just before the call. Many programs first test for seccomp with arguments that the kernel rejects, and those calls do
 * not count. If the kernel refuses a real request for another reason, the process stays unrecorded all the same.
 *
 * A malloc may call prctl while it initialises itself, before rpi_real_find. The system call is then made directly,
 * since dlsym would call that malloc.
 */
#include "process/real.h"
#include "process/recording.h"

#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* The kernel's own conditions: strict mode has no arguments, and a filter has some. */
static bool is_seccomp(long operation, long flags, long filter)
{
    return operation == SECCOMP_SET_MODE_STRICT   ? flags == 0 && filter == 0
           : operation == SECCOMP_SET_MODE_FILTER ? filter != 0
                                                  : false;
}

static bool is_prctl(long option, long mode, long filter)
{
    return option == PR_SET_SECCOMP &&
           (mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && filter != 0));
}

RPI_EXPORT RSI_NOINLINE int prctl(int option, ...)
{
    unsigned long a[4];
    va_list list;
    va_start(list, option);
    for (unsigned i = 0; i < 4; i++)
        a[i] = va_arg(list, unsigned long);
    va_end(list);
    if (is_prctl(option, (long)a[0], (long)a[1]))
        rpi_recording_confine();
    if (rsi_load_acquire(&rpi_real.is_found)) /* pairs with rpi_real_find_all */
        return rpi_real.prctl(option, a[0], a[1], a[2], a[3]);
    return (int)rpi_real.syscall(SYS_prctl, (long)option, a[0], a[1], a[2], a[3]);
}

/* Reached by a jump from syscall (hooks/futex.c), and returns to syscall's caller. */
long rpi_syscall_seccomp(long number, long operation, long flags, long filter);
RSI_NOINLINE long rpi_syscall_seccomp(long number, long operation, long flags, long filter)
{
    if (is_seccomp(operation, flags, filter))
        rpi_recording_confine();
    return rpi_real.syscall(number, operation, flags, filter);
}

long rpi_syscall_prctl(long number, long option, long second, long third, long fourth, long fifth);
RSI_NOINLINE long rpi_syscall_prctl(long number, long option, long second, long third, long fourth,
                                    long fifth)
{
    if (is_prctl(option, second, third))
        rpi_recording_confine();
    return rpi_real.syscall(number, option, second, third, fourth, fifth);
}
