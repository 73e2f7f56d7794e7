/* SPDX-License-Identifier: MIT */
/* runtime.c - the start of the runtime, at the first call that needs it; its settings; its numbers. */
#include "core/core.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define ID_RANGE 1024

struct rsi_runtime rsi_rt;

static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned workers_wanted; /* under start_mutex; 0: not settled */
static enum rouse_io io_wanted; /* written under start_mutex */

/* libstdc++'s accessor of a kernel thread's exception state; absent in a program without C++. */
extern void *__cxa_get_globals(void) __attribute__((weak));

static unsigned workers_from_environment(void)
{
    const char *text = getenv("ROUSE_WORKERS");
    if (!text || !*text)
        return 0;
    char *end;
    unsigned long workers = strtoul(text, &end, 10);
    if (*end || workers == 0 || workers > RSI_WORKERS_MAX)
        rsi_fatal("ROUSE_WORKERS is \"%s\"; give a number from 1 to %d", text, RSI_WORKERS_MAX);
    return (unsigned)workers;
}

static enum rouse_kind kind_from_environment(void)
{
    const char *text = getenv("ROUSE_THREADS");
    if (!text || !*text || strcmp(text, "user") == 0)
        return ROUSE_KIND_USER;
    if (strcmp(text, "kernel") != 0)
        rsi_fatal("ROUSE_THREADS is \"%s\"; give user or kernel", text);
    return ROUSE_KIND_KERNEL;
}

static void workers_settle_locked(void)
{
    if (workers_wanted == 0)
        workers_wanted = workers_from_environment();
    if (workers_wanted == 0)
        workers_wanted = rsi_cpu_count();
    if (workers_wanted > RSI_WORKERS_MAX)
        workers_wanted = RSI_WORKERS_MAX;
}

int rouse_configure(const struct rouse_config *config)
{
    if (!config || config->workers > RSI_WORKERS_MAX || (unsigned)config->io > ROUSE_IO_URING)
        return -EINVAL;
    pthread_mutex_lock(&start_mutex);
    bool is_late = rsi_load_relaxed(&rsi_rt.is_started);
    if (!is_late)
        workers_wanted = config->workers;
    if (!is_late)
        rsi_store_relaxed(&io_wanted, config->io);
    pthread_mutex_unlock(&start_mutex);
    return is_late ? -EBUSY : 0;
}

enum rouse_io rsi_config_io(void)
{
    return rsi_load_relaxed(&io_wanted);
}

unsigned rouse_worker_count(void)
{
    pthread_mutex_lock(&start_mutex);
    workers_settle_locked();
    unsigned count = rsi_load_relaxed(&rsi_rt.is_started) ? rsi_load_relaxed(&rsi_rt.worker_count)
                                                          : workers_wanted;
    pthread_mutex_unlock(&start_mutex);
    return count;
}

int rouse_worker_index(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    return exec->worker ? (int)exec->worker->index : -1;
}

/* A number never given out before; workers take them in ranges, so that they share no line. */
uint64_t rsi_id_next(struct rsi_worker *w)
{
    if (!w)
        return rsi_fetch_add_relaxed(&rsi_rt.ids, 1u) + 1;
    if (w->id_next == w->id_end) {
        w->id_next = rsi_fetch_add_relaxed(&rsi_rt.ids, ID_RANGE) + 1;
        w->id_end = w->id_next + ID_RANGE;
    }
    return w->id_next++;
}

static void *worker_thread(void *value)
{
    struct rsi_worker *w = value;
    char name[16];
    sigset_t blocked;
    rsi_format(name, sizeof name, "rouse-%u", w->index);
    pthread_setname_np(pthread_self(), name);
    rsi_tls_exec = &w->exec;
    rsi_store_relaxed(&w->tid, (int32_t)rsi_gettid());
    w->eh_globals = __cxa_get_globals ? __cxa_get_globals() : NULL;
    rsi_timer_slack_min();
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    rsi_obs_thread_begin(&blocked);
    rsi_fault_setup_worker(w);
    rsi_kernel_guard("a user thread, and its worker with it: return, or call rouse_thread_exit");
    rsi_ctx_init_native(&w->idle.ctx);
    w->look_ns = w->poll_ns = rsi_now_ns();
    rsi_worker_main(w);
}

static struct rsi_worker *worker_new(uint32_t index)
{
    struct rsi_worker *w = aligned_alloc(RSI_CACHE_LINE, sizeof *w);
    if (!w)
        return NULL;
    memset(w, 0, sizeof *w);
    w->index = index;
    w->exec.worker = w;
    w->look_left = w->look_every = 64;
    w->random = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    if (!rsi_timer_setup(w)) {
        free(w);
        return NULL;
    }
    return w;
}

