/* SPDX-License-Identifier: MIT */
/*
 * thread.c - threads from creation to release.
 *
 * join_word says who cares for the end:
 *   NONE -> a joiner's address (it waits)   NONE -> DETACHED   any -> ENDING -> ENDED (by the end itself)
 * A joiner that waits is woken by the thread itself, which stores ENDING, so that it can be the next to
 * run. It may reuse the block only when the stack is left: that is told, by ENDED, on the stack that
 * comes after. After ENDED, or after DETACHED was found and the block released, the block is not touched.
 * Who finds ENDING waits the few instructions for ENDED.
 */
#include "core/switch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef RSI_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define BLOCK_CACHE_MAX 512
#define LEAVING_SPINS 256

struct rouse_thread *rsi_block_alloc(struct rsi_worker *w, size_t stack_bytes)
{
    struct rouse_thread *t = NULL;
    if (w && stack_bytes == RSI_STACK_BYTES_DEFAULT && (t = w->block_cache) != NULL) {
        w->block_cache = t->queue_link;
        w->block_count--;
        return t;
    }
    struct rsi_stack stack = { 0 };
    bool is_fresh;
    t = rsi_stack_alloc(stack_bytes, &stack, &is_fresh);
    if (t && is_fresh) {
        t->stack = stack;
        t->stack_bytes = stack_bytes;
    }
    return t;
}

void rsi_block_free(struct rsi_worker *w, struct rouse_thread *t)
{
    rsi_store_relaxed(&t->waiter.life, RSI_LIFE_FREE);
    if (w && t->stack_bytes == RSI_STACK_BYTES_DEFAULT && w->block_count < BLOCK_CACHE_MAX) {
        t->queue_link = w->block_cache;
        w->block_cache = t;
        w->block_count++;
        return;
    }
    rsi_stack_free(t, t->stack_bytes);
}

static struct rsi_worker *worker_self(void)
{
    return rsi_exec_self()->worker;
}

/* What a block must be when its thread begins; the claim word and timer_word live on. */
static void block_reset(struct rouse_thread *t, struct rsi_worker *w)
{
    t->waiter.is_listed = false;
    t->waiter.cancel = 0;
    t->waiter.record = (struct rouse_wait_record){ 0 };
    t->locals = NULL;
    t->is_finishing = false;
    t->id = rsi_id_next(w);
}

/* The last that self does as a thread: its keys; its result is kept. */
void rsi_thread_finish(struct rouse_thread *self, void *result)
{
    self->is_finishing = true;
    if (self->locals)
        rsi_keys_run_destructors(self);
    self->arg = result;
}

static void thread_main(void *value, struct rsi_ctx *left)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rouse_thread *self = exec->current;
    rsi_ctx_after(&self->waiter.ctx);
    rsi_switch_finish(value, left);
    rouse_thread_exit(self->fn(self->arg));
}

static size_t stack_bytes_of(const struct rouse_thread_attr *attr)
{
    if (attr->stack_bytes == 0)
        return RSI_STACK_BYTES_DEFAULT;
    return rsi_stack_class_bytes(attr->stack_bytes < RSI_STACK_BYTES_MIN ? RSI_STACK_BYTES_MIN
                                                                         : attr->stack_bytes);
}

static void name_store(struct rouse_thread *t, const char *name)
{
    size_t i = 0;
    for (; name && name[i] && i < ROUSE_NAME_BYTES - 1; i++) {
        unsigned char c = (unsigned char)name[i];
        rsi_store_relaxed(&t->name[i], c < 32 || c == 127 ? '?' : (char)c);
    }
    rsi_store_relaxed(&t->name[i], 0);
}

static int create_user(struct rouse_thread *t, struct rsi_worker *w)
{
#ifdef RSI_ASAN
    __asan_unpoison_memory_region(t->stack.low, (size_t)(t->stack.high - t->stack.low));
#endif
    rsi_store_relaxed(&t->waiter.on_cpu, 0u);
    rsi_ctx_init(&t->waiter.ctx, t->stack.low, t->stack.high, thread_main);
    if (w) {
        t->waiter.worker_index = w->index;
        rsi_run_later(w, t);
    } else {
        t->waiter.worker_index = (uint32_t)(t->id % rsi_rt.worker_count);
        rsi_run_elsewhere(t);
    }
    return 0;
}

