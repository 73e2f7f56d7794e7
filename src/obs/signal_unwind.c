/* SPDX-License-Identifier: MIT */
/*
 * signal_unwind.c - sends a signal to one kernel thread, which unwinds its own stack in the handler and continues.
 *
 * The state word holds 4 * the number of the request + {idle, asked, answering, answered}. The handler accepts a
 * request by compare-and-swap. So a signal that arrives after the requester has given up, or on a new thread with
 * the id of one that has ended, finds no request and does nothing. For the same reason the memory that handlers
 * write is static.
 *
 * The signal must not stay blocked: rsi_obs_thread_begin unblocks it on all threads that rouse knows. It restarts
 * system calls where the kernel can; rouse's own calls handle EINTR.
 * Rejected: stopping all workers while their stacks are unwound from outside. It takes as long as the slowest
 * worker and gains little, since each backtrace is already consistent in itself. Only a worker whose threads run
 * for less time than an unwind takes is held, while one of them is examined.
 */
#include "obs/signal_unwind.h"

#include "obs/mapping.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ASK_SIGNAL (SIGRTMAX - 3)

#define ALIVE_NS 10000000u /* how often to check that the thread still exists */
/* so that no thread is held forever, whatever happens to the requester */
#define HOLD_MAX_NS 100000000u

enum { IDLE, ASKED, ANSWERING, ANSWERED };

static struct {
    uint32_t state; /* futex */
    uint32_t hold;  /* futex: not 0 while threads that have answered must wait */
    uint32_t hold_count;
    int32_t tid;
    const struct rouse_thread *whose;
    struct rsi_backtrace backtrace;
} question;

static bool contains(const struct rsi_span *span, uintptr_t address)
{
    return address >= span->low && address < span->high;
}

/* The calling kernel thread's signal stack, if it runs on it. */
static struct rsi_span signal_stack(uintptr_t sp)
{
    stack_t stack = { .ss_sp = NULL };
    rsi_syscall2(SYS_sigaltstack, NULL, &stack);
    struct rsi_span span = { (uintptr_t)stack.ss_sp, (uintptr_t)stack.ss_sp + stack.ss_size };
    return contains(&span, sp) ? span : (struct rsi_span){ 0, 0 };
}

/*
 * Whether ip is between the load of the new stack pointer and the jump to the code that belongs to it: ctx.h.
 */
static bool is_switching(uint64_t ip)
{
#if defined(__x86_64__)
    static const uint8_t jump[] = { 0xff, 0x62, 0x08 }; /* jmpq *8(%rdx) */
#else
    static const uint8_t jump[] = { 0x20, 0x01, 0x1f, 0xd6 }; /* br x9 */
#endif
    return memcmp((const void *)(uintptr_t)ip, jump, sizeof jump) == 0;
}

const struct rouse_thread *rsi_signal_unwind_self(const struct rsi_regs *regs,
                                                  struct rsi_backtrace *backtrace)
{
    const struct rouse_thread *t = rsi_exec_self()->current;
    uintptr_t sp = regs->value[RSI_REG_SP];
    struct rsi_span spans[2] = { { 0, 0 }, signal_stack(sp) };
    backtrace->count = 0;
    if (!t || is_switching(regs->ip))
        return NULL;
    bool is_user = t->waiter.origin == RSI_ORIGIN_USER;
    if (is_user)
        spans[0] = (struct rsi_span){ (uintptr_t)t->stack.low, (uintptr_t)t->stack.high };
    else if (!contains(&spans[1], sp))
        rsi_mapping_find(sp, &spans[0]);
    if (!contains(&spans[0], sp) && !contains(&spans[1], sp) && is_user)
        return NULL; /* t is not on its own stack yet */
    backtrace->unwound =
        rsi_unwind(regs, spans, backtrace->frames, RSI_FRAMES_MAX, &backtrace->count);
    return t;
}

