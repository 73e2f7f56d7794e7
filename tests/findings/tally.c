/* SPDX-License-Identifier: MIT */
/*
 * tally.c - votes are checked and counted. Fault: votes are checked under a spin lock. The threads that wait for it use
 * the processors, also while the holder has none.
 *
 * Repair: votes are checked without the lock, and counted by an atomic addition.
 */
#include "findings.h"

enum { THREADS = 6, VOTE_BYTES = 20000 };

static pthread_spinlock_t tally_lock;
static uint64_t tally[2];

static void count_vote(uint64_t vote)
{
    if (is_fixed) {
        __atomic_fetch_add(&tally[digest(vote, VOTE_BYTES) & 1], 1, __ATOMIC_RELAXED);
        return;
    }
    pthread_spin_lock(&tally_lock);
    tally[digest(vote, VOTE_BYTES) & 1]++;
    pthread_spin_unlock(&tally_lock);
}

static void *count_votes(void *arg)
{
    struct worker *self = arg;
    for (; !is_over(); self->ops++)
        count_vote(draw(&self->seed));
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    check(pthread_spin_init(&tally_lock, PTHREAD_PROCESS_PRIVATE) == 0);
    finish(run_threads(THREADS, count_votes));
    return 0;
}
