/* SPDX-License-Identifier: MIT */
/* earlier.h - the file that this process has written for the program that it ran before it called exec. */
#ifndef RSI_OBS_EARLIER_H
#define RSI_OBS_EARLIER_H

#include "base/base.h"

/* The programs of this process before the present one. */
struct rsi_earlier {
    uint64_t programs;          /* whose files were kept */
    uint64_t cpu_ns, system_ns; /* what the process had used by then */
};

/*
 * If the file of this name, in this folder, is of the program that this process ran before, and threads waited in it,
 * close the file as at a normal end, and rename it from PID.rouse to PID.1.rouse, the next one to PID.2.rouse, and so
 * on. Else leave the file as it is.
 */
void rsi_earlier_keep(int folder, const char *name, uint64_t start_ticks,
                      struct rsi_earlier *known);

#endif
