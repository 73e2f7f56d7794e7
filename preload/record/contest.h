/* SPDX-License-Identifier: MIT */
/* contest.h - one attempt to acquire a lock that was held on arrival. */
#ifndef RPI_RECORD_CONTEST_H
#define RPI_RECORD_CONTEST_H

#include "obs/ledger.h"
#include "record/thread.h"

struct rpi_contest {
    struct rsi_lock_key key; /* the function that records the end sets its site and name */
    uint64_t since;
    uint64_t spin_ticks; /* from then on, before the thread slept */
    int32_t holder_tid;  /* of the thread of this process that has the lock. 0: not known */
    bool is_acquired;    /* even if no wake-up ended the wait */
};

/* self, which is busy, has acquired the lock or given up. is_spun: without a sleep. */
void rpi_contest_end(struct rpi_thread *self, const struct rpi_contest *contest, bool is_acquired,
                     uint64_t now, bool is_spun);

#endif
