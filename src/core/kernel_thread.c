/* SPDX-License-Identifier: MIT */
/*
 * kernel_thread.c - threads that are kernel threads: those of kind kernel, and foreign ones known since their
 * first call.
 *
 * Such a thread parks on a futex in its block, or in ppoll when it waits for a descriptor. To end a ppoll, a
 * waker sends it INTERRUPT_SIGNAL. These threads keep that signal blocked except during the call, so that it
 * cannot arrive too early and be lost.
 */
#include "core/core.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#ifdef RSI_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define INTERRUPT_SIGNAL (SIGRTMAX - 2)
#define KERNEL_SIGSET_BYTES 8

/* The futex in the block: 0 while the thread runs or waits with a deadline, or one of these. */
enum { PUBLISHED = 1, COUNTED = 2 };

static pthread_key_t foreign_key;
static pthread_key_t guard_key;

static void on_interrupt(int signal_number)
{
    (void)signal_number; /* its arrival is all that matters */
}

static void foreign_end(void *value)
{
    struct rouse_thread *self = value;
    if (self->locals)
        rsi_keys_run_destructors(self);
    rsi_park_settle(self);
    rsi_account_thread_end(self);
    rsi_account_exec_end(&self->exec);
    rsi_tls_exec = &rsi_exec_none;
    rsi_fetch_sub_seq_cst(&rsi_rt.kernel_known, 1u);
    rsi_block_free(NULL, self);
    rsi_idle_look_again();
}

#ifdef RSI_ASAN
#define FRAMES_BYTES ((size_t)16384)

/* A worker that ends this way never returned from its frames. Their marks remain and mean nothing. */
static void forget_frames(void)
{
    char *here = __builtin_frame_address(0);
    __asan_unpoison_memory_region(here - FRAMES_BYTES, 2 * FRAMES_BYTES);
}
#else
#define forget_frames() ((void)0)
#endif

/*
 * Without this message the end would go unnoticed: a worker takes all its threads with it, and a joiner waits
 * for ever.
 */
static void guard_end(void *what)
{
    forget_frames();
    rsi_fatal("pthread_exit or pthread_cancel ended %s", (const char *)what);
}

void rsi_kernel_thread_guard(const char *what)
{
    (void)pthread_setspecific(guard_key, what); /* out of memory: such an end is not reported */
}

void rsi_kernel_thread_setup(void)
{
    struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(INTERRUPT_SIGNAL, &action, NULL);
    if (pthread_key_create(&foreign_key, foreign_end) != 0 ||
        pthread_key_create(&guard_key, guard_end) != 0)
        rsi_fatal("no pthread key is left for the threads rouse did not make");
}

/* Runs on the kernel thread itself. */
static void begin(struct rouse_thread *self)
{
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, INTERRUPT_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    rsi_obs_thread_begin(&before);
    self->tid = (int32_t)rsi_gettid();
    self->futex = 0;
    /* A late publisher of the block may still read it. */
    rsi_store_relaxed(&self->exec.in_ppoll, (uint8_t)0);
    rsi_store_relaxed(&self->waiter.on_cpu, RSI_CPU_RUNS);
    self->exec.current = self;
    self->exec.worker = NULL;
    self->exec.writer = NULL;
    self->exec.is_writerless = false;
    self->exec.turn_units = 0;
    self->exec.home = RSI_HOME_NONE;
    rsi_tls_exec = &self->exec;
    rsi_fetch_add_seq_cst(&rsi_rt.kernel_known, 1u);
    if (rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF)
        rsi_account_entered(self);
}

