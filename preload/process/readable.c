/* SPDX-License-Identifier: MIT */
/*
 * readable.c - checks whether we can read the program's memory, before we read it ahead of the kernel. A call with a
 * bad pointer must return an error, as it does without us, and not end the program.
 */
#include "process/readable.h"

#include "os/os.h"

#include <errno.h>

#define PAGE_BYTES 4096u /* the smallest page */

/* The kernel reads the signal set before it rejects the first argument, so the call has no effect. */
static bool can_read_word(uintptr_t word)
{
    return rsi_syscall4(SYS_rt_sigprocmask, -1, (long)word, 0, sizeof(uint64_t)) != -EFAULT;
}

/* Memory in the callers' part of the present stack page is mapped, so the kernel need not be asked. */
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
