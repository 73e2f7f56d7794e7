/* SPDX-License-Identifier: MIT */
/*
 * account.h - where threads' time goes and what wake-ups were worth, while recording is on: called by whatever
 * leaves a stack, takes one on, ends a wait. All but thread_end are called only if rsi_obs_mode says so.
 */
#ifndef RSI_CORE_ACCOUNT_H
#define RSI_CORE_ACCOUNT_H

#include "core/park.h"
#include "obs/store.h"

#include <rouse/obs.h>

struct rsi_worker;

/* Why a thread leaves its worker. */
enum rsi_leave { RSI_LEAVES_WAITING, RSI_LEAVES_QUEUED, RSI_LEAVES_ENDED };

/* w leaves self for to, which it enters at once; or, to NULL, for its idle loop. */
void rsi_account_switch(struct rsi_worker *w, struct rouse_thread *self, struct rouse_thread *to,
                        enum rsi_leave why);

/* w, in its idle loop, is about to enter t. */
void rsi_account_run(struct rsi_worker *w, struct rouse_thread *t);

/* A thread was created, and is runnable. */
void rsi_account_new(struct rouse_thread *t);

/* The calling kernel or foreign thread is about to sleep; has slept, or is known from now on. */
void rsi_account_sleep(struct rouse_thread *self);
void rsi_account_entered(struct rouse_thread *self);

/* The calling kernel thread has claimed t's wait. It holds guards. */
struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site);

/* w took so many threads from another worker. */
void rsi_account_steal(struct rsi_worker *w, unsigned count);

/* A timer of a wait was late by so much. */
void rsi_account_lateness(uint64_t late_ns);

/* self ends, or gets another name; whether recording is on or not. */
void rsi_account_thread_end(struct rouse_thread *self);
void rsi_account_name(struct rouse_thread *t);

/* The kernel thread of an exec ends. */
void rsi_account_exec_end(struct rsi_exec *exec);

/* What the calling kernel thread counts in; NULL: nothing can be recorded. */
struct rsi_writer *rsi_account_writer(void);

/* Begin or end to time holds (park.h). Returns 0, or -ENOMEM: it is as it was. */
int rsi_holds_setup(bool is_on);

/* In a child after fork. */
void rsi_account_child(void);
void rsi_holds_child(void);

#endif