/* may_fail: else the thread is adopted even if its end will not be seen, so that its block is never free again. */
static int adopt(bool may_fail)
{
    struct rouse_thread *self = rsi_block_alloc(NULL, false);
    if (!self)
        return -ENOMEM;
    self->waiter.origin = RSI_ORIGIN_FOREIGN;
    if (pthread_setspecific(foreign_key, self) != 0 && may_fail) {
        rsi_block_free(NULL, self);
        return -ENOMEM;
    }
    rsi_store_relaxed(&self->waiter.home, 0);
    self->waiter.is_listed = false;
    self->waiter.cancel = 0;
    self->waiter.record = (struct rsi_wait){ 0 };
    rsi_cold_clear(self);
    self->locals = NULL;
    self->waiter.is_finishing = false;
    self->waiter.is_slotless = false;
    rsi_store_relaxed(&self->id, rsi_id_next(NULL));
    self->join_word = RSI_JOIN_DETACHED;
    begin(self);
    rsi_store_release(&self->waiter.life, RSI_LIFE_LIVE);
    return 0;
}

int rsi_foreign_try_adopt(void)
{
    return adopt(true);
}

struct rouse_thread *rsi_foreign_adopt(void)
{
    rsi_runtime_start();
    if (adopt(false) != 0)
        rsi_fatal("no memory for the control block of a kernel thread");
    return rsi_exec_self()->current;
}

/* Forget the calling foreign thread, if it has a control block. */
void rsi_foreign_forget(void)
{
    struct rouse_thread *self = rsi_exec_self()->current;
    if (!self)
        return;
    (void)pthread_setspecific(foreign_key, NULL);
    foreign_end(self);
}

void rsi_kernel_thread_end(struct rouse_thread *self)
{
    rsi_kernel_thread_guard(NULL);
    rsi_fault_end_kernel();
    rsi_account_exec_end(&self->exec);
    rsi_tls_exec = &rsi_exec_none;
    rsi_fetch_sub_seq_cst(&rsi_rt.kernel_known, 1u);
    rsi_thread_left(NULL, self);
    rsi_idle_look_again();
}

static void *kernel_main(void *value)
{
    struct rouse_thread *self = value;
    rsi_fault_begin_kernel(self->waiter.ctx.sp);
    begin(self);
    rsi_kernel_thread_guard("a thread of kind kernel: return, or call rouse_thread_exit");
    void *(*fn)(void *) = self->fn;
    self->locals = NULL;
    rsi_thread_finish(self, fn(self->arg));
    rsi_kernel_thread_end(self);
    /* Not pthread_exit: its first call loads libgcc_s, and aborts if descriptors or memory have run out. */
    return NULL;
}

/* A kernel thread does not use its context, so ctx.sp passes it the address of its signal stack. */
static int create(struct rouse_thread *t, const pthread_attr_t *attr)
{
    pthread_t pthread;
    void *signal_stack = rsi_fault_stack_take();
    if (!signal_stack)
        return -ENOMEM;
    rsi_store_relaxed(&t->waiter.ctx.sp, signal_stack);
    rsi_store_relaxed(&t->waiter.on_cpu, RSI_CPU_RUNS);
    int error = pthread_create(&pthread, attr, kernel_main, t);
    if (error)
        rsi_fault_stack_give(signal_stack);
    return -error;
}

int rsi_kernel_thread_create(struct rouse_thread *t, size_t stack_bytes)
{
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0)
        return -ENOMEM;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN) + RSI_STACK_BYTES_MIN;
    if (stack_bytes)
        pthread_attr_setstacksize(
            &attr, rsi_round_up(stack_bytes < least ? least : stack_bytes, RSI_PAGE));
    int error = create(t, &attr);
    pthread_attr_destroy(&attr);
    return error;
}

void rsi_kernel_thread_publish(struct rouse_thread *t)
{
    int32_t tid = t->tid;
    /* Pairs with the loads in published and commit_ppoll. */
    if (rsi_exchange_seq_cst(&t->futex, PUBLISHED) == COUNTED)
        rsi_fetch_sub_seq_cst(&rsi_rt.kernel_parked, 1u);
    /* From here on t may run and end, and its block may be reused. A stray wake-up does no harm. */
    if (rsi_load_seq_cst(&t->exec.in_ppoll))
        rsi_syscall3(SYS_tgkill, getpid(), tid, INTERRUPT_SIGNAL);
    else
        rsi_futex_wake(&t->futex, 1);
}

