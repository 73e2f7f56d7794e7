/* SPDX-License-Identifier: MIT */
/* recording.h - whether this process is recorded, and the file that it is recorded in. */
#ifndef RPI_PROCESS_RECORDING_H
#define RPI_PROCESS_RECORDING_H

#include "base/base.h"
#include "process/linkage.h"

#include <stdbool.h>
#include <stdint.h>

/* Points to 1 in a recorded process, and to 0 in the child of a fork whose handlers were not called. */
extern volatile const uint32_t *rpi_recording_here;

/* librouse records this process, so the interposer does not. Relaxed. */
extern RPI_HIDDEN bool rpi_recording_is_aside;

/*
 * The program is about to confine itself (seccomp.c). From then on no thread makes a system call of our own, because
 * the kernel may end the thread for it, and nothing more is recorded of this process or its children. Set once,
 * before the filter is installed. Relaxed is enough: the filter applies to the thread that sets it first.
 */
extern RPI_HIDDEN bool rpi_recording_confined;
RSI_INLINE bool rpi_recording_is_confined(void)
{
    return rsi_unlikely(rsi_load_relaxed(&rpi_recording_confined));
}

/* Whether the calls of this process are recorded. Only after rpi_recording_is_ready. */
RSI_INLINE bool rpi_recording_is_on(void)
{
    return !rsi_load_relaxed(&rpi_recording_is_aside) && *rpi_recording_here;
}

/* Callbacks into the modules above this one. */
struct rpi_recording_calls {
    /* Fills in the head of a new file. */
    void (*note)(void);
    /* Undoes what we changed for the program, just before it confines itself. */
    void (*confine)(void);
};

/* Prepare this process. False: no memory, or the kernel has no MADV_WIPEONFORK. calls must stay valid. */
bool rpi_recording_setup(const struct rpi_recording_calls *calls);

/* Threads are recorded from now on. is_ready acquires what the caller of start wrote before. */
void rpi_recording_start(void);
bool rpi_recording_is_ready(void);

/* Create the file unless it exists. False: it cannot be created, and no further attempt is made. */
bool rpi_recording_open(void);

/*
 * Create the file now, because the process is about to lose the rights or the address space that this takes. Leaves
 * errno alone.
 */
void rpi_recording_settle(void);

/* End the file and stop recording, for a program that confines itself. Leaves errno alone. */
void rpi_recording_confine(void);

/* In the child of a fork: nothing of the parent's recording applies. */
void rpi_recording_child(void);

#endif
