/* SPDX-License-Identifier: MIT */
/*
 * clone_threads.c - see clone_threads.h.
 *
 * libc does not know these threads: it does not destroy their thread_local variables, and each ended thread leaves its
 * block behind. This is why programs use pthread_create.
 */
#define _GNU_SOURCE 1
#include "clone_threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u

/* The start of libc's thread block, which compilers know as well: the canary of stack protectors lies in it. */
struct block_head {
    void *self_0;
    void *vector;
    void *self;
    uint64_t unused[2];
    uint64_t stack_guard, pointer_guard;
};

static struct block_head *own_head(void)
{
    struct block_head *head;

    __asm__("movq %%fs:16, %0" : "=r"(head));
    return head;
}

static void *nothing(void *arg)
{
    return arg;
}

/*
 * malloc and stdio take no locks before the first pthread_create: until then libc takes the process to have one thread.
 * From then on they take locks for good, except in a child after fork.
 */
static bool libc_is_told(void)
{
    pthread_t thread;

    return !__libc_single_threaded ||
           (pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

/* libc makes blocks by this function, and keeps it to itself. */
static void *block_new(void)
{
    void *(*allocate)(void *);
    void *found = dlsym(RTLD_DEFAULT, "_dl_allocate_tls");

    if (!found || !libc_is_told())
        return NULL;
    memcpy(&allocate, &found, sizeof(found));
    struct block_head *block = allocate(NULL);
    if (block) {
        block->self_0 = block->self = block;
        block->stack_guard = own_head()->stack_guard;
        block->pointer_guard = own_head()->pointer_guard;
    }
    return block;
}

struct ct_thread *ct_self(void)
{
    return (struct ct_thread *)((uintptr_t)__builtin_frame_address(0) & ~(CT_BYTES - 1));
}

_Noreturn void ct_exit(void *result)
{
    ct_self()->result = result;
    /* Of this thread only: exit() of libc would end the process. The kernel then clears tid. */
    for (;;)
        syscall(SYS_exit, 0);
}

static int thread_main(void *value)
{
    struct ct_thread *self = value;

    ct_exit(self->fn(self->arg));
}

/* Memory that begins at a multiple of CT_BYTES: map twice as much, and unmap what lies before and after. */
static char *map_aligned(void)
{
    char *at = mmap(NULL, 2 * CT_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)at & (CT_BYTES - 1));
    if (before)
        munmap(at, before);
    munmap(at + before + CT_BYTES, CT_BYTES - before);
    return at + before;
}

int ct_create(struct ct_thread **out, enum ct_block block, void *(*fn)(void *), void *arg)
{
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    void *head = NULL;
    char *memory = map_aligned();

    if (!memory || mprotect(memory + PAGE, PAGE, PROT_NONE) != 0) {
        if (memory)
            munmap(memory, CT_BYTES);
        return -ENOMEM;
    }
    if (block == CT_OWN_BLOCK) {
        flags |= CLONE_SETTLS;
        head = block_new();
        if (!head) {
            munmap(memory, CT_BYTES);
            return -ENOTSUP;
        }
    }
    struct ct_thread *t = (struct ct_thread *)memory;
    t->fn = fn;
    t->arg = arg;
    int tid = clone(thread_main, memory + CT_BYTES, flags, t, &t->tid, head, &t->tid);
    if (tid < 0) {
        int error = errno;
        munmap(memory, CT_BYTES);
        return -error;
    }
    t->start_tid = tid;
    *out = t;
    return 0;
}

static void wait_while(_Atomic uint32_t *word, int operation, uint32_t value)
{
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

int ct_join(struct ct_thread *t, void **result)
{
    uint32_t tid;

    if (t == ct_self())
        return -EDEADLK;
    /* Acquire: pairs with the kernel's store, which comes after all that the thread did. */
    while ((tid = atomic_load_explicit(&t->tid, memory_order_acquire)) != 0)
        wait_while(&t->tid, FUTEX_WAIT,
                   tid); /* not the private kind: the kernel wakes a shared one */
    if (result)
        *result = t->result;
    munmap(t, CT_BYTES);
    return 0;
}

int ct_signal(struct ct_thread *t, int number)
{
    return syscall(SYS_tgkill, getpid(), t->start_tid, number) == 0 ? 0 : -errno;
}

void ct_spin_lock(struct ct_spin *s)
{
    /* Acquire: pairs with the release in unlock. */
    while (atomic_exchange_explicit(&s->held, 1, memory_order_acquire) != 0)
        while (atomic_load_explicit(&s->held, memory_order_relaxed) != 0)
            __builtin_ia32_pause();
}

void ct_spin_unlock(struct ct_spin *s)
{
    atomic_store_explicit(&s->held, 0, memory_order_release);
}

void ct_mutex_lock(struct ct_mutex *m)
{
    uint32_t seen = 0;

    /* Acquire: pairs with the release in unlock. */
    if (atomic_compare_exchange_strong_explicit(&m->state, &seen, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return;
    while (atomic_exchange_explicit(&m->state, 2, memory_order_acquire) != 0)
        wait_while(&m->state, FUTEX_WAIT_PRIVATE, 2);
}

void ct_mutex_unlock(struct ct_mutex *m)
{
    if (atomic_exchange_explicit(&m->state, 0, memory_order_release) == 2)
        wait_while(&m->state, FUTEX_WAKE_PRIVATE, 1);
}
