/* SPDX-License-Identifier: MIT */
/*
 * futex.c - syscall(SYS_futex, ...): locks, conditions and parking that a program or its libraries have built
 * themselves.
 *
 * The hook on syscall also sees calls that confine the program (process/seccomp.c) or lock its memory
 * (process/mlock.c). Every other call goes to libc's syscall by a jump of a few instructions with all registers
 * unchanged, since the called code may look at the caller's stack, or return twice. Rejected: a C function of seven
 * arguments, because only the compiler decides whether its last call is a jump.
 *
 * Only the program knows the meaning of a word. We record which thread waited for it, where and until when, and which
 * thread woke it. record/waiters.c infers which of several waiters was woken, and the kernel's result says how many
 * were. A wait whose word changed before the thread slept has lost a race. It is unknown whether a woken thread found
 * what it waited for.
 */
#include "process/real.h"
#include "record/wait.h"
#include "record/waiters.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

_Static_assert(offsetof(struct rpi_real, syscall) == 0, "the jump takes it from there");

/* clang-format off */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl syscall\n"
        ".type syscall, %function\n"
        ".hidden rpi_futex\n"
        ".hidden rpi_syscall_seccomp\n"
        ".hidden rpi_syscall_prctl\n"
        ".hidden rpi_syscall_mlockall\n"
        ".hidden rpi_real\n"
        "syscall:\n"
        ".cfi_startproc\n"
#if defined(__x86_64__)
        "endbr64\n"
        "cmpq $" NUMBER(__NR_futex) ", %rdi\n"
        "je rpi_futex\n"
        "cmpq $" NUMBER(__NR_seccomp) ", %rdi\n"
        "je rpi_syscall_seccomp\n"
        "cmpq $" NUMBER(__NR_prctl) ", %rdi\n"
        "je rpi_syscall_prctl\n"
        "cmpq $" NUMBER(__NR_mlockall) ", %rdi\n"
        "je rpi_syscall_mlockall\n"
        "jmp *rpi_real(%rip)\n"
#else
        "hint #34\n" /* bti c */
        "cmp x0, #" NUMBER(__NR_futex) "\n"
        "b.eq rpi_futex\n"
        "cmp x0, #" NUMBER(__NR_seccomp) "\n"
        "b.eq rpi_syscall_seccomp\n"
        "cmp x0, #" NUMBER(__NR_prctl) "\n"
        "b.eq rpi_syscall_prctl\n"
        "cmp x0, #" NUMBER(__NR_mlockall) "\n"
        "b.eq rpi_syscall_mlockall\n"
        "adrp x16, rpi_real\n"
        "ldr x16, [x16, #:lo12:rpi_real]\n"
        "br x16\n"
#endif
        ".cfi_endproc\n"
        ".size syscall, . - syscall\n");
/* clang-format on */

/* Named as in futex(2). The time-out of a wait is the second count of a requeue. */
struct asked {
    uint32_t *word;
    int op;
    uint32_t value;
    uintptr_t fourth;
    uint32_t *other;
    uint32_t last;
};

static long call_real(const struct asked *a)
{
    return rpi_real.syscall(SYS_futex, a->word, a->op, a->value, a->fourth, a->other, a->last);
}

static long wait_for(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    if (!rpi_wait_begin(&wait, RSI_STORE_WAIT_FUTEX, a->word, site))
        return call_real(a);
    long result = call_real(a);
    int error = result < 0 ? errno : 0;
    rpi_wait_end(&wait, error == EAGAIN ? ROUSE_VERDICT_LOST_RACE : rpi_wait_verdict(error), NULL);
    return result;
}

/* A call that wakes: when it began, and how many waiters it has marked. */
struct waking {
    uint64_t since;
    size_t marked;
};