int rouse_thread_create(struct rouse_thread **out, const struct rouse_thread_attr *attr,
                        void *(*fn)(void *), void *arg)
{
    static const struct rouse_thread_attr defaults = ROUSE_THREAD_ATTR_INIT;
    attr = attr ? attr : &defaults;
    if (!fn || (!out && !attr->detached) || (unsigned)attr->kind > ROUSE_KIND_KERNEL ||
        attr->stack_bytes > RSI_STACK_BYTES_MAX)
        return -EINVAL;
    rsi_runtime_start();
    struct rsi_worker *w = worker_self();
    enum rouse_kind kind = attr->kind == ROUSE_KIND_DEFAULT ? rsi_rt.default_kind : attr->kind;
    bool is_user = kind == ROUSE_KIND_USER;
    struct rouse_thread *t = rsi_block_alloc(w, is_user ? stack_bytes_of(attr) : 0);
    if (!t)
        return -ENOMEM;
    block_reset(t, w);
    t->fn = fn;
    t->arg = arg;
    t->waiter.origin = is_user ? RSI_ORIGIN_USER : RSI_ORIGIN_KERNEL;
    t->join_word = attr->detached ? RSI_JOIN_DETACHED : RSI_JOIN_NONE;
    name_store(t, attr->name);
    rsi_store_release(&t->waiter.life, RSI_LIFE_LIVE); /* pairs with readers of all blocks */
    if (out)
        *out = t;
    int error = is_user ? create_user(t, w) : rsi_kernel_create(t, attr->stack_bytes);
    if (error) {
        rsi_block_free(w, t);
        if (out)
            *out = NULL;
    }
    return error;
}

/* Wake t's joiner, if there is one: t's result stands. The joiner goes on when t's stack is left. */
static void announce_end(struct rouse_thread *t)
{
    if (rsi_load_relaxed(&t->join_word) <= RSI_JOIN_ENDED)
        return;
    /* Acquires join_ticket, and releases all that t did. */
    struct rouse_thread *joiner =
        (struct rouse_thread *)rsi_exchange_acq_rel(&t->join_word, RSI_JOIN_ENDING);
    if (joiner && rsi_park_claim(joiner, t->join_ticket, 0, (const void *)rouse_thread_exit))
        rsi_park_publish(joiner);
}

/* On a stack other than t's: t has ended. Returns w, for the switch. */
RSI_NOINLINE struct rsi_worker *rsi_thread_left(struct rsi_worker *w, struct rouse_thread *t)
{
    rsi_timer_forget(t);
    rsi_store_relaxed(&t->waiter.life, RSI_LIFE_ENDED);
    rsi_store_relaxed(&t->waiter.on_cpu, 0u);
    uintptr_t seen = rsi_load_relaxed(&t->join_word);
    /* Without a joiner yet: all it did is released to whoever joins. Pairs with the acquire in join. */
    if (seen == RSI_JOIN_NONE && rsi_cas_acq_rel(&t->join_word, &seen, RSI_JOIN_ENDED))
        return w;
    if (seen == RSI_JOIN_DETACHED) {
        rsi_block_free(w, t);
        return w;
    }
    announce_end(t); /* a joiner that came late */
    rsi_store_release(&t->join_word, RSI_JOIN_ENDED);
    return w;
}

void rouse_thread_exit(void *result)
{
    struct rouse_thread *self = rsi_self();
    if (self->waiter.origin == RSI_ORIGIN_FOREIGN)
        pthread_exit(result);
    rsi_thread_finish(self, result);
    if (self->waiter.origin == RSI_ORIGIN_KERNEL) {
        rsi_kernel_end(self);
        pthread_exit(NULL);
    }
    announce_end(self);
    rsi_switch_out(rsi_exec_self()->worker, self, RSI_SWITCH_END);
    rsi_fatal("an ended thread was resumed");
}

static int join_finish(struct rouse_thread *t, void **result)
{
    /* Pairs with rsi_thread_left. */
    for (unsigned spins = 0; rsi_load_acquire(&t->join_word) != RSI_JOIN_ENDED; spins++) {
        if (spins < LEAVING_SPINS)
            rsi_cpu_relax();
        else
            rsi_syscall0(SYS_sched_yield); /* its kernel thread is off the CPU */
    }
    if (result)
        *result = t->arg;
    rsi_block_free(worker_self(), t);
    return 0;
}

