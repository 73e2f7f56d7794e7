/* SPDX-License-Identifier: MIT */
/*
 * look.h - what a thread is doing, seen from another thread while the program runs.
 */
#ifndef RSI_OBS_LOOK_H
#define RSI_OBS_LOOK_H

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
    RSI_STATE_ENDED, /* and neither joined nor detached */
};

struct rsi_seen {
    uint64_t id;
    char name[ROUSE_NAME_BYTES];
    enum rsi_origin origin;
    enum rsi_state state;
    unsigned worker; /* user threads: where it runs or ran last */
    int32_t tid;     /* kernel and foreign threads */
    /* waiting: */
    uint32_t kind;
    const void *object, *site;
    uint64_t deadline_ns;
    uint64_t since_tsc; /* 0: not recorded */

    bool has_backtrace;
    bool is_silent; /* it did not answer; else, without a backtrace: it moved on too fast */
    struct rsi_backtrace backtrace;
};

/* Who looks: its kernel thread and registers, and how long it still waits for those that do not answer. */
struct rsi_looker {
    int32_t tid;
    struct rsi_regs regs;
    uint64_t patience_ns;
};

/* Look at the thread whose block t is. False: there is none. One looker at a time. */
bool rsi_look(struct rsi_looker *looker, struct rouse_thread *t, struct rsi_seen *seen);

/* The block of a thread, or NULL if address is none's: for addresses read where they may be wrong. */
struct rouse_thread *rsi_block_at(const void *address);

/* Call visit for every block that was ever in use, until it returns false. */
void rsi_blocks_visit(bool (*visit)(struct rouse_thread *t, void *context), void *context);

/*
 * Whether a stamp of a wait's beginning is of the present wait: stamps are left alone while recording is
 * off, so that one from before it was switched on last may be of an earlier wait. obs.c
 */
bool rsi_obs_is_current(uint64_t since_tsc);

#endif