uintptr_t rsi_signal_unwind_stack_end(struct rsi_writer *writer, uint64_t sp)
{
    const struct rouse_thread *t = rsi_exec_self()->current;
    if (!t)
        return 0;
    if (t->waiter.origin == RSI_ORIGIN_USER) {
        bool is_on = sp >= (uintptr_t)t->stack.low && sp < (uintptr_t)t->stack.high;
        return is_on ? (uintptr_t)t->stack.high : 0;
    }
    if (rsi_unlikely(sp < writer->stack_low || sp >= writer->stack_high)) {
        struct rsi_span span;
        rsi_mapping_find(sp, &span);
        writer->stack_low = span.low;
        writer->stack_high = span.high;
    }
    return writer->stack_high;
}

static void on_ask(int number, siginfo_t *info, void *context)
{
    uint32_t state = rsi_load_acquire(&question.state); /* pairs with rsi_signal_unwind */
    struct rsi_regs regs;
    (void)number;
    (void)info;
    if ((state & 3) != ASKED || rsi_load_relaxed(&question.tid) != (int32_t)rsi_gettid() ||
        !rsi_cas_acquire(&question.state, &state, (state & ~3u) + ANSWERING))
        return;
    rsi_regs_from_context(&regs, context);
    question.whose = rsi_signal_unwind_self(&regs, &question.backtrace);
    rsi_store_release(&question.state, (state & ~3u) + ANSWERED); /* pairs with await */
    rsi_futex_wake(&question.state, 1);
    uint32_t hold = rsi_load_acquire(&question.hold);
    uint64_t until_ns = hold ? rsi_now_ns() + HOLD_MAX_NS : 0;
    /* Pairs with rsi_signal_unwind_release. */
    while (hold && rsi_load_acquire(&question.hold) == hold &&
           rsi_futex_wait(&question.hold, hold, until_ns) != -ETIMEDOUT)
        ;
}

void rsi_signal_unwind_hold(void)
{
    /*
     * A new number, so that a thread still waiting for the previous hold to end does not take this one for it. The
     * reader of the next request sees it.
     */
    question.hold_count += 1 + (question.hold_count == UINT32_MAX);
    rsi_store_relaxed(&question.hold, question.hold_count);
}

void rsi_signal_unwind_release(void)
{
    rsi_store_release(&question.hold, 0u);
    rsi_futex_wake(&question.hold, INT_MAX);
}

static bool is_alive(int32_t tid)
{
    return rsi_syscall3(SYS_tgkill, getpid(), tid, 0) == 0;
}

/* False: the request was not accepted in time, and is withdrawn. */
static bool await(uint32_t asked, int32_t tid, uint64_t deadline_ns)
{
    for (;;) {
        uint32_t state = rsi_load_acquire(&question.state); /* pairs with on_ask */
        uint64_t now_ns = rsi_now_ns();
        if (state == asked - ASKED + ANSWERED)
            return true;
        /* A thread that has begun will answer as soon as it gets the CPU. */
        if (state == asked && (now_ns >= deadline_ns || !is_alive(tid)) &&
            rsi_cas_acquire(&question.state, &state, asked - ASKED))
            return false;
        rsi_futex_wait(&question.state, state, now_ns + ALIVE_NS);
    }
}

bool rsi_signal_unwind(int32_t tid, uint64_t limit_ns, const struct rouse_thread **whose,
                       struct rsi_backtrace *backtrace)
{
    uint32_t asked = (rsi_load_relaxed(&question.state) & ~3u) + 4 + ASKED;
    rsi_store_relaxed(&question.tid, tid);
    rsi_store_release(&question.state, asked);
    rsi_syscall3(SYS_tgkill, getpid(), tid, ASK_SIGNAL);
    if (!await(asked, tid, rsi_now_ns() + limit_ns))
        return false;
    *whose = question.whose;
    *backtrace = question.backtrace;
    return true;
}

void rsi_signal_unwind_setup(void)
{
    struct sigaction action = { .sa_sigaction = on_ask,
                                .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    sigemptyset(&action.sa_mask);
    sigaction(ASK_SIGNAL, &action, NULL);
}

/* Unblock the signal: the thread may have been started with all signals blocked. */
void rsi_obs_thread_begin(const sigset_t *blocked)
{
    sigset_t set;
    if (!sigismember(blocked, ASK_SIGNAL))
        return;
    sigemptyset(&set);
    sigaddset(&set, ASK_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void rsi_signal_unwind_child(void)
{
    question.state = question.hold = 0;
}
