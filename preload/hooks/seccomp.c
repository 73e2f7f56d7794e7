/* SPDX-License-Identifier: MIT */
/*
 * seccomp.c - calls by which a program confines itself to some system calls: seccomp(2), by all its names.
 *
 * Which those are is the program's, and from then on the kernel may end it for one of ours. So from the call on the
 * process is not recorded any more. Many programs ask first whether there is seccomp, with arguments that the kernel
 * refuses: that is no such call. One that is refused for another reason leaves the process unrecorded all the same.
 *
 * A malloc may call prctl while it sets itself up, before the next one has been found: dlsym would call it.
 */
#include "preload.h"

#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* As the kernel looks at them: strict mode has no arguments, a filter has some. */
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

/* Jumped to by syscall: what returns is that. */
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
