/* SPDX-License-Identifier: MIT */
/*
 * turnstile.c - guards wait until a visitor comes. Fault: they look again and again and call sched_yield between, which
 * takes the processors from the visitors.
 *
 * Repair: they wait for a semaphore. An operation is a visitor. The repair gains processor time, hardly throughput.
 */
#include "findings.h"

#include <sched.h>
#include <semaphore.h>

enum { GUARDS = 7, VISITORS = 1, WAY_BYTES = 50000, TICKET_BYTES = 5000 };

static sem_t visitor_came;
static long waiting; /* visitors that no guard has seen */

static bool take_visitor(void)
{
    long seen = __atomic_load_n(&waiting, __ATOMIC_RELAXED);
    return seen > 0 && __atomic_compare_exchange_n(&waiting, &seen, seen - 1, false,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void await_visitor(void)
{
    if (is_fixed) {
        while (sem_wait(&visitor_came) != 0) {
        }
        return;
    }
    while (!take_visitor() && !is_over())
        sched_yield();
}

static void admit_visitor(void)
{
    if (is_fixed)
        check(sem_post(&visitor_came) == 0);
    else
        __atomic_fetch_add(&waiting, 1, __ATOMIC_ACQ_REL);
}

static void *guard(void *arg)
{
    struct worker *self = arg;
    while (!is_over()) {
        await_visitor();
        self->seed = digest(self->seed, TICKET_BYTES);
    }
    return NULL;
}

static void *visit(void *arg)
{
    struct worker *self = arg;
    for (; !is_over(); self->ops++) {
        self->seed = digest(self->seed, WAY_BYTES);
        admit_visitor();
    }
    for (unsigned i = 0; i < GUARDS; i++) /* the guards go home */
        admit_visitor();
    return NULL;
}

static void *work(void *arg)
{
    const struct worker *self = arg;
    return self->number < GUARDS ? guard(arg) : visit(arg);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    check(sem_init(&visitor_came, 0, 0) == 0);
    finish(run_threads(GUARDS + VISITORS, work));
    return 0;
}
