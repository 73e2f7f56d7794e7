/* SPDX-License-Identifier: MIT */
/* plain_lib.c - a library with a lock of its own, which plain_odd.c opens and closes. */
#include <pthread.h>

static pthread_mutex_t of_library = PTHREAD_MUTEX_INITIALIZER;

void library_lock(void);
void library_unlock(void);

void library_lock(void)
{
    if (pthread_mutex_lock(&of_library) != 0) /* in the library */
        __builtin_trap();
}

void library_unlock(void)
{
    if (pthread_mutex_unlock(&of_library) != 0) /* in the library */
        __builtin_trap();
}
