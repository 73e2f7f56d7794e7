/* SPDX-License-Identifier: MIT */
/*
 * inspect.h - the state and the backtrace of a thread, as seen by another thread while the program runs.
 */
#ifndef RSI_OBS_INSPECT_H
#define RSI_OBS_INSPECT_H

#include "core/core.h"
#include "obs/unwind.h"

#define RSI_FRAMES_MAX 64

struct rsi_backtrace {
    enum rsi_unwound unwound;
    size_t count;
    const void *frames[RSI_FRAMES_MAX];
};

enum rsi_state {
    RSI_STATE_RUNNING,
    RSI_STATE_RUNNABLE,
    RSI_STATE_NEW, /* runnable for the first time */
    RSI_STATE_WAITING,
    RSI_STATE_ENDED, /* and not yet joined or detached */
};

struct rsi_inspected {
    uint64_t id;
    char name[ROUSE_NAME_BYTES];
    enum rsi_origin origin;
    enum rsi_state state;
    unsigned worker; /* user threads: the worker that runs or ran it */
    int32_t tid;     /* kernel and foreign threads */
    /* If it waits: */
    uint32_t kind;
    const void *object, *site;
    uint64_t deadline_ns;
    uint64_t since_tsc; /* 0: not recorded */

    bool has_backtrace;
    /* It did not answer. Otherwise, without a backtrace: its state changed too often. */
    bool is_silent;
    struct rsi_backtrace backtrace;
};

/*
 * The observer: its kernel thread and registers, and how long it still waits for threads that do not answer.
 */
struct rsi_inspector {
    int32_t tid;
    struct rsi_regs regs;
    uint64_t patience_ns;
};

/* Examine the thread with control block t. False: the block is unused. One caller at a time. */
bool rsi_inspect(struct rsi_inspector *inspector, struct rouse_thread *t,
                 struct rsi_inspected *seen);

/* The control block at address, or NULL if there is none. For addresses that may be wrong. */
struct rouse_thread *rsi_block_at(const void *address);

/* Call visit for every control block that was ever in use, until it returns false. */
void rsi_blocks_visit(bool (*visit)(struct rouse_thread *t, void *context), void *context);

/*
 * Whether the time stamp of a wait's begin is of the current wait. Time stamps are not updated while recording is
 * off, so a stamp from before it was last switched on may be of an earlier wait. Defined in obs.c.
 */
bool rsi_obs_is_current(uint64_t since_tsc);

#endif
