/* SPDX-License-Identifier: MIT */
/* cpus.c - the CPUs on which workers may run. */
#include "core/core.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

/*
 * The CPUs of workers that are not pinned: those of the process, not those of the thread that starts the
 * workers.
 */
static struct rsi_cpus cpus_of_process;
/* under the runtime's lock; without a pin, all threads may use the same CPUs */
static bool is_any_pinned;

void rsi_cpus_setup(void)
{
    long bytes = rsi_syscall3(SYS_sched_getaffinity, 0, sizeof cpus_of_process, &cpus_of_process);
    if (bytes <= 0)
        memset(&cpus_of_process, 0xff, sizeof cpus_of_process);
}

const struct rsi_cpus *rsi_cpus_of(const struct rouse_cluster *cluster)
{
    return cluster->is_pinned ? &cluster->cpus : &cpus_of_process;
}

/* Read a number of at most max at *text and advance *text past it. -1: there is none. */
static int number(const char **text, int max)
{
    int value = 0;
    if (**text < '0' || **text > '9')
        return -1;
    for (; **text >= '0' && **text <= '9'; ++*text) {
        value = value * 10 + **text - '0';
        if (value > max)
            return -1;
    }
    return value;
}

int rsi_cpus_parse(const char *text, struct rsi_cpus *cpus)
{
    const int bits = 8 * sizeof cpus->bits[0];
    memset(cpus, 0, sizeof *cpus);
    for (;;) {
        int first = number(&text, RSI_CPUS_MAX - 1), last = first;
        if (first >= 0 && *text == '-') {
            text++;
            last = number(&text, RSI_CPUS_MAX - 1);
        }
        if (first < 0 || last < first)
            return -EINVAL;
        for (int cpu = first; cpu <= last; cpu++)
            cpus->bits[cpu / bits] |= 1ul << cpu % bits;
        if (!*text)
            return 0;
        if (*text++ != ',')
            return -EINVAL;
    }
}

int rsi_cpus_pin_locked(struct rsi_worker *w, const struct rsi_cpus *cpus)
{
    return -pthread_setaffinity_np(w->pthread, sizeof *cpus, (const cpu_set_t *)cpus);
}

/* The CPUs of future workers. cpus NULL: any. */
void rsi_cpus_bind_locked(struct rouse_cluster *cluster, const struct rsi_cpus *cpus)
{
    cluster->is_pinned = cpus != NULL;
    is_any_pinned = is_any_pinned || cpus;
    if (cpus)
        cluster->cpus = *cpus;
}

/* cpus NULL: any. worker negative: all current workers, and future ones. */
int rsi_cpus_pin(struct rouse_cluster *cluster, int worker, const struct rsi_cpus *cpus)
{
    int error = worker < 0 ? 0 : -EINVAL;
    const struct rsi_cpus *set = cpus ? cpus : &cpus_of_process;
    rsi_runtime_lock();
    is_any_pinned = true;
    for (uint32_t i = 0; i < cluster->slot_count; i++) {
        struct rsi_worker *w = cluster->workers[i];
        if (w && !w->is_leaving && (worker < 0 || w->index == (uint32_t)worker))
            error = rsi_cpus_pin_locked(w, set);
        if (error && worker < 0)
            break;
    }
    if (!error && worker < 0)
        rsi_cpus_bind_locked(cluster, cpus);
    rsi_runtime_unlock();
    return error;
}

bool rsi_cpus_differ(void)
{
    return is_any_pinned;
}
