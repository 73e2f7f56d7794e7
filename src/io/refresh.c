/* SPDX-License-Identifier: MIT */
/*
 * refresh.c - the last look of a call that does not wait, at a stream that a ring receives.
 *
 * The kernel brings what has arrived when the ring's worker asks for it. On that worker the call asks itself;
 * elsewhere it sends mail and waits for the answer, but not for long: the worker may be kept by a thread.
 */
#include "io/ahead.h"

#include <stdlib.h>

/* How long a call that is not to wait waits for another worker's answer. */
#define REFRESH_NS 1000000u

/* Released by the ring's worker, for whom the thread may not wait long enough. */
struct refresh {
    struct rsi_mail mail;
    struct rouse_thread *thread;
    uint64_t ticket;
};

static void refresh_for(struct rsi_mail *mail)
{
    struct refresh *refresh = rsi_container_of(mail, struct refresh, mail);
    struct rouse_thread *thread = refresh->thread;
    uint64_t ticket = refresh->ticket;
    free(refresh);
    rsi_ring_turn(true);
    if (rsi_park_claim(thread, ticket, 0, NULL))
        rsi_park_publish(thread);
}

void rsi_ahead_refresh(const struct rsi_io_op *op)
{
    int index = rsi_ahead_worker(op->ref.entry, op->fd);
    if (index < 0)
        return;
    if (index == rouse_worker_index()) {
        rsi_ring_turn(true);
        return;
    }
    struct refresh *refresh = malloc(sizeof *refresh);
    if (refresh == NULL)
        return;
    struct rouse_thread *self = rsi_self();
    uint64_t ticket = rsi_park_prepare(self, (enum rouse_wait_kind)op->kind,
                                       (const void *)(intptr_t)op->fd, op->site,
                                       rsi_now_ns() + REFRESH_NS, 0);
    *refresh = (struct refresh){ .mail.take = refresh_for, .thread = self, .ticket = ticket };
    rsi_mail_send((unsigned)index, &refresh->mail);
    (void)rsi_park_commit(self, ticket);
}
