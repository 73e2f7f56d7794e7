/* SPDX-License-Identifier: MIT */
/*
 * blocking.h - run a function that blocks its kernel thread.
 *
 * Public within librouse: io/ may include it.
 */
#ifndef RSI_CORE_BLOCKING_H
#define RSI_CORE_BLOCKING_H

#include "core/exec.h"

/*
 * Run fn(arg) on a helper kernel thread while the calling user thread is parked. On other kinds of thread, call
 * fn directly. Returns 0 or -EAGAIN. Cannot be cancelled. site: the wait site.
 */
int rsi_blocking_run(void (*fn)(void *), void *arg, const void *site);

/* In a function that runs on a helper: the thread that waits for it. NULL elsewhere. */
struct rouse_thread *rsi_blocking_caller(void);

#endif
