/* SPDX-License-Identifier: MIT */
/* wait.h - one call that waits, from its begin to its end. */
#ifndef RPI_RECORD_WAIT_H
#define RPI_RECORD_WAIT_H

#include "record/contest.h"
#include "record/thread.h"

#include <errno.h>
#include <rouse/obs.h>

struct rpi_wait {
    struct rpi_thread *self;
    uint64_t since;
    bool is_queued; /* another call of the program may end the wait */
    bool has_lost;  /* a wake-up ended the wait, but another thread was faster: set by the caller */
    bool for_mutex; /* it went on for the mutex of a condition, whose acquisition was counted */
};

/*
 * Begin the record of a call that sleeps, or may sleep. The thread is busy until the end. False: the call is not
 * recorded, and rpi_wait_end must not be called. Leaves errno alone.
 */
bool rpi_wait_begin(struct rpi_wait *wait, enum rouse_wait_kind kind, const void *object,
                    const void *site);

/* The same; is_for_clients: the call waits only for clients to connect or to send. */
bool rpi_wait_begin_for(struct rpi_wait *wait, enum rouse_wait_kind kind, const void *object,
                        const void *site, bool is_for_clients);

/* After a successful begin: show who holds the lock, and since when the thread has waited for it in all. */
void rpi_wait_show(const struct rpi_wait *wait, const struct rpi_contest *contest);

/* The process has begun to wait for something other than a child. */
extern RPI_HIDDEN bool rpi_wait_is_any;
void rpi_wait_child(void);

/*
 * End the record. verdict NONE: the call did not wait. contest: for the last wait for a lock that was held on arrival,
 * else NULL. False: a signal handler has forked, and the wait belongs to the parent. Leaves errno alone.
 */
bool rpi_wait_end(struct rpi_wait *wait, enum rouse_verdict verdict, struct rpi_contest *contest);

/* For pthread_cleanup_push: the end of a wait whose thread is cancelled. */
void rpi_wait_cancelled(void *wait);

/* About what a wake-up costs: the call, two switches, and refilled caches. A thread that ran for longer did some work. */
#define RPI_WAIT_WORK_NS 20000u

/* Whether the thread is still in the wait that it began. */
RSI_INLINE bool rpi_wait_goes_on(const struct rpi_wait *wait)
{
    return wait->self->wait == wait && *rpi_recording_here;
}

/*
 * The wake-up of self's last wait, counted under key, turned out useless: correct its verdict, and count the time that
 * self has run since then as wasted.
 */
void rpi_wait_was_useless(struct rpi_thread *self, const struct rsi_wake_key *key,
                          enum rouse_verdict verdict, uint64_t now);

/* The calling thread has completed an I/O call of this kind. */
void rpi_wait_count_call(enum rouse_wait_kind kind);

/* A non-blocking attempt on fd found nothing. If a poll had just reported something, that wake-up lost a race. */
void rpi_wait_found_nothing(int fd);

/* The verdict on a wait for a lock, a condition or the like, from the error number of its call. */
RSI_INLINE enum rouse_verdict rpi_wait_verdict(int error)
{
    return error == 0 || error == EOWNERDEAD ? ROUSE_VERDICT_USEFUL
           : error == ETIMEDOUT              ? ROUSE_VERDICT_TIMEOUT
           : error == EINTR                  ? ROUSE_VERDICT_CANCELLED
                                             : ROUSE_VERDICT_NONE;
}

#endif
