/* SPDX-License-Identifier: MIT */
/* mutex.h - the mutex calls for other hooks, on behalf of a caller at site. */
#ifndef RPI_HOOKS_MUTEX_H
#define RPI_HOOKS_MUTEX_H

#include "record/thread.h"

#include <pthread.h>

/* until NULL: no deadline. */
int rpi_mutex_lock(pthread_mutex_t *m, const struct timespec *until, const void *site);
int rpi_mutex_trylock(pthread_mutex_t *m, const void *site);
int rpi_mutex_unlock(pthread_mutex_t *m, const void *site);

/* The calling thread is about to unlock m inside libc. */
void rpi_mutex_note_unlock(pthread_mutex_t *m, const void *site);

/* The calling thread, self, has acquired m without being seen to wait. */
void rpi_mutex_hold(struct rpi_thread *self, pthread_mutex_t *m, const void *site);

#endif