/* The worker exists for the others before its kernel thread runs: they may steal from it, and it runs
 * nothing yet. After an error all is left for another attempt. */
static int worker_start_locked(uint32_t index)
{
    struct rsi_worker *w = rsi_rt.workers[index];
    if (!w)
        w = worker_new(index);
    if (!w)
        return -ENOMEM;
    rsi_rt.workers[index] = w;
    if (!rsi_fault_prepare_worker(w))
        return -ENOMEM;
    rsi_store_release(&rsi_rt.worker_count, index + 1);
    int error = pthread_create(&w->pthread, NULL, worker_thread, w);
    if (error)
        rsi_store_release(&rsi_rt.worker_count, index);
    else
        pthread_detach(w->pthread);
    return -error;
}

static void setup_once(void)
{
    rsi_fence_setup();
    rsi_stack_guards_are_light();
    rsi_rt.default_kind = kind_from_environment();
    rsi_kernel_setup();
    rsi_fault_setup();
    rsi_fork_setup();
    rsi_obs_setup();
    rsi_pressure_setup();
}

/* With as many workers as can be had. Fails when there is none. */
int rsi_runtime_try_start_slow(void)
{
    static bool is_set_up;
    int error = 0;
    pthread_mutex_lock(&start_mutex);
    if (!rsi_load_relaxed(&rsi_rt.is_started)) {
        workers_settle_locked();
        if (!is_set_up)
            setup_once();
        is_set_up = true;
        while (rsi_rt.worker_count < workers_wanted && error == 0)
            error = worker_start_locked(rsi_rt.worker_count);
        if (rsi_rt.worker_count != 0) {
            error = 0;
            rsi_store_release(&rsi_rt.is_started, 1u);
        }
    }
    pthread_mutex_unlock(&start_mutex);
    return error;
}

/* For calls that have no error to return. */
void rsi_runtime_start_slow(void)
{
    if (rsi_runtime_try_start_slow() != 0)
        rsi_fatal("no worker could be started: no memory, or too many threads (ulimit -u)");
}

void rsi_runtime_fork_lock(void)
{
    pthread_mutex_lock(&start_mutex);
}

void rsi_runtime_fork_unlock(void)
{
    pthread_mutex_unlock(&start_mutex);
}

void rsi_poller_register(const struct rsi_poller *poller)
{
    rsi_runtime_start();
    rsi_store_release(&rsi_rt.poller, poller); /* pairs with idle workers' acquire */
    /* Who sleeps already does so without it; a kernel thread that waits would wake none of them. */
    rsi_idle_wake_one(NULL);
}

static void worker_child(struct rsi_worker *w)
{
    w->owner_in = w->thief_in = w->steal_guard = 0;
    w->queue_length = 0;
    w->queue_first = w->queue_last = w->next = w->inbox = NULL;
    w->mail = NULL;
    w->handoff = w->block_cache = NULL;
    w->block_count = w->stack_promises = w->stack_count = w->stack_keep = 0;
    rsi_timer_reset(w);
    w->is_idle = w->is_polling = w->is_searching = w->is_watcher = false;
    w->idle_link = NULL;
    w->wake_word = 0;
    if (&w->exec != rsi_exec_self())
        w->exec.current = NULL; /* what it ran is no more */
}

/*
 * In a child after fork: survivor is the worker that forked, NULL if a kernel thread did. The other
 * workers are started again by the next call that starts the runtime.
 */
void rsi_runtime_child(struct rsi_worker *survivor)
{
    for (uint32_t i = 0; i < rsi_rt.worker_count; i++)
        worker_child(rsi_rt.workers[i]);
    rsi_idle_child();
    rsi_rt.helpers_busy = rsi_rt.kernel_parked = 0;
    rsi_rt.kernel_known = survivor || !rsi_exec_self()->current ? 0 : 1;
    rsi_rt.worker_count = 0;
    rsi_rt.is_main_worker = survivor != NULL;
    if (survivor) {
        struct rsi_worker *first = rsi_rt.workers[0];
        rsi_rt.workers[0] = survivor;
        rsi_rt.workers[survivor->index] = first;
        first->index = survivor->index;
        survivor->index = 0;
        survivor->tid = (int32_t)rsi_gettid();
        rsi_rt.worker_count = 1;
    }
    rsi_store_release(&rsi_rt.is_started, 0u);
}
