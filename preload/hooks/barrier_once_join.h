/* SPDX-License-Identifier: MIT */
/* barrier_once_join.h - join and once for other hooks, on behalf of a caller at site. */
#ifndef RPI_HOOKS_BARRIER_ONCE_JOIN_H
#define RPI_HOOKS_BARRIER_ONCE_JOIN_H

#include <pthread.h>

int rpi_join(pthread_t thread, void **value, const void *site);
int rpi_once(pthread_once_t *control, void (*routine)(void), const void *site);

#endif