static bool published(struct rouse_thread *self)
{
    return rsi_load_seq_cst(&self->futex) == PUBLISHED;
}

static int claimed_result(struct rouse_thread *self)
{
    while (!published(self))
        rsi_futex_wait(&self->futex, 0, ROUSE_FOREVER);
    rsi_store_relaxed(&self->futex, 0u);
    return self->waiter.result;
}

/*
 * Sleep without a deadline. The thread counts itself before it sleeps, and the publisher takes the count
 * back, so that the count is right at any time: deadlock detection uses it.
 */
static void sleep_counted(struct rouse_thread *self)
{
    struct rsi_quiet quiet = { 0, 0 };
    uint32_t free = 0;
    rsi_fetch_add_seq_cst(&rsi_rt.kernel_parked, 1u);
    if (!rsi_cas_seq_cst(&self->futex, &free, COUNTED))
        rsi_fetch_sub_seq_cst(&rsi_rt.kernel_parked, 1u);
    while (!published(self))
        rsi_futex_wait(&self->futex, COUNTED, rsi_obs_all_wait(&quiet));
}

static int commit(struct rouse_thread *self, uint64_t ticket)
{
    uint64_t deadline = self->waiter.deadline_ns;
    if (deadline == ROUSE_FOREVER) {
        sleep_counted(self);
        return claimed_result(self);
    }
    while (!published(self)) {
        int error = rsi_futex_wait(&self->futex, 0, deadline);
        if (error == -ETIMEDOUT && rsi_park_claim(self, ticket, -ETIMEDOUT, NULL))
            return -ETIMEDOUT;
    }
    return claimed_result(self);
}

static void leave_cpu(struct rouse_thread *self)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_sleep(self);
    rsi_store_relaxed(&self->waiter.on_cpu, 0u);
}

static void enter_cpu(struct rouse_thread *self)
{
    rsi_store_relaxed(&self->waiter.on_cpu, RSI_CPU_RUNS);
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_entered(self);
}

int rsi_kernel_thread_commit(struct rouse_thread *self, uint64_t ticket)
{
    leave_cpu(self);
    int result = commit(self, ticket);
    enter_cpu(self);
    return result;
}

static long ppoll_once(struct rouse_thread *self, struct pollfd *fds, size_t count)
{
    struct timespec limit, *timeout = NULL;
    uint64_t mask = 0, now = rsi_now_ns(), deadline = self->waiter.deadline_ns;
    if (deadline != ROUSE_FOREVER) {
        limit = rsi_timespec(deadline > now ? deadline - now : 0);
        timeout = &limit;
    }
    rsi_syscall4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, KERNEL_SIGSET_BYTES);
    mask &= ~(UINT64_C(1) << (INTERRUPT_SIGNAL - 1));
    return rsi_syscall5(SYS_ppoll, fds, count, timeout, &mask, KERNEL_SIGSET_BYTES);
}

int rsi_park_commit_ppoll(struct rouse_thread *self, uint64_t ticket, struct pollfd *fds,
                          size_t count)
{
    int result = -EINTR;
    rsi_park_settle(self);
    if (rsi_park_cancel_self(self, ticket))
        return -ECANCELED;
    /* Before the first look at futex: see rsi_kernel_thread_publish. */
    rsi_store_seq_cst(&self->exec.in_ppoll, (uint8_t)1);
    leave_cpu(self);
    while (result == -EINTR && !published(self)) {
        long ready = ppoll_once(self, fds, count);
        result = ready > 0 ? 0 : ready == 0 ? -ETIMEDOUT : (int)ready;
    }
    rsi_store_seq_cst(&self->exec.in_ppoll, (uint8_t)0);
    /* ppoll has ended the wait, unless a waker was first. */
    if (result == -EINTR || !rsi_park_claim(self, ticket, result, NULL))
        result = claimed_result(self);
    enter_cpu(self);
    return result;
}
