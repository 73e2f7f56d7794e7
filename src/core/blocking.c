/* SPDX-License-Identifier: MIT */
/*
 * blocking.c - helper kernel threads for calls that block.
 *
 * Jobs are on their callers' stacks, in a list under a pthread mutex, which costs far less than a helper's
 * work. A job that finds no idle helper starts one, up to HELPERS_MAX; further jobs wait. Idle helpers wait
 * without a time-out. If more than HELPERS_KEEP are idle, the others end.
 */
#include "core/core.h"

#include <errno.h>
#include <signal.h>

#define HELPERS_MAX 256
#define HELPERS_KEEP 8

struct job {
    void (*fn)(void *);
    void *arg;
    struct rouse_thread *caller;
    uint64_t ticket;
    struct job *next;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct job *first, **last;
    unsigned count, idle, queued;
} helpers = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, &helpers.first, 0, 0, 0 };

static __thread struct rouse_thread *caller_served;

struct rouse_thread *rsi_blocking_caller(void)
{
    return caller_served;
}

unsigned rsi_helper_count(void)
{
    return rsi_load_relaxed(&helpers.count);
}

static struct job *job_take_locked(void)
{
    struct job *job = helpers.first;
    helpers.first = job->next;
    if (!helpers.first)
        helpers.last = &helpers.first;
    helpers.queued--;
    return job;
}

/* The function may use the runtime, as a foreign thread that lasts as long as the call. */
static void job_run(const struct job *job)
{
    caller_served = job->caller;
    job->fn(job->arg);
    rsi_foreign_forget();
    if (caller_served) /* 0 in a child that it forked */
        rsi_fetch_sub_seq_cst(&rsi_rt.helpers_busy, 1u);
    caller_served = NULL;
}

static void *helper_main(void *unused)
{
    pthread_setname_np(pthread_self(), "rouse-helper");
    void *signal_stack = rsi_fault_stack_take();
    if (signal_stack) /* without one a stack overflow is not reported; that is better than no helper */
        rsi_fault_begin_kernel(signal_stack);
    rsi_kernel_thread_guard("a function that rouse_blocking runs: let it return");
    pthread_mutex_lock(&helpers.mutex);
    for (;;) {
        while (!helpers.first && helpers.idle < HELPERS_KEEP) {
            helpers.idle++;
            pthread_cond_wait(&helpers.cond, &helpers.mutex);
            helpers.idle--;
        }
        if (!helpers.first)
            break;
        struct job *job = job_take_locked();
        pthread_mutex_unlock(&helpers.mutex);
        job_run(job);
        struct rouse_thread *caller = job->caller;
        /* Nothing else can claim this wait: it has no deadline and cannot be cancelled. */
        if (rsi_park_claim(caller, job->ticket, 0, NULL))
            rsi_park_publish(caller);
        pthread_mutex_lock(&helpers.mutex);
    }
    rsi_store_relaxed(&helpers.count, helpers.count - 1);
    pthread_mutex_unlock(&helpers.mutex);
    rsi_kernel_thread_guard(NULL);
    if (signal_stack)
        rsi_fault_end_kernel();
    return unused;
}

/* Helpers block all signals except those of their own faults. The others are for the program's threads. */
static void mask_fill(sigset_t *mask)
{
    static const int of_faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS };
    sigfillset(mask);
    for (unsigned i = 0; i < sizeof of_faults / sizeof *of_faults; i++)
        sigdelset(mask, of_faults[i]);
}

bool rsi_helper_start(void *(*main)(void *))
{
    sigset_t mask, old;
    pthread_attr_t attr;
    pthread_t pthread;
    if (pthread_attr_init(&attr) != 0)
        return false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    mask_fill(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, &old);
    bool started = pthread_create(&pthread, &attr, main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return started;
}

static bool helper_start_locked(void)
{
    bool started = rsi_helper_start(helper_main);
    if (started)
        rsi_store_relaxed(&helpers.count, helpers.count + 1);
    return started;
}

/* object: the function that the wait record names. */
static int run(void (*fn)(void *), void *arg, const void *object, const void *site)
{
    struct rouse_thread *self = rsi_self();
    if (self->waiter.origin != RSI_ORIGIN_USER) {
        fn(arg);
        return 0;
    }
    struct job job = { .fn = fn, .arg = arg, .caller = self };
    rsi_fetch_add_seq_cst(&rsi_rt.helpers_busy, 1u);
    pthread_mutex_lock(&helpers.mutex);
    bool is_served = helpers.idle > helpers.queued || helpers.count >= HELPERS_MAX;
    if (!is_served && !helper_start_locked() && helpers.count == 0) {
        pthread_mutex_unlock(&helpers.mutex);
        rsi_fetch_sub_seq_cst(&rsi_rt.helpers_busy, 1u);
        return -EAGAIN;
    }
    job.ticket = rsi_park_prepare(self, ROUSE_WAIT_BLOCKING, object, site, ROUSE_FOREVER, 0);
    *helpers.last = &job;
    helpers.last = &job.next;
    helpers.queued++;
    pthread_cond_signal(&helpers.cond);
    pthread_mutex_unlock(&helpers.mutex);
    return rsi_park_commit(self, job.ticket);
}

int rsi_blocking_run(void (*fn)(void *), void *arg, const void *site)
{
    return run(fn, arg, (const void *)(uintptr_t)fn, site);
}

struct call {
    void *(*fn)(void *);
    void *arg;
    void *result;
};

static void call_run(void *value)
{
    struct call *call = value;
    call->result = call->fn(call->arg);
}

RSI_NOINLINE int rouse_blocking(void *(*fn)(void *), void *arg, void **result)
{
    struct call call = { fn, arg, NULL };
    int error = run(call_run, &call, (const void *)(uintptr_t)fn, RSI_CALLER());
    if (!error && result)
        *result = call.result;
    return error;
}

void rsi_blocking_fork_prepare(void)
{
    pthread_mutex_lock(&helpers.mutex);
}

void rsi_blocking_fork_parent(void)
{
    pthread_mutex_unlock(&helpers.mutex);
}

void rsi_blocking_child(void)
{
    caller_served = NULL;
    pthread_mutex_init(&helpers.mutex, NULL);
    pthread_cond_init(&helpers.cond, NULL);
    helpers.first = NULL;
    helpers.last = &helpers.first;
    helpers.count = helpers.idle = helpers.queued = 0;
}
