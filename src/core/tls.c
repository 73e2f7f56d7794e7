/* SPDX-License-Identifier: MIT */
/*
 * tls.c - user threads with thread-local storage of their own.
 *
 * Problem: errno, thread_local, malloc's cache, pthread_self() and the owner of a recursive pthread mutex lie in or
 * belong to the libc thread block that the thread pointer names. User threads share their worker's.
 *
 * Protocol: a thread with own storage borrows the block of a real pthread, its lender, which does nothing meanwhile.
 *   create   The creator starts the lender. The lender blocks all signals but SIGSETXID, unregisters its rseq area,
 *            stores is_ready and sleeps in a futex system call. It calls no libc from then on.
 *   begin    The thread waits for is_ready, writes the worker's exec into the block's rsi_tls_exec, and moves the
 *            thread pointer to the block.
 *   switch   Before it leaves, the thread moves the thread pointer to the block of the thread that it leaves for, if
 *            that one uses a block of its own, or else to the worker's. A thread that others switch to, which know
 *            nothing of blocks, moves the pointer after it has resumed, possibly on another worker. So workers and all
 *            other threads never see a borrowed block, and a switch between two such threads moves the pointer once.
 *   end      The thread moves the thread pointer back for the last time, wakes its lender and parks. The lender returns
 *            from its start function: libc runs the destructors of thread_local variables and of pthread keys there.
 *            In the last round of these, the lender wakes the thread, which then ends.
 *
 * Invariants: 1. A borrowed block is used by one kernel thread at a time. is_ready and is_over, each a release with an
 * acquire on the other side, hand it over. 2. rsi_tls_exec in the block that the thread pointer names is always that
 * of the kernel thread that runs, since a signal handler may read it at any time. It is written before the pointer moves.
 * 3. While such a thread runs, w->eh_globals points to words that are not zero. The check for exceptions in
 * flight then sends every switch of it here, and switches of other threads need no check of their own.
 *
 * Lenders' stacks are ours. libc would keep those of its own for later threads: in a forked child even the one whose
 * block the forking thread still uses. A stack is given back once libc can join its lender, which it can when the kernel
 * no longer knows the thread.
 *
 * Rejected: a block by _dl_allocate_tls. It is private to glibc, and it leaves struct pthread without tid, robust list
 * and its place in libc's list of threads, which dlopen and setuid walk. Rejected: reusing a lender for a second thread;
 * the values of its thread_local variables would leak.
 */
#include "core/tls.h"

#include "core/switch.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define HAS_RSEQ 1
#endif

#define HWCAP2_FSGSBASE_BIT 2ul
#define LENDER_STACK_BYTES ((size_t)64 * 1024)
#define STATIC_TLS_MOST (RSI_STACK_BYTES_MAX / 4)
#define READY_WAIT_NS 50000
#define REAP_MOST 2 /* ended lenders that a create or an end looks at */

/* w->eh_globals points here while such a thread runs; read only. */
static uint64_t sentinel[2] = { 1, 1 };
static pthread_key_t end_key;

/* Lenders that have ended or are about to; first in, first out. */
static struct {
    uint32_t guard;
    struct rsi_tls *first, **last;
} ended = { 0, NULL, &ended.first };

RSI_INLINE void enter(struct rsi_worker *w, const struct rsi_tls *tls)
{
    *tls->exec_at = &w->exec;
    w->eh_globals = sentinel;
    rsi_thread_pointer_set(tls->pointer);
}

RSI_INLINE void leave(struct rsi_worker *w)
{
    rsi_thread_pointer_set(w->thread_pointer);
    w->eh_globals = w->eh_native;
}

/* A sanitizer keeps its own state of a kernel thread in the block. The program may have one though this library has not. */
extern __attribute__((weak)) void __asan_init(void), __hwasan_init(void), __msan_init(void),
    __tsan_init(void);

bool rsi_tls_is_supported(void)
{
    if (__asan_init || __hwasan_init || __msan_init || __tsan_init)
        return false;
#ifndef __GLIBC__
    return false;
#elif defined(__x86_64__)
    return (getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE_BIT) != 0;
#else
    return true;
#endif
}

bool rsi_tls_mutexes_claim(enum rsi_mutexes use)
{
    static uint32_t claimed, is_reported;
    uint32_t seen = RSI_MUTEXES_ANY;
    if (rsi_cas_relaxed(&claimed, &seen, (uint32_t)use) || seen == (uint32_t)use)
        return true;
    if (rsi_fetch_add_relaxed(&is_reported, 1u) == 0)
        rsi_report(
            "own_tls and PTHREAD_PRIO_INHERIT or PTHREAD_PRIO_PROTECT exclude each other in a process: the "
            "kernel would give the priority to the wrong kernel thread. %s",
            use == RSI_MUTEXES_WITH_OWN_TLS ? "rouse_thread_create returns -ENOTSUP"
                                            : "pthread_mutexattr_setprotocol returns ENOTSUP");
    return false;
}

