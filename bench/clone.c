/* SPDX-License-Identifier: MIT */
/*
 * clone.c - see clone.h.
 *
 * Built without stack protector: its canary lies in the thread-local block that these threads share
 * with their parent. Calls to memset or memcpy that the compiler inserts are harmless, because they do not
 * use that block.
 */
#include "clone.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>

#include "raw.h"

#define GUARD_BYTES 4096u

static const unsigned long clone_flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
                                         CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                                         CLONE_CHILD_CLEARTID;

long bench_clone_raw(unsigned long flags, void *stack, _Atomic uint32_t *parent_tid,
                     _Atomic uint32_t *child_tid);
_Noreturn void bench_clone_entry(struct clone_thread *t);

/* The child starts on the new stack, whose lowest word is its clone_thread. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl bench_clone_raw\n"
        ".hidden bench_clone_raw\n"
        ".type bench_clone_raw, @function\n"
        "bench_clone_raw:\n"
        "    mov %rcx, %r10\n"
        "    xor %r8d, %r8d\n"
        "    mov $56, %eax\n"
        "    syscall\n"
        "    test %rax, %rax\n"
        "    jz 1f\n"
        "    ret\n"
        "1:  xor %ebp, %ebp\n"
        "    mov (%rsp), %rdi\n"
        "    call bench_clone_entry\n"
        "    ud2\n"
        ".size bench_clone_raw, . - bench_clone_raw\n");
#else
__asm__(".text\n"
        ".globl bench_clone_raw\n"
        ".hidden bench_clone_raw\n"
        ".type bench_clone_raw, @function\n"
        "bench_clone_raw:\n"
        "    mov x4, x3\n"
        "    mov x3, xzr\n"
        "    mov x8, #220\n"
        "    svc #0\n"
        "    cbz x0, 1f\n"
        "    ret\n"
        "1:  mov x29, xzr\n"
        "    mov x30, xzr\n"
        "    ldr x0, [sp]\n"
        "    bl bench_clone_entry\n"
        "    brk #0\n"
        ".size bench_clone_raw, . - bench_clone_raw\n");
#endif

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return raw6(SYS_futex, (long)word, operation, value, 0, 0, 0);
}

__attribute__((visibility("hidden"))) _Noreturn void bench_clone_entry(struct clone_thread *t)
{
    t->fn(t->arg);
    for (;;)
        raw6(SYS_exit, 0, 0, 0, 0, 0, 0);
}

static void unmap(void *mapping, size_t bytes)
{
    raw6(SYS_munmap, (long)mapping, (long)bytes, 0, 0, 0, 0);
}

int clone_thread_create(struct clone_thread **out, void *(*fn)(void *), void *arg,
                        size_t stack_bytes)
{
    size_t bytes = stack_bytes + GUARD_BYTES;
    long mapping = raw6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapping < 0 && mapping > -4096)
        return -ENOMEM;
    if (raw6(SYS_mprotect, mapping, GUARD_BYTES, PROT_NONE, 0, 0, 0) != 0) {
        unmap((void *)mapping, bytes);
        return -ENOMEM;
    }
    uintptr_t top = (uintptr_t)mapping + bytes;
    struct clone_thread *t = (struct clone_thread *)((top - sizeof *t) & ~(uintptr_t)63);
    t->fn = fn;
    t->arg = arg;
    t->mapping = (void *)mapping;
    t->mapping_bytes = bytes;
    void **stack = (void **)((char *)t - 16);
    stack[0] = t;
    long tid = bench_clone_raw(clone_flags, stack, &t->tid, &t->tid);
    if (tid < 0) {
        unmap((void *)mapping, bytes);
        return (int)tid;
    }
    *out = t;
    return 0;
}

void clone_thread_join(struct clone_thread *t)
{
    uint32_t tid;
    /* The kernel wakes the word as a shared futex, so the private kind would sleep for ever.
     * Acquire: pairs with the kernel's clearing of the word, which follows everything the thread did. */
    while ((tid = atomic_load_explicit(&t->tid, memory_order_acquire)) != 0)
        futex(&t->tid, FUTEX_WAIT, tid);
    unmap(t->mapping, t->mapping_bytes);
}

void clone_thread_yield(void)
{
    raw6(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

void clone_spin_lock(struct clone_spin *s)
{
    /* Acquire: pairs with the release in unlock. */
    while (atomic_exchange_explicit(&s->held, 1, memory_order_acquire) != 0) {
        while (atomic_load_explicit(&s->held, memory_order_relaxed) != 0) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            __asm__ volatile("yield");
#endif
        }
    }
}

void clone_spin_unlock(struct clone_spin *s)
{
    atomic_store_explicit(&s->held, 0, memory_order_release); /* pairs with lock's exchange */
}

void clone_mutex_lock(struct clone_mutex *m)
{
    uint32_t state = 0;
    /* Acquire here and below: pairs with the release in unlock. */
    if (atomic_compare_exchange_strong_explicit(&m->state, &state, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return;
    if (state != 2)
        state = atomic_exchange_explicit(&m->state, 2, memory_order_acquire);
    while (state != 0) {
        futex(&m->state, FUTEX_WAIT_PRIVATE, 2);
        state = atomic_exchange_explicit(&m->state, 2, memory_order_acquire);
    }
}

void clone_mutex_unlock(struct clone_mutex *m)
{
    /* Release: pairs with the acquire in lock. */
    if (atomic_exchange_explicit(&m->state, 0, memory_order_release) == 2)
        futex(&m->state, FUTEX_WAKE_PRIVATE, 1);
}

/*
 * Invariant: no thread sleeps while count > 0 unless another thread is about to wake it.
 *   wait: W1 waiting += 1;  W2 load count (by the kernel, in FUTEX_WAIT)
 *   post: P1 count += 1;    P2 load waiting
 * All four sequentially consistent, so W2 sees P1 or P2 sees W1.
 */
void clone_sem_wait(struct clone_sem *s)
{
    for (;;) {
        uint32_t count = atomic_load(&s->count);
        while (count > 0) {
            if (atomic_compare_exchange_weak(&s->count, &count, count - 1))
                return;
        }
        atomic_fetch_add(&s->waiting, 1);
        futex(&s->count, FUTEX_WAIT_PRIVATE, 0);
        atomic_fetch_sub(&s->waiting, 1);
    }
}

void clone_sem_post(struct clone_sem *s)
{
    atomic_fetch_add(&s->count, 1);
    if (atomic_load(&s->waiting) != 0)
        futex(&s->count, FUTEX_WAKE_PRIVATE, 1);
}
