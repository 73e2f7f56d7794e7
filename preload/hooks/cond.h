/* SPDX-License-Identifier: MIT */
/* cond.h - the condition calls for other hooks, on behalf of a caller at site. */
#ifndef RPI_HOOKS_COND_H
#define RPI_HOOKS_COND_H

#include <pthread.h>
#include <stdbool.h>

/* until NULL: no deadline. */
int rpi_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until,
                  const void *site);
int rpi_cond_wake(pthread_cond_t *c, bool is_broadcast, const void *site);

#endif
