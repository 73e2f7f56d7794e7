/* SPDX-License-Identifier: MIT */
/* kill.c - kill: a process that shares locks with others may wake their threads by signals. */
#include "process/real.h"
#include "record/outside_wake.h"

#include <signal.h>

RPI_EXPORT RSI_NOINLINE int kill(pid_t pid, int number)
{
    rpi_real_find();
    if (pid > 0 && number > 0)
        rpi_outside_note(rpi_outside_process(pid), RSI_CALLER());
    return rpi_real.kill(pid, number);
}
