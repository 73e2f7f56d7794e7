/* SPDX-License-Identifier: MIT */
/*
 * rouse/errno.h - errno that stays right when a thread moves to another kernel thread.
 *
 * Every header of rouse includes this one. errno belongs to a kernel thread, and a user thread may run on another one
 * after each call that waits. libc declares the function behind errno as const, so a compiler may keep the address that
 * it returned before the call. The thread would then read another thread's errno. From here on errno goes through a
 * function whose result the compiler must not keep. Its value belongs to the user thread: rouse saves and restores it
 * where the thread is switched.
 *
 * A source file that uses rouse in one function and errno in another must see this header before the code that uses
 * errno, as it does if its includes come first. Inline functions of other headers that were included before use libc's
 * errno. That is harmless unless they call rouse between two uses.
 */
#ifndef ROUSE_ERRNO_H
#define ROUSE_ERRNO_H

#include <errno.h>

/* The address of the calling kernel thread's errno, now. The empty instruction keeps compilers from inferring "const". */
#ifdef __cplusplus
inline
#else
static
#endif
    __attribute__((noinline, unused)) int *
    rouse_errno_location(void)
{
    __asm__ volatile("" ::: "memory");
    return &errno;
}

#undef errno
#define errno (*rouse_errno_location())

#endif