/* Mark up to most waiters of word before the call, since they may return before we do. */
static struct waking mark(const uint32_t *word, uint32_t most, const void *site)
{
    struct rpi_thread *self = rpi_self;
    struct waking waking = { rsi_tsc(), 0 };
    if (!rpi_waiters_has(word) || (!self && !(self = rpi_thread_enter())) ||
        !rpi_thread_begin(self))
        return waking;
    if (most >= INT_MAX)
        waking.marked = rpi_waiters_wake(self, word, RPI_WAKES_ALL, site);
    else
        while (waking.marked < most && rpi_waiters_wake(self, word, RPI_WAKES_ONE, site) > 0)
            waking.marked++;
    self->is_busy = false;
    return waking;
}

/* The kernel has woken fewer than were marked: the others did not sleep yet, or no longer. */
static void unmark(const uint32_t *word, const struct waking *waking, size_t woken)
{
    struct rpi_thread *self = rpi_self;
    if (waking->marked <= woken || !self || !rpi_thread_begin(self))
        return;
    rpi_waiters_unmark(self, word, waking->since, waking->marked - woken);
    self->is_busy = false;
}

/* Up to most waiters of one word wait for another from now on. */
static void move(const uint32_t *from, const uint32_t *to, size_t most)
{
    struct rpi_thread *self = rpi_self;
    if (!rpi_waiters_has(from) || (!self && !(self = rpi_thread_enter())) ||
        !rpi_thread_begin(self))
        return;
    rpi_waiters_move(from, to, most);
    self->is_busy = false;
}

/* Count a wake-up that woke several or none. most: how many it could have woken. */
static void count(size_t woken, uint32_t most)
{
    struct rpi_thread *self = rpi_self;
    if (woken == 1 || (!self && !(self = rpi_thread_enter())) || !rpi_thread_begin(self))
        return;
    struct rsi_store_writer *total = self->writer->shared;
    if (woken > 1)
        rsi_count(total->herds[rsi_log2(woken, RSI_STORE_HERDS - 1)], 1);
    else
        rsi_count(*(most > 1 ? &total->broadcasts_unheard : &total->signals_unheard), 1);
    self->is_busy = false;
}

static long wake(const struct asked *a, const void *site)
{
    uint32_t most = a->value ? a->value : 1; /* the kernel does so too */
    struct waking waking = mark(a->word, most, site);
    long result = call_real(a);
    unmark(a->word, &waking, result > 0 ? (size_t)result : 0);
    if (result >= 0)
        count((size_t)result, most);
    return result;
}

/* The kernel does not report whether a thread waited. */
static long unlock_pi(const struct asked *a, const void *site)
{
    struct waking waking = mark(a->word, 1, site);
    long result = call_real(a);
    unmark(a->word, &waking, result == 0);
    return result;
}

/* value threads are woken. Up to fourth of the others wait for the other word from now on. */
static long requeue(const struct asked *a, const void *site)
{
    struct waking waking = mark(a->word, a->value, site);
    long result = call_real(a);
    size_t all = result > 0 ? (size_t)result : 0, woken = all < a->value ? all : a->value;
    unmark(a->word, &waking, woken);
    move(a->word, a->other, all - woken);
    if (result >= 0 && a->value > 0)
        count(woken, a->value);
    return result;
}

/* Reached by a jump from syscall, and returns to syscall's caller. */
long rpi_futex(long number, uint32_t *word, int op, uint32_t value, uintptr_t fourth,
               uint32_t *other, uint32_t last);
RSI_NOINLINE long rpi_futex(long number, uint32_t *word, int op, uint32_t value, uintptr_t fourth,
                            uint32_t *other, uint32_t last)
{
    const struct asked a = { word, op, value, fourth, other, last };
    const void *site = RSI_CALLER();
    (void)number;
    switch (op & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_LOCK_PI:
    case FUTEX_LOCK_PI2: return wait_for(&a, site);
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET: return wake(&a, site);
    case FUTEX_UNLOCK_PI: return unlock_pi(&a, site);
    case FUTEX_REQUEUE:
    case FUTEX_CMP_REQUEUE:
    case FUTEX_CMP_REQUEUE_PI: return requeue(&a, site);
    default:
        /* No wait. FUTEX_WAKE_OP is not split, since its second wake-up is conditional. */
        return call_real(&a);
    }
}
