/* SPDX-License-Identifier: MIT */
/*
 * poller.h - the I/O poller as core sees it, and messages to a worker.
 *
 * Public within librouse: io/ includes it and registers one poller. idle.c and worker.c call it. The poller is this
 * interface. The worker that is in poll at a time is the polling worker (idle.c).
 */
#ifndef RSI_CORE_POLLER_H
#define RSI_CORE_POLLER_H

#include "base/base.h"

#include <rouse/thread.h>

struct rsi_poller {
    /*
     * Find finished waits, claim and publish them. Blocks until there is one, until deadline_ns, or until
     * interrupt is called. deadline_ns 0: do not block; UINT64_MAX: no limit. One worker at a time polls.
     */
    void (*poll)(uint64_t deadline_ns);
    /* End a blocking poll, the current or the next one. Any thread may call it. */
    void (*interrupt)(void);
    /* Whether threads are blocked in I/O, so that a poll can ever find something. */
    bool (*has_waiters)(void);
    /* In a child after fork, single-threaded: drop the parent's state and start anew. */
    void (*child)(void);

    /* The next six are for a poller with one ring per worker. Otherwise all are NULL. */
    /* Make the ring of the worker with this index. Spare workers have none (io/uring/ring.h). */
    void (*own)(unsigned worker_index);
    /*
     * End a round (io/uring/ring.h): submit the operations that the calling worker has collected and take
     * those that have finished, without blocking. is_due: also if nothing was collected.
     */
    void (*round)(bool is_due);
    /*
     * Block until something on the worker's own ring finishes, until *wake_word is 1 and woken by futex, or
     * until deadline_ns. watches: also until poll would find something, and then poll. False: the worker has
     * no ring and sleeps as if this call did not exist.
     */
    bool (*sleep)(uint32_t *wake_word, uint64_t deadline_ns, bool watches);
    /*
     * Whether the worker is in its ring, and no thread keeps it. With thousands of descriptors one round takes
     * milliseconds. Any thread may ask.
     */
    bool (*is_inside)(unsigned worker_index);
    /* Whether rescue would find something. Any thread may ask. */
    bool (*needs_rescue)(unsigned worker_index);
    /*
     * Another worker has not ended its turn for some time: end the waits that have finished on its ring, and those
     * that it has not submitted. Called by the watcher and the monitor's helper. Returns whether more may finish there.
     */
    bool (*rescue)(unsigned worker_index);
};
void rsi_poller_register(const struct rsi_poller *poller);
/* Call poller->own, if a poller is registered and has it. */
void rsi_poller_own(unsigned worker_index);

/* The I/O backend that the program asked for. */
enum rouse_io rsi_config_io(void);

/* Poll without blocking, unless another worker polls. On a worker. */
void rsi_poller_try(void);

/*
 * A message to the worker with this index: take(mail) runs soon on the worker's own kernel thread, between the
 * turns of two threads, and may release the mail. Any thread may send. Wakes the worker if it sleeps.
 */
struct rsi_mail {
    struct rsi_mail *next;
    void (*take)(struct rsi_mail *mail);
};
void rsi_mail_send(unsigned worker_index, struct rsi_mail *mail);

/* The indexes below this are of workers that have been started. There is none if the system refused the first one. */
unsigned rsi_mail_boxes(void);

#endif