static int join(struct rouse_thread *t, void **result, uint64_t deadline_ns, const void *site)
{
    struct rouse_thread *self = rsi_self();
    if (t == self)
        return -EDEADLK;
    uint64_t ticket =
        rsi_park_prepare(self, ROUSE_WAIT_JOIN, t, site, deadline_ns, RSI_PARK_CANCELLABLE);
    uintptr_t expected = RSI_JOIN_NONE;
    uintptr_t seen = rsi_load_acquire(&t->join_word);
    if (seen == RSI_JOIN_NONE) {
        t->join_ticket = ticket;
        /* Releases join_ticket to announce_end. */
        if (rsi_cas_acq_rel(&t->join_word, &expected, (uintptr_t)self)) {
            int error = rsi_park_commit(self, ticket);
            expected = (uintptr_t)self;
            if (error == 0 || !rsi_cas_acq_rel(&t->join_word, &expected, RSI_JOIN_NONE)) {
                if (error ==
                    -ECANCELED) /* it had ended: the request is for the next blocking call */
                    rsi_fetch_add_seq_cst(&self->waiter.cancel, 1u);
                return join_finish(t, result);
            }
            return error;
        }
        seen = expected;
    }
    if (!rsi_park_abandon(self, ticket)) { /* cancelled just now; the request is kept for later */
        rsi_park_commit(self, ticket);
        rsi_fetch_add_seq_cst(&self->waiter.cancel, 1u);
    }
    return seen == RSI_JOIN_ENDED || seen == RSI_JOIN_ENDING ? join_finish(t, result) : -EINVAL;
}

int rouse_thread_join(struct rouse_thread *t, void **result)
{
    return join(t, result, ROUSE_FOREVER, RSI_CALLER());
}

int rouse_thread_join_until(struct rouse_thread *t, void **result, uint64_t deadline_ns)
{
    return join(t, result, deadline_ns, RSI_CALLER());
}

int rouse_thread_join_try(struct rouse_thread *t, void **result)
{
    if (t == rsi_self())
        return -EDEADLK;
    uintptr_t seen = rsi_load_acquire(&t->join_word);
    if (seen == RSI_JOIN_NONE)
        return -EBUSY;
    return seen == RSI_JOIN_ENDED || seen == RSI_JOIN_ENDING ? join_finish(t, result) : -EINVAL;
}

int rouse_thread_detach(struct rouse_thread *t)
{
    uintptr_t expected = RSI_JOIN_NONE;
    if (rsi_cas_acq_rel(&t->join_word, &expected, RSI_JOIN_DETACHED))
        return 0;
    return expected == RSI_JOIN_ENDED || expected == RSI_JOIN_ENDING ? join_finish(t, NULL)
                                                                     : -EINVAL;
}

void rouse_thread_yield(void)
{
    struct rouse_thread *self = rsi_self();
    if (rsi_unlikely(self->waiter.origin != RSI_ORIGIN_USER))
        rsi_syscall0(SYS_sched_yield);
    else
        rsi_switch_yield(rsi_exec_self()->worker, self);
}

struct rouse_thread *rouse_thread_self(void)
{
    return rsi_self();
}

uint64_t rouse_thread_id(const struct rouse_thread *t)
{
    return t->id;
}

enum rouse_kind rouse_thread_kind(const struct rouse_thread *t)
{
    return t->waiter.origin == RSI_ORIGIN_USER ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
}

void rouse_thread_set_name(struct rouse_thread *t, const char *name)
{
    name_store(t, name);
}

size_t rouse_thread_name(const struct rouse_thread *t, char *buffer, size_t bytes)
{
    size_t length = 0;
    char c;
    for (; length < ROUSE_NAME_BYTES - 1 && (c = rsi_load_relaxed(&t->name[length])); length++)
        if (length + 1 < bytes)
            buffer[length] = c;
    if (bytes)
        buffer[length < bytes ? length : bytes - 1] = 0;
    return length;
}

int rouse_sleep_until(uint64_t deadline_ns)
{
    struct rouse_thread *self = rsi_self();
    /* Past: it keeps its place among the runnable, and does not wait for the timers to be looked at. */
    uint64_t limit_ns = deadline_ns > rsi_now_ns() ? deadline_ns : 0;
    uint64_t ticket = rsi_park_prepare(self, ROUSE_WAIT_SLEEP, NULL, RSI_CALLER(), limit_ns,
                                       RSI_PARK_CANCELLABLE);
    int result = rsi_park_commit(self, ticket);
    return result == -ETIMEDOUT ? 0 : result;
}

int rouse_sleep(uint64_t ns)
{
    uint64_t now = rsi_now_ns();
    return rouse_sleep_until(ns < ROUSE_FOREVER - now ? now + ns : ROUSE_FOREVER);
}

uint64_t rouse_now_ns(void)
{
    return rsi_now_ns();
}
