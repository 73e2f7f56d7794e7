/* SPDX-License-Identifier: MIT */
/*
 * thread.h - a thread's control block: its lifecycle (thread.c), threads that are kernel threads
 * (kernel_thread.c), and thread-local values (key.c).
 */
#ifndef RSI_CORE_THREAD_H
#define RSI_CORE_THREAD_H

#include "core/block.h"
#include "core/exec.h"
#include "ctx/stack.h"

struct rsi_value;
struct rsi_tls;

/* Any thread may read it; the header of core.h says who writes it. */
enum rsi_life { RSI_LIFE_FREE, RSI_LIFE_LIVE, RSI_LIFE_ENDED };

/* join_word: one of these, or a joiner's address with ENDING or ENDED in its low bits (thread.c). */
#define RSI_JOIN_NONE ((uintptr_t)0)
#define RSI_JOIN_DETACHED ((uintptr_t)1)
#define RSI_JOIN_ENDING ((uintptr_t)2)
#define RSI_JOIN_ENDED ((uintptr_t)3)

#define RSI_LIVE_MAX 8000000 /* threads at once; bounds every timer heap */

struct rouse_thread {
    struct rsi_waiter waiter; /* must be first; a wait touches only these two cache lines */

    struct rouse_thread *queue_link; /* in a run queue, an inbox or a list of free blocks */
    uintptr_t join_word;
    uint64_t id;
    union {
        struct {                    /* user threads */
            uint64_t timer_word;    /* names its timer entry, if it has one: timer.c */
            struct rsi_stack stack; /* NULLs before it first runs and after its end */
            struct rsi_tls *tls;    /* its own thread-local storage, or NULL: tls.c */
        };
        struct { /* kernel and foreign threads */
            struct rsi_exec exec;
            uint32_t futex; /* kernel_thread.c */
            int32_t tid;
        };
    };

    union {
        void *(*fn)(void *);      /* until it runs */
        struct rsi_value *locals; /* from then on: its values by key (key.c) */
    };
    void *arg; /* after its end: the result */
};
_Static_assert(sizeof(struct rouse_thread) <= RSI_BLOCK_BYTES, "block too small");

/*
 * The part of a control block that few threads use. It is stored apart, so that the others use no memory for it.
 * All zero unless has_cold.
 */
struct rsi_cold {
    _Alignas(RSI_COLD_BYTES) char name[ROUSE_NAME_BYTES];
};
_Static_assert(sizeof(struct rsi_cold) == RSI_COLD_BYTES, "a cold part is a line");

/* For reading. */
RSI_INLINE struct rsi_cold *rsi_cold_at(const struct rouse_thread *t)
{
    uintptr_t group = (uintptr_t)t & ~(uintptr_t)(RSI_GROUP_BYTES - 1);
    uintptr_t slot = ((uintptr_t)t - group) / RSI_BLOCK_BYTES;
    return (struct rsi_cold *)(group + RSI_GROUP_BLOCKS * RSI_BLOCK_BYTES + slot * RSI_COLD_BYTES);
}

/* For writing, when t gets a name. */
RSI_INLINE struct rsi_cold *rsi_cold_of(struct rouse_thread *t)
{
    if (!rsi_load_relaxed(&t->waiter.has_cold))
        rsi_store_relaxed(&t->waiter.has_cold, true);
    return rsi_cold_at(t);
}

/* A new thread begins in this block: reset the cold part to zeros if an earlier thread wrote to it. */
void rsi_cold_clear_slow(struct rouse_thread *t);

RSI_INLINE void rsi_cold_clear(struct rouse_thread *t)
{
    if (rsi_unlikely(t->waiter.has_cold))
        rsi_cold_clear_slow(t);
}

/* thread.c */
void rsi_thread_finish(struct rouse_thread *self, void *result);
struct rsi_worker *rsi_thread_left(struct rsi_worker *w, struct rouse_thread *t);
void rsi_thread_bind(struct rsi_worker *w, struct rouse_thread *t);
void rsi_thread_stacks_give(struct rsi_worker *w);
void rsi_thread_leave(struct rouse_thread *self);

/* kernel_thread.c */
int rsi_kernel_thread_create(struct rouse_thread *t, size_t stack_bytes);
void rsi_kernel_thread_publish(struct rouse_thread *t);
/* self has ended except for its pthread, and its block is freed. */
void rsi_kernel_thread_end(struct rouse_thread *self);
int rsi_kernel_thread_commit(struct rouse_thread *self, uint64_t ticket);
void rsi_kernel_thread_setup(void);
/* Returns 0 with self->current set, -EAGAIN or -ENOMEM. */
int rsi_foreign_try_adopt(void);
void rsi_foreign_forget(void);
/*
 * The program must not end the calling kernel thread: if it does, end the process with a message that names
 * what. NULL: the thread is about to end properly.
 */
void rsi_kernel_thread_guard(const char *what);

/* key.c */
void rsi_keys_fork_prepare(void);
void rsi_keys_fork_parent(void);
void rsi_keys_run_destructors(struct rouse_thread *self);

#endif
