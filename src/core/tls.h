/* SPDX-License-Identifier: MIT */
/*
 * tls.h - user threads with thread-local storage of their own: tls.c, tls_setxid.c and tls_libc.c.
 */
#ifndef RSI_CORE_TLS_H
#define RSI_CORE_TLS_H

#include "core/worker.h"

#include <pthread.h>

#define RSI_SIGSETXID 33 /* libc's; setuid and its like send it to every kernel thread */
#define RSI_KERNEL_SIGSET_BYTES 8

/* The thread block that a user thread uses, and the kernel thread that lends it: its lender. */
struct rsi_tls {
    uintptr_t pointer;         /* the block; valid once is_ready */
    struct rsi_exec **exec_at; /* rsi_tls_exec in that block */
    uint32_t is_ready;         /* futex: 1 once the lender no longer uses its block */
    uint32_t is_over;          /* futex: 1 once the lender may use it again */
    bool is_entered; /* the thread uses the block; only it and who switches to it read this */
    bool is_orphan;  /* a forked child's: the lender does not exist */
    unsigned rounds; /* of the lender's pthread key destructors */
    struct rouse_thread *ender;
    uint64_t ticket;
    pthread_t lender;
    unsigned stack_class; /* of the lender */
    struct rsi_stack stack;
    struct rsi_tls *next; /* in the list of ended lenders */
};

/* The calling kernel thread's thread pointer: the address of its libc thread block. */
RSI_INLINE uintptr_t rsi_thread_pointer(void)
{
    uintptr_t pointer;
#if defined(__x86_64__)
    __asm__ volatile("movq %%fs:0, %0" : "=r"(pointer) : : "memory");
#else
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer) : : "memory");
#endif
    return pointer;
}

RSI_INLINE void rsi_thread_pointer_set(uintptr_t pointer)
{
#if defined(__x86_64__)
    __asm__ volatile("wrfsbase %0" : : "r"(pointer) : "memory");
#else
    __asm__ volatile("msr tpidr_el0, %0" : : "r"(pointer) : "memory");
#endif
}

/* Whether user threads can have storage of their own in this process. */
bool rsi_tls_is_supported(void);

/*
 * Start a lender with a stack of at least stack_bytes, on which destructors run. Returns 0 and *out, -ENOTSUP
 * (rsi_tls_is_supported, or the program has made attributes for priority-inheriting mutexes), -ENOMEM, or -EAGAIN (too
 * many kernel threads).
 */
int rsi_tls_new(struct rsi_tls **out, size_t stack_bytes);

/* Give back the block of a thread that never ran. */
void rsi_tls_drop(struct rsi_tls *tls);

/* self runs for the first time: use its block from now on. */
void rsi_tls_begin(struct rouse_thread *self);

/* self ends: run its thread_local destructors and wait until its block is no longer in use. */
void rsi_tls_end(struct rouse_thread *self, const void *site);

/* A switch by a thread that uses a block of its own. */
void rsi_tls_switch(struct rsi_worker *w, struct rouse_thread *self, struct rsi_ctx *ctx,
                    uintptr_t bits);

/*
 * Around calls of libc that must run on the block of the kernel thread itself. begin returns the calling thread if it
 * uses a block of its own, and otherwise NULL. end passes errno on. In between, the thread must not switch.
 */
struct rouse_thread *rsi_tls_native_begin(void);
void rsi_tls_native_end(const struct rouse_thread *self);

void rsi_tls_setup(void);

/* tls_setxid.c: once libc has its handler. */
void rsi_tls_setxid_wrap(void);
void rsi_tls_setxid_child(void);

/*
 * Priority-inheriting mutexes and threads with storage of their own exclude each other in a process: the first use of
 * one claims it. Returns false, and says so once, if the other was first.
 */
enum rsi_mutexes { RSI_MUTEXES_ANY, RSI_MUTEXES_WITH_OWN_TLS, RSI_MUTEXES_WITH_PRIORITY };
bool rsi_tls_mutexes_claim(enum rsi_mutexes use);

#endif
