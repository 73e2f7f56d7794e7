/* SPDX-License-Identifier: MIT */
/*
 * pin.c - bind each worker to a processor of its own, from a user thread that runs on it.
 *
 * The scheduler decides which worker runs a thread. So pinning starts twice as many threads as workers. Each
 * thread keeps its worker busy until every worker has been reached or a time limit has passed, and the other
 * workers take the remaining threads.
 */
#include "bench.h"

#include <stdlib.h>

#include <rouse/rouse.h>

#include "raw.h"

#define PATIENCE_NS 200000000u

struct pinning {
    const struct bench_run *run;
    uint64_t deadline_ns;
    _Atomic unsigned bound;
    atomic_bool met[BENCH_TALLIES];
};

static void *bind_worker(void *arg)
{
    struct pinning *p = arg;
    const struct bench_run *run = p->run;
    const int worker = rouse_worker_index();

    if (worker < 0 || (unsigned)worker >= BENCH_TALLIES)
        return NULL;
    if (!atomic_exchange(&p->met[worker], true) &&
        raw_pin(run->cpus[(unsigned)worker % run->cpu_count]) == 0)
        atomic_fetch_add(&p->bound, 1);
    while (atomic_load(&p->bound) < run->workers && rouse_now_ns() < p->deadline_ns)
        ;
    return NULL;
}

unsigned bench_pin_workers(const struct bench_run *run)
{
    const struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER };
    const unsigned count = 2 * run->workers;
    struct rouse_thread **threads = calloc(count, sizeof *threads);
    struct pinning *p = calloc(1, sizeof *p);
    unsigned bound = 0, made = 0;

    if (threads && p) {
        p->run = run;
        p->deadline_ns = rouse_now_ns() + PATIENCE_NS;
        while (made < count && rouse_thread_create(&threads[made], &attr, bind_worker, p) == 0)
            made++;
        for (unsigned i = 0; i < made; i++)
            rouse_thread_join(threads[i], NULL);
        bound = atomic_load(&p->bound);
    }
    free(p);
    free(threads);
    return bound;
}
