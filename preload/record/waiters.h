/* SPDX-License-Identifier: MIT */
/* waiters.h - which threads wait for which object, and which of them a wake-up marks as woken. */
#ifndef RPI_RECORD_WAITERS_H
#define RPI_RECORD_WAITERS_H

#include "process/linkage.h"
#include "record/thread.h"

#define RPI_WAITERS_LISTS 1024u
struct rpi_waiters {
    uint32_t guard;
    struct rpi_thread *first, *last;
};
extern RPI_HIDDEN struct rpi_waiters rpi_waiters_lists[RPI_WAITERS_LISTS];

/* The list that holds object's waiters, among those of other objects with the same hash. */
RSI_INLINE struct rpi_waiters *rpi_waiters_of(const void *object)
{
    return &rpi_waiters_lists[rsi_hash((uintptr_t)object, 0, 0) % RPI_WAITERS_LISTS];
}

/* Whether any thread waits for object, or for another object in the same list. One load; may be out of date. */
RSI_INLINE bool rpi_waiters_has(const void *object)
{
    return rsi_load_relaxed(&rpi_waiters_of(object)->first) != NULL;
}

/* self is about to wait for object. */
void rpi_waiters_join(struct rpi_thread *self, const void *object);

/* self no longer waits. is_woken: *mark is the wake-up that ended the wait. Otherwise *mark means nothing. */
void rpi_waiters_leave(struct rpi_thread *self, bool is_woken, struct rpi_mark *mark);

/* Which waiters of an object a wake-up marks. */
enum rpi_wakes {
    RPI_WAKES_ONE,      /* the first unmarked one */
    RPI_WAKES_ALL,      /* all unmarked ones */
    RPI_WAKES_ALL_ANEW, /* all: the last such call before a waiter returns is the one that woke it */
    RPI_WAKES_WRITERS_ANEW /* likewise, those that wait to write */
};

/* Mark waiters of object for a wake-up by self, which is busy, at site. Returns how many were not marked before. */
size_t rpi_waiters_wake(const struct rpi_thread *self, const void *object, enum rpi_wakes which,
                        const void *site);

/*
 * self, which is busy, releases the mutex that marked waiters of a condition acquire before they return: they could not
 * have returned yet. The condition is the one that self has signalled, or was woken at, last. site: as in the file.
 */
void rpi_waiters_release(const struct rpi_thread *self, const pthread_mutex_t *mutex,
                         uint64_t site);

/* Whether there may be such waiters. */
RSI_INLINE bool rpi_waiters_may_await(const struct rpi_thread *self)
{
    return self->woken_at && rpi_waiters_has(self->woken_at);
}

/* Remove up to most marks that self has set since then: the kernel did not wake these waiters. */
void rpi_waiters_unmark(const struct rpi_thread *self, const void *object, uint64_t since,
                        size_t most);

/*
 * The thread of taken has acquired mutex after that release, which woke it, and no thread that waited for the mutex
 * alone: remove the mark that the release has set.
 */
void rpi_waiters_unmark_released(const pthread_mutex_t *mutex, const struct rpi_mark *taken);

/* Up to most unmarked waiters of from now wait for to. */
void rpi_waiters_move(const void *from, const void *to, size_t most);

/*
 * self has joined. If count threads have arrived with it, mark the others as woken from self's wait site, remove
 * self, and return count. Otherwise return 0.
 */
size_t rpi_waiters_gather(struct rpi_thread *self, const void *object, size_t count);

/* Call this before a call that wakes waiters of object: they may return before the caller does. */
void rpi_waiters_note_wake_slow(const void *object, enum rpi_wakes which, const void *site);
RSI_INLINE void rpi_waiters_note_wake(const void *object, enum rpi_wakes which, const void *site)
{
    if (rsi_unlikely(rpi_waiters_has(object)))
        rpi_waiters_note_wake_slow(object, which, site);
}

void rpi_waiters_child(void);

#endif
