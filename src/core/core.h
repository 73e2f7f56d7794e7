/* SPDX-License-Identifier: MIT */
/*
 * core.h - everything that core's own files and obs see of core. The folders above include the public headers
 * instead: park, waiter, exec, turn, observe, contest, hold, poller, blocking.
 *
 * Where to look:
 *   how a thread waits and is woken   park.h, park.c          the switch between stacks  switch.h
 *   what a worker runs next           worker.c, place.c       the lock on its queue      queue_lock.h
 *   how idle workers sleep and wake   idle.c, sleep_lead.c    stuck workers              watch.c, monitor.c, spares.c
 *   a thread's life                   thread.c, key.c         on its own kernel thread   kernel_thread.c
 *   time-outs                         timer.c                 calls that block           blocking.c
 *   what recording counts             account.c, contest.c, hold.c
 *
 * Write access:
 *   a thread's block   the thread itself while it runs; the winner of its claim between claim and publish; the
 *                      worker that dequeues it, until it runs. Exceptions are marked at the field.
 *   a worker           its own kernel thread, under the queue lock where the field says so; a thief that holds
 *                      the queue lock. Exceptions are marked at the field.
 *   a cluster          its settings: the thread that makes it. Its list of workers: any thread under the
 *                      runtime's lock; any thread may read it. The fields of idle.c: under its idle_guard.
 * Lock order: the runtime's lock < idle_guard < queue lock < inbox. Nothing is held across a switch.
 */
#ifndef RSI_CORE_CORE_H
#define RSI_CORE_CORE_H

#include "core/account.h"
#include "core/block.h"
#include "core/blocking.h"
#include "core/cluster.h"
#include "core/cpus.h"
#include "core/fault.h"
#include "core/idle.h"
#include "core/park.h"
#include "core/runtime.h"
#include "core/thread.h"
#include "core/timer.h"
#include "core/worker.h"
#include "ctx/ctx.h"
#include "ctx/stack.h"
#include "os/os.h"

#include <signal.h>

/* park.c */
bool rsi_park_cancel_self(struct rouse_thread *self, uint64_t ticket);
void rsi_park_settle(struct rouse_thread *self);

/* trim.c, pressure.c */
void rsi_trim_child(void);
void rsi_pressure_setup(void);
void rsi_pressure_child(void);
int rsi_pressure_watch(int fd);
unsigned rsi_pressure_threads(void); /* 0 or 1 */

/* blocking.c */
unsigned rsi_helper_count(void);
/* Start a detached kernel thread that blocks all signals except those of its own faults. */
bool rsi_helper_start(void *(*main)(void *));
void rsi_blocking_child(void);
void rsi_blocking_fork_prepare(void);
void rsi_blocking_fork_parent(void);

/* fork.c */
void rsi_fork_setup(void);

/* obs/, called by core */
void rsi_obs_setup(void);
void rsi_dump_setup(void);
/* On each worker, kernel and foreign thread, with the signals that it blocks. */
void rsi_obs_thread_begin(const sigset_t *blocked);

#endif