static void ended_push(struct rsi_tls *tls)
{
    tls->next = NULL;
    rsi_guard_lock(&ended.guard);
    *ended.last = tls;
    ended.last = &tls->next;
    rsi_guard_unlock(&ended.guard);
}

static struct rsi_tls *ended_pop(void)
{
    rsi_guard_lock(&ended.guard);
    struct rsi_tls *tls = ended.first;
    if (tls)
        ended.first = tls->next;
    if (!ended.first)
        ended.last = &ended.first;
    rsi_guard_unlock(&ended.guard);
    return tls;
}

static void stack_free(struct rsi_tls *tls)
{
    rsi_stack_give(tls->stack_class, tls->stack);
    rsi_stack_unreserve(tls->stack_class, 1);
}

static void reap(void)
{
    for (unsigned i = 0; i < REAP_MOST; i++) {
        struct rsi_tls *tls = ended_pop();
        if (!tls)
            return;
        if (pthread_tryjoin_np(tls->lender, NULL) != 0) {
            ended_push(tls);
            continue;
        }
        stack_free(tls);
        free(tls);
    }
}

/* The last use of the lender's block for its thread: in the last round of destructors, those of the program have run. */
static void lender_end(void *value)
{
    struct rsi_tls *tls = value;
    if (++tls->rounds < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(end_key, tls) == 0)
        return;
    struct rouse_thread *ender = tls->ender;
    /* Nothing else can claim this wait: it has no deadline and cannot be cancelled. */
    if (ender && rsi_park_claim(ender, tls->ticket, 0, NULL))
        rsi_park_publish(ender);
}

/*
 * The kernel writes the CPU that the lender runs on into its rseq area, and the thread would read it there. Without the
 * area, sched_getcpu asks the kernel.
 */
static void rseq_leave(void)
{
#ifdef HAS_RSEQ
    enum { REGISTERED_BYTES = 32 };
    uintptr_t area = rsi_thread_pointer() + (uintptr_t)__rseq_offset;
    /* libc registers none for a thread that was created by one without. */
    bool is_registered = __rseq_size != 0 && (int32_t)((const struct rseq *)area)->cpu_id >= 0;
    if (is_registered &&
        rsi_syscall4(SYS_rseq, area, REGISTERED_BYTES, RSEQ_FLAG_UNREGISTER, RSEQ_SIG) != 0)
        rsi_fatal("a thread with own_tls: the kernel does not unregister libc's rseq area");
#endif
}

static void *lender_main(void *value)
{
    struct rsi_tls *tls = value;
    uint64_t mask = ~(UINT64_C(1) << (RSI_SIGSETXID - 1));
    rsi_syscall4(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, RSI_KERNEL_SIGSET_BYTES);
    tls->pointer = rsi_thread_pointer();
    tls->exec_at = &rsi_tls_exec;
    rseq_leave();
    rsi_kernel_thread_guard("a thread with own_tls: return, or call rouse_thread_exit");
    rsi_store_release(&tls->is_ready, 1u); /* pairs with rsi_tls_begin */
    rsi_futex_wake(&tls->is_ready, 1);
    while (!rsi_load_acquire(&tls->is_over)) /* pairs with over */
        rsi_futex_wait(&tls->is_over, 0, ROUSE_FOREVER);
    rsi_tls_exec = &rsi_exec_none;
    rsi_kernel_thread_guard(NULL);
    if (pthread_setspecific(end_key, tls) != 0)
        rsi_fatal("no memory to end a thread with own_tls");
    return NULL;
}

/* All signals are blocked meanwhile, because none may arrive on the lender before it blocks them itself. */
static int lender_start(struct rsi_tls *tls)
{
    pthread_attr_t attr;
    sigset_t all, old;
    if (pthread_attr_init(&attr) != 0)
        return -ENOMEM;
    int error =
        pthread_attr_setstack(&attr, tls->stack.low, (size_t)(tls->stack.high - tls->stack.low));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (!error)
        error = pthread_create(&tls->lender, &attr, lender_main, tls);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return -error;
}

/* Take a stack of that class, and start the lender on it. */
static int lender_try(struct rsi_tls *tls, size_t stack_bytes)
{
    tls->stack_class = rsi_stack_class(stack_bytes);
    if (!rsi_stack_reserve(tls->stack_class, 1))
        return -ENOMEM;
    tls->stack = rsi_stack_take(tls->stack_class);
    int error = lender_start(tls);
    if (error)
        stack_free(tls);
    return error;
}

/*
 * libc puts the block and the thread_local variables of all libraries loaded so far on the stack. It does not tell how
 * much that is, but refuses a stack that is too small for it.
 */
int rsi_tls_new(struct rsi_tls **out, size_t stack_bytes)
{
    static size_t needed = LENDER_STACK_BYTES;
    if (!rsi_tls_is_supported() || !rsi_tls_mutexes_claim(RSI_MUTEXES_WITH_OWN_TLS))
        return -ENOTSUP;
    reap();
    struct rsi_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return -ENOMEM;
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN) + stack_bytes;
    size_t more = rsi_load_relaxed(&needed);
    least = least < RSI_STACK_BYTES_MAX / 2 ? least : RSI_STACK_BYTES_MAX / 2;
    int error = lender_try(tls, least + more);
    while (error == -EINVAL && more < STATIC_TLS_MOST) {
        more *= 2;
        error = lender_try(tls, least + more);
    }
    rsi_store_relaxed(&needed, more);
    if (error)
        free(tls);
    else
        *out = tls;
    rsi_tls_setxid_wrap();
    return error;
}

