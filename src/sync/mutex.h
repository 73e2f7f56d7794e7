/* SPDX-License-Identifier: MIT */
/*
 * mutex.h - the mutex as the condition variable uses it: the caller passes the thread and the call site.
 */
#ifndef RSI_SYNC_MUTEX_H
#define RSI_SYNC_MUTEX_H

#include "base/base.h"

#include <rouse/sync.h>

/* Lock m, without a deadline. True: the caller slept, so its latest wait was this one. */
bool rsi_mutex_lock(struct rouse_mutex *m, struct rouse_thread *self, const void *site);

/* Unlock m, which self must hold, or the program ends. Never blocks. */
void rsi_mutex_unlock(struct rouse_mutex *m, struct rouse_thread *self, const void *site);

#endif
