/* SPDX-License-Identifier: MIT */
/* mutex.h - the mutex as the condition variable uses it: with the caller and the call site given. */
#ifndef RSI_SYNC_MUTEX_H
#define RSI_SYNC_MUTEX_H

#include "base/base.h"

#include <rouse/sync.h>

/* Lock m, however long it takes. True: the caller had to sleep, so its last wait was this one. */
bool rsi_mutex_lock(struct rouse_mutex *m, struct rouse_thread *self, const void *site);

/* Unlock m, which self must hold; ends the program otherwise. Never blocks. */
void rsi_mutex_unlock(struct rouse_mutex *m, struct rouse_thread *self, const void *site);

#endif
