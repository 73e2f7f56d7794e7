/* SPDX-License-Identifier: MIT */
/*
 * readable.c - whether the program's memory can be read, where only the kernel may find that it cannot: a call with such a
 * pointer is an error of the program's, not its end.
 */
#include "preload.h"

#include "os/os.h"

#define PAGE_BYTES 4096u /* or a part of one */

/* The kernel reads a set of signals before it sees that it is not told what to do with it; nothing comes of it. */
static bool can_read_word(uintptr_t word)
{
    return rsi_syscall4(SYS_rt_sigprocmask, -1, (long)word, 0, sizeof(uint64_t)) != -EFAULT;
}

/* In the caller's part of the page of the stack that we stand on: it is there, and the kernel need not be asked. */
static bool is_on_stack(uintptr_t at, size_t bytes)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), end = (here | (PAGE_BYTES - 1)) + 1;
    return at >= here && at < end && bytes <= end - at;
}

bool rpi_is_readable(const void *from, size_t bytes)
{
    uintptr_t at = (uintptr_t)from, last = at + bytes - sizeof(uint64_t);
    if (rsi_likely(is_on_stack(at, bytes)))
        return true;
    for (; at < last; at = (at | (PAGE_BYTES - 1)) + 1)
        if (!can_read_word(at))
            return false;
    return can_read_word(last);
}