static void over(struct rsi_tls *tls)
{
    rsi_store_release(&tls->is_over, 1u); /* pairs with lender_main */
    rsi_futex_wake(&tls->is_over, 1);
}

void rsi_tls_drop(struct rsi_tls *tls)
{
    over(tls);
    ended_push(tls);
}

/* The lender is on its way. If it takes long, other threads of the worker have their turns. */
void rsi_tls_begin(struct rouse_thread *self)
{
    struct rsi_tls *tls = self->tls;
    while (!rsi_load_acquire(&tls->is_ready)) { /* pairs with lender_main */
        rsi_futex_wait(&tls->is_ready, 0, rsi_now_ns() + READY_WAIT_NS);
        if (!rsi_load_relaxed(&tls->is_ready))
            rouse_thread_yield();
    }
    tls->is_entered = true;
    enter(rsi_exec_self()->worker, tls);
}

RSI_NOINLINE void rsi_tls_end(struct rouse_thread *self, const void *site)
{
    struct rsi_tls *tls = self->tls;
    leave(rsi_exec_self()->worker);
    self->tls = NULL;
    if (tls->is_orphan)
        return;
    rsi_fetch_add_seq_cst(&rsi_rt.helpers_busy, 1u);
    tls->ender = self;
    tls->ticket = rsi_park_prepare(self, ROUSE_WAIT_JOIN, tls, site, ROUSE_FOREVER, 0);
    over(tls);
    rsi_park_commit(self, tls->ticket);
    rsi_fetch_sub_seq_cst(&rsi_rt.helpers_busy, 1u);
    ended_push(tls);
    reap();
}

/*
 * The block that the thread of ctx uses, or NULL. on_cpu of that thread was acquired, so no other kernel thread uses the
 * block any more.
 */
RSI_INLINE const struct rsi_tls *next_tls(const struct rsi_worker *w, struct rsi_ctx *ctx)
{
    if (ctx == &w->idle.ctx)
        return NULL;
    struct rsi_waiter *waiter = rsi_container_of(ctx, struct rsi_waiter, ctx);
    const struct rsi_tls *tls = ((struct rouse_thread *)waiter)->tls;
    return tls && tls->is_entered ? tls : NULL;
}

RSI_NOINLINE void rsi_tls_switch(struct rsi_worker *w, struct rouse_thread *self,
                                 struct rsi_ctx *ctx, uintptr_t bits)
{
    const struct rsi_tls *tls = next_tls(w, ctx);
    if (tls)
        enter(w, tls);
    else
        leave(w);
    rsi_switch_step(w, self, ctx, bits);
    if (rsi_thread_pointer() != self->tls->pointer)
        enter(rsi_exec_self()->worker, self->tls);
}

/* The calling thread, if it uses a block of its own. */
static struct rouse_thread *borrower(void)
{
    struct rouse_thread *self = rsi_exec_self()->current;
    bool is_user = self && self->waiter.origin == RSI_ORIGIN_USER;
    return is_user && self->tls && self->tls->is_entered ? self : NULL;
}

struct rouse_thread *rsi_tls_native_begin(void)
{
    struct rouse_thread *self = borrower();
    if (self)
        leave(rsi_exec_self()->worker);
    return self;
}

void rsi_tls_native_end(const struct rouse_thread *self)
{
    if (!self)
        return;
    int error = errno;
    enter(rsi_exec_self()->worker, self->tls);
    errno = error;
}

/*
 * fork is done on the block of the kernel thread itself. These handlers are registered before any others, so that those
 * of the program run on the block of the thread that forks.
 */
static void fork_prepare(void)
{
    (void)rsi_tls_native_begin();
    rsi_guard_lock(&ended.guard);
}

static void fork_parent(void)
{
    rsi_guard_unlock(&ended.guard);
    rsi_tls_native_end(borrower());
}

/* The thread that forked, if it is one of these, keeps its block. No lender exists in the child. */
static void fork_child(void)
{
    struct rouse_thread *self = borrower();
    ended.guard = 0;
    ended.first = NULL;
    ended.last = &ended.first;
    rsi_tls_setxid_child();
    if (self)
        self->tls->is_orphan = true;
    rsi_tls_native_end(self);
}

/* As early as possible: see fork_prepare. */
__attribute__((constructor)) static void fork_setup(void)
{
    if (pthread_atfork(fork_prepare, fork_parent, fork_child) != 0)
        rsi_fatal("no memory for the fork handlers");
}

void rsi_tls_setup(void)
{
    if (pthread_key_create(&end_key, lender_end) != 0)
        rsi_fatal("no pthread key is left for threads with own_tls");
}
