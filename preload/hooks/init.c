/* SPDX-License-Identifier: MIT */
/*
 * init.c - pthread_mutex_init and its kin, and what destroys what they have made: where each lock, condition, semaphore
 * and barrier comes from. It is told by that place if it is waited for, or held where holds are recorded.
 *
 * What is initialised is not recorded: most of it is never waited for. A place gets a number in the file with the first
 * wait for something that it has made.
 */
#include "record/init_site.h"
#include "preload.h"

#include <string.h>

#define NO_ROOM UINT32_MAX /* for a name in the file */

/* Of each place, the number of its name in this process's file; 0: it has none yet. Set once, by compare and swap. */
static uint32_t names[RPI_INIT_SITE_PLACES];
static bool is_named; /* some are; relaxed */
static uint64_t lost; /* initialisations of which the place is not known */

/* The greatest that is told is the last: several threads may tell at once. */
static RSI_COLD void tell(uint64_t count)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with rsi_file_open */
    if (!head || !*rpi_recording_here)
        return;
    uint64_t told = rsi_load_relaxed(&head->lost_origins);
    while (told < count && !rsi_cas_relaxed(&head->lost_origins, &told, count))
        ;
}

void rpi_init_site_note(void)
{
    tell(rsi_load_relaxed(&lost));
}

void rpi_init_site_child(void)
{
    if (is_named)
        memset(names, 0, sizeof names);
    is_named = false;
}

static RSI_COLD uint32_t name_new(struct rsi_writer *writer, uint32_t place)
{
    uint32_t before = 0;
    uint32_t made = rsi_writer_origin(writer, (uintptr_t)rpi_init_site_address(place));
    made = made ? made : NO_ROOM;
    rsi_store_relaxed(&is_named, true);
    return rsi_cas_relaxed(&names[place - 1], &before, made) ? made : before;
}

uint32_t rpi_init_site_name(struct rsi_writer *writer, const void *object)
{
    uint32_t place = rpi_init_site_of(object);
    if (place == 0)
        return 0;
    uint32_t name = rsi_load_relaxed(&names[place - 1]);
    if (rsi_unlikely(name == 0))
        name = name_new(writer, place);
    return name == NO_ROOM ? 0 : name;
}

/* What a call returned that was to initialise object. */
RSI_INLINE int begun(int result, const void *object, const void *site)
{
    if (rsi_likely(result == 0) && rsi_unlikely(!rpi_init_site_put(object, site)))
        tell(rsi_fetch_add_relaxed(&lost, 1) + 1);
    return result;
}

/* The same of one that was to destroy it: a lock in use may stay. */
RSI_INLINE int ended(int result, const void *object)
{
    if (rsi_likely(result == 0))
        rpi_init_site_end(object);
    return result;
}

/* Of these two libc's own are there before any constructor has run: malloc may have mutexes. */
RPI_EXPORT RSI_NOINLINE int pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *how)
{
    return begun(rpi_real.pthread_mutex_init(m, how), m, RSI_CALLER());
}

RPI_EXPORT int pthread_mutex_destroy(pthread_mutex_t *m)
{
    return ended(rpi_real.pthread_mutex_destroy(m), m);
}

RPI_EXPORT RSI_NOINLINE int pthread_rwlock_init(pthread_rwlock_t *l,
                                                const pthread_rwlockattr_t *how)
{
    rpi_real_find();
    return begun(rpi_real.pthread_rwlock_init(l, how), l, RSI_CALLER());
}

RPI_EXPORT int pthread_rwlock_destroy(pthread_rwlock_t *l)
{
    rpi_real_find();
    return ended(rpi_real.pthread_rwlock_destroy(l), l);
}

RPI_EXPORT RSI_NOINLINE int pthread_spin_init(pthread_spinlock_t *l, int is_shared)
{
    rpi_real_find();
    return begun(rpi_real.pthread_spin_init(l, is_shared), (const void *)l, RSI_CALLER());
}

RPI_EXPORT int pthread_spin_destroy(pthread_spinlock_t *l)
{
    rpi_real_find();
    return ended(rpi_real.pthread_spin_destroy(l), (const void *)l);
}

RPI_EXPORT RSI_NOINLINE int pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *how)
{
    rpi_real_find();
    return begun(rpi_real.pthread_cond_init(c, how), c, RSI_CALLER());
}

RPI_EXPORT int pthread_cond_destroy(pthread_cond_t *c)
{
    rpi_real_find();
    return ended(rpi_real.pthread_cond_destroy(c), c);
}

RPI_EXPORT RSI_NOINLINE int pthread_barrier_init(pthread_barrier_t *b,
                                                 const pthread_barrierattr_t *how, unsigned count)
{
    rpi_real_find();
    return begun(rpi_real.pthread_barrier_init(b, how, count), b, RSI_CALLER());
}

RPI_EXPORT int pthread_barrier_destroy(pthread_barrier_t *b)
{
    rpi_real_find();
    return ended(rpi_real.pthread_barrier_destroy(b), b);
}

RPI_EXPORT RSI_NOINLINE int sem_init(sem_t *s, int is_shared, unsigned value)
{
    rpi_real_find();
    return begun(rpi_real.sem_init(s, is_shared, value), s, RSI_CALLER());
}

RPI_EXPORT int sem_destroy(sem_t *s)
{
    rpi_real_find();
    return ended(rpi_real.sem_destroy(s), s);
}

RPI_EXPORT RSI_NOINLINE int mtx_init(mtx_t *m, int kind)
{
    rpi_real_find();
    return begun(rpi_real.mtx_init(m, kind), m, RSI_CALLER());
}

RPI_EXPORT void mtx_destroy(mtx_t *m)
{
    rpi_real_find();
    rpi_real.mtx_destroy(m);
    rpi_init_site_end(m);
}

RPI_EXPORT RSI_NOINLINE int cnd_init(cnd_t *c)
{
    rpi_real_find();
    return begun(rpi_real.cnd_init(c), c, RSI_CALLER());
}

RPI_EXPORT void cnd_destroy(cnd_t *c)
{
    rpi_real_find();
    rpi_real.cnd_destroy(c);
    rpi_init_site_end(c);
}
