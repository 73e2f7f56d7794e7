/* SPDX-License-Identifier: MIT */
/* thread_name.c - pthread_setname_np, by which a program may name its workers when they already wait. */
#include "process/real.h"
#include "record/thread.h"

RPI_EXPORT RSI_NOINLINE int pthread_setname_np(pthread_t thread, const char *name)
{
    struct rpi_thread *self = rpi_self ? rpi_self : rpi_thread_enter();
    rpi_real_find();
    int result = rpi_real.pthread_setname_np(thread, name);
    if (result == 0 && self && *rpi_recording_here)
        rpi_thread_rename(self, thread, name);
    return result;
}
