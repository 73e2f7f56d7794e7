/* SPDX-License-Identifier: MIT */
/*
 * account.h - records where threads' time goes and what wake-ups were worth, while recording is on. Core calls it
 * when a thread leaves or enters a stack and when a wait ends. Except for thread_end and name, callers check
 * rsi_obs_mode first.
 */
#ifndef RSI_CORE_ACCOUNT_H
#define RSI_CORE_ACCOUNT_H

#include "core/contest.h"
#include "core/exec.h"
#include "core/hold.h"
#include "core/observe.h"
#include "core/park.h"
#include "obs/store.h"

#include <rouse/obs.h>

struct rsi_worker;

/* Why a thread leaves its worker. */
enum rsi_leave { RSI_LEAVES_WAITING, RSI_LEAVES_QUEUED, RSI_LEAVES_ENDED };

/* w leaves self and enters to at once. to NULL: it goes to its idle loop. */
void rsi_account_switch(struct rsi_worker *w, struct rouse_thread *self, struct rouse_thread *to,
                        enum rsi_leave why);

/* w, in its idle loop, is about to enter t. */
void rsi_account_run(struct rsi_worker *w, struct rouse_thread *t);

/* w, which runs threads, looks at its timers, now_ns. */
void rsi_account_look(struct rsi_worker *w, uint64_t now_ns);

/* A thread was created and is runnable. */
void rsi_account_new(struct rouse_thread *t);

/* The calling kernel or foreign thread is about to sleep. */
void rsi_account_sleep(struct rouse_thread *self);
/* The calling kernel or foreign thread has slept, or has just got its control block. */
void rsi_account_entered(struct rouse_thread *self);

/* The calling kernel thread has claimed t's wait. It holds guards. */
struct rouse_thread *rsi_account_wake(struct rouse_thread *t, int result, const void *site);

/* w took count threads from another worker. */
void rsi_account_steal(struct rsi_worker *w, unsigned count);

/* The timer of a wait fired late_ns after its deadline. */
void rsi_account_lateness(uint64_t late_ns);

/* self ends, or t is renamed. Called whether recording is on or off. */
void rsi_account_thread_end(struct rouse_thread *self);
void rsi_account_name(struct rouse_thread *t);

/* The kernel thread of an exec ends. */
void rsi_account_exec_end(struct rsi_exec *exec);

/* The calling kernel thread's counters. NULL: nothing can be recorded. */
struct rsi_writer *rsi_account_writer(void);

/* In a child after fork. */
void rsi_account_child(void);

#endif
