/* SPDX-License-Identifier: MIT */
/*
 * thread.c - the life of a thread, from creation to the release of its control block.
 *
 * join_word says who handles the end:
 *   NONE <-> a joiner's address: it waits, and may give up
 *   NONE -> DETACHED
 *   NONE -> ENDED, joiner -> joiner + ENDING -> joiner + ENDED: stored by the ending thread
 *   ENDED, joiner + ENDED -> DETACHED: stored by the thread that then releases the block
 * The ending thread itself wakes a waiting joiner and stores ENDING, so that the joiner can run next. The
 * joiner may reuse the block only after the ending thread has left its stack. ENDED says so, and is stored on
 * the next stack. After ENDED is stored, or DETACHED was found and the block released, the ending side does
 * not touch the block. A joiner that finds ENDING waits the few instructions for ENDED. Any other thread
 * finds a word that is neither NONE nor ENDED and gets an error, so that two threads never release one block.
 * Until ENDING is stored, a joiner may give up, and then join again or detach. So the ending thread rereads
 * join_word and never relies on an old value. Model: tests/model/join.pml.
 */
#include "core/switch.h"
#include "core/tls.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef RSI_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define PROMISES 32 /* stacks that a worker reserves at a time */
#define LEAVING_SPINS 256

static struct rsi_worker *worker_self(void)
{
    return rsi_exec_self()->worker;
}

/* Reset a block for a new thread. The claim word and timer_word keep their values. */
static void block_reset(struct rouse_thread *t, struct rsi_worker *w)
{
    t->waiter.is_listed = false;
    t->waiter.cancel = 0;
    t->waiter.record = (struct rsi_wait){ 0 };
    rsi_cold_clear(t);
    t->waiter.is_finishing = false;
    t->waiter.is_slotless = false;
    rsi_store_relaxed(&t->id, rsi_id_next(w));
}

/* The last step of self as a thread: run its key destructors and keep its result. */
void rsi_thread_finish(struct rouse_thread *self, void *result)
{
    self->waiter.is_finishing = true;
    if (self->locals)
        rsi_keys_run_destructors(self);
    rsi_park_settle(self);
    if (rsi_unlikely(self->waiter.record.slot != NULL))
        rsi_account_thread_end(self);
    self->arg = result;
}

static void thread_main(void *value, struct rsi_ctx *left)
{
    struct rsi_exec *exec = rsi_exec_self();
    struct rouse_thread *self = exec->current;
    rsi_ctx_after(&self->waiter.ctx);
    struct rsi_worker *w = rsi_switch_finish(value, left);
    *w->errno_at = 0;
    if (rsi_unlikely(self->tls != NULL))
        rsi_tls_begin(self);
    void *(*fn)(void *) = self->fn;
    self->locals = NULL;
    rouse_thread_exit(fn(self->arg));
}

/* Reserve a stack for a thread that is being created. Workers reserve in batches. */
static bool stack_reserve(struct rsi_worker *w, unsigned class)
{
    if (!w || class != RSI_STACK_CLASS_DEFAULT)
        return rsi_stack_reserve(class, 1);
    if (w->stack_promises == 0) {
        if (rsi_stack_reserve(class, PROMISES))
            w->stack_promises = PROMISES;
        else
            return rsi_stack_reserve(class, 1);
    }
    w->stack_promises--;
    return true;
}

static void stack_unreserve(struct rsi_worker *w, unsigned class)
{
    if (!w || class != RSI_STACK_CLASS_DEFAULT) {
        rsi_stack_unreserve(class, 1);
        return;
    }
    if (++w->stack_promises == 3 * PROMISES) {
        w->stack_promises -= 2 * PROMISES;
        rsi_stack_unreserve(class, 2 * PROMISES);
    }
}

/* Take a free stack for a thread that holds a reservation, if possible the one that this worker used last. */
static struct rsi_stack stack_take(struct rsi_worker *w, unsigned class)
{
    if (class == RSI_STACK_CLASS_DEFAULT && w->stack_count != 0)
        return rsi_stack_of(class, w->stack_cache[--w->stack_count]);
    return rsi_stack_take(class);
}

/* Stacks in the cache need reservations of their own. Otherwise a thread elsewhere could find no stack. */
static void stack_give(struct rsi_worker *w, unsigned class, struct rsi_stack stack)
{
    if (class == RSI_STACK_CLASS_DEFAULT) {
        if (w->stack_keep == 0 && rsi_stack_reserve(class, RSI_STACK_KEEP))
            w->stack_keep = RSI_STACK_KEEP;
        if (w->stack_count < w->stack_keep) {
            w->stack_cache[w->stack_count++] = stack.high;
            return;
        }
    }
    rsi_stack_give(class, stack);
}

/* w ends: return the stacks and reservations that it kept. */
void rsi_thread_stacks_give(struct rsi_worker *w)
{
    const unsigned class = RSI_STACK_CLASS_DEFAULT;
    while (w->stack_count != 0)
        rsi_stack_give(class, rsi_stack_of(class, w->stack_cache[--w->stack_count]));
    if (w->stack_keep + w->stack_promises != 0)
        rsi_stack_unreserve(class, w->stack_keep + w->stack_promises);
    w->stack_keep = w->stack_promises = 0;
}

/* t is about to run for the first time. */
RSI_NOINLINE void rsi_thread_bind(struct rsi_worker *w, struct rouse_thread *t)
{
    t->stack = stack_take(w, t->waiter.stack_class);
#ifdef RSI_ASAN
    __asan_unpoison_memory_region(t->stack.low, (size_t)(t->stack.high - t->stack.low));
#endif
    rsi_ctx_init(&t->waiter.ctx, t->stack.low, t->stack.high, thread_main);
}

/* A thread without a name touches no memory for one. */
static void name_store(struct rouse_thread *t, const char *name)
{
    size_t i = 0;
    if (!rsi_load_relaxed(&t->waiter.has_cold) && (!name || !*name))
        return;
    char *stored = rsi_cold_of(t)->name;
    for (; name && name[i] && i < ROUSE_NAME_BYTES - 1; i++) {
        unsigned char c = (unsigned char)name[i];
        rsi_store_relaxed(&stored[i], c < 32 || c == 127 ? '?' : (char)c);
    }
    rsi_store_relaxed(&stored[i], 0);
}

/* Allocate a block of the right kind, and do everything that can fail except creating a kernel thread. */
static struct rouse_thread *thread_alloc(struct rsi_worker *w, const struct rouse_thread_attr *attr,
                                         bool is_user)
{
    unsigned class = attr->stack_bytes ? rsi_stack_class(attr->stack_bytes)
                                       : RSI_STACK_CLASS_DEFAULT;
    if (is_user && !stack_reserve(w, class))
        return NULL;
    struct rouse_thread *t = rsi_block_alloc(w, is_user);
    if (!t) {
        if (is_user)
            stack_unreserve(w, class);
        return NULL;
    }
    t->waiter.origin = is_user ? RSI_ORIGIN_USER : RSI_ORIGIN_KERNEL;
    if (is_user) {
        t->waiter.stack_class = (uint8_t) class;
        rsi_store_relaxed(&t->waiter.ctx.sp, NULL);
        t->waiter.ctx.ip = (void *)rsi_ctx_start;
        rsi_store_relaxed(&t->waiter.on_cpu, RSI_CPU_NEW);
        t->tls = NULL;
    } else {
        rsi_store_relaxed(&t->waiter.home, 0);
    }
    block_reset(t, w);
    return t;
}

/* Enter the cluster of a new user thread. */
static int join_cluster(struct rouse_thread *t, struct rouse_cluster *cluster)
{
    const struct rouse_thread *self = rsi_exec_self()->current;
    uint16_t home = rsi_load_relaxed(&self->waiter.home);
    if (!cluster && home <= 1) { /* the default one */
        rsi_store_relaxed(&t->waiter.home, 1);
        return 0;
    }
    return rsi_cluster_enter(t, cluster ? cluster : rsi_cluster_of(home));
}

static void thread_unmake(struct rsi_worker *w, struct rouse_thread *t, struct rouse_thread **out)
{
    if (t->waiter.origin == RSI_ORIGIN_USER) {
        stack_unreserve(w, t->waiter.stack_class);
        if (t->tls)
            rsi_tls_drop(t->tls);
    }
    rsi_block_free(w, t);
    if (out)
        *out = NULL;
}

RSI_INLINE void begin(struct rsi_worker *w, struct rouse_thread *t)
{
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_new(t);
    rsi_run_new(w, t);
}

int rouse_thread_create(struct rouse_thread **out, const struct rouse_thread_attr *attr,
                        void *(*fn)(void *), void *arg)
{
    static const struct rouse_thread_attr defaults = ROUSE_THREAD_ATTR_INIT;
    attr = attr ? attr : &defaults;
    if (!fn || (!out && !attr->detached) || (unsigned)attr->kind > ROUSE_KIND_KERNEL ||
        attr->stack_bytes > RSI_STACK_BYTES_MAX)
        return -EINVAL;
    int error = rsi_runtime_try_start();
    /* The caller gets a control block too, so that a deadlock check sees that it runs. */
    if (!error && !rsi_exec_self()->current)
        error = rsi_foreign_try_adopt();
    if (rsi_unlikely(error))
        return error;
    struct rsi_worker *w = worker_self();
    enum rouse_kind kind = attr->kind == ROUSE_KIND_DEFAULT ? rsi_rt.default_kind : attr->kind;
    bool is_user = kind == ROUSE_KIND_USER;
    struct rouse_thread *t = thread_alloc(w, attr, is_user);
    if (!t)
        return -ENOMEM;
    t->fn = fn;
    t->arg = arg;
    t->join_word = attr->detached ? RSI_JOIN_DETACHED : RSI_JOIN_NONE;
    name_store(t, attr->name);
    /* Pairs with the acquires of all that list blocks. */
    rsi_store_release(&t->waiter.life, RSI_LIFE_LIVE);
    if (out)
        *out = t;
    if (rsi_unlikely(attr->own_tls || rsi_rt.is_tls_own) && is_user)
        error = rsi_tls_new(&t->tls, attr->stack_bytes);
    if (rsi_likely(!error))
        error = is_user ? join_cluster(t, attr->cluster)
                        : rsi_kernel_thread_create(t, attr->stack_bytes);
    if (rsi_unlikely(error))
        thread_unmake(w, t, out);
    else if (is_user)
        begin(w, t);
    return error;
}

/*
 * Wake t's joiner, if there is one. t's result is stored. The joiner continues when t has left its stack.
 * Returns join_word: NONE, DETACHED, or a joiner with ENDING, which only t's end changes.
 */
static uintptr_t announce_end(struct rouse_thread *t, const void *site)
{
    uintptr_t seen = rsi_load_relaxed(&t->join_word);
    while (seen > RSI_JOIN_ENDED && (seen & RSI_JOIN_ENDING) == 0) {
        struct rouse_thread *joiner = (struct rouse_thread *)seen;
        rsi_test_delay();
        /* Not an exchange: the joiner may have given up and detached t. Releases everything t did. */
        if (!rsi_cas_acq_rel(&t->join_word, &seen, seen | RSI_JOIN_ENDING))
            continue;
        /* The joiner cannot begin another wait before it sees ENDED. Acquired with its address. */
        uint64_t ticket = rsi_load_relaxed(&joiner->waiter.claim);
        if ((ticket & 3) != 0 && rsi_park_claim(joiner, ticket, 0, site))
            rsi_park_publish(joiner);
        return (uintptr_t)joiner | RSI_JOIN_ENDING;
    }
    return seen;
}

/* t has ended. Called on another stack than t's. Returns w, for the switch. */
RSI_NOINLINE struct rsi_worker *rsi_thread_left(struct rsi_worker *w, struct rouse_thread *t)
{
    if (t->waiter.origin == RSI_ORIGIN_USER) {
        rsi_timer_forget(t);
        stack_give(w, t->waiter.stack_class, t->stack);
        t->stack = (struct rsi_stack){ NULL, NULL };
        stack_unreserve(w, t->waiter.stack_class);
    }
    rsi_store_relaxed(&t->waiter.life, RSI_LIFE_ENDED);
    rsi_store_relaxed(&t->waiter.on_cpu, 0u);
    for (;;) {
        /*
         * A joiner may have come late. The thread that runs here now is not the waker, so there is no site.
         */
        uintptr_t seen = announce_end(t, NULL);
        if (seen == RSI_JOIN_DETACHED) {
            /*
             * Pairs with rouse_thread_detach: what a detacher did to the block comes before the block's next
             * use.
             */
            (void)rsi_load_acquire(&t->join_word);
            rsi_block_free(w, t);
            return w;
        }
        if (seen != RSI_JOIN_NONE) {
            rsi_store_release(&t->join_word, seen | RSI_JOIN_ENDED);
            return w;
        }
        /* Releases everything t did to its joiner. Pairs with the acquire in join_ended. */
        if (rsi_cas_acq_rel(&t->join_word, &seen, RSI_JOIN_ENDED))
            return w;
    }
}

RSI_NOINLINE void rouse_thread_exit(void *result)
{
    struct rouse_thread *self = rsi_self();
    if (self->waiter.origin == RSI_ORIGIN_FOREIGN && rsi_blocking_caller())
        rsi_fatal("rouse_thread_exit in a function that rouse_blocking runs: let it return");
    if (self->waiter.origin == RSI_ORIGIN_FOREIGN)
        pthread_exit(result);
    rsi_thread_finish(self, result);
    if (self->waiter.origin == RSI_ORIGIN_KERNEL) {
        rsi_kernel_thread_end(self);
        pthread_exit(NULL);
    }
    if (rsi_unlikely(self->tls != NULL))
        rsi_tls_end(self, RSI_CALLER());
    announce_end(self, RSI_CALLER());
    rsi_switch_out(rsi_exec_self()->worker, self, RSI_LEAVES_ENDED);
    rsi_fatal("an ended thread was resumed");
}

static int join_finish(struct rouse_thread *t, void **result)
{
    /* Until the block is reused, another join gets an error. */
    rsi_store_relaxed(&t->join_word, RSI_JOIN_DETACHED);
    if (result)
        *result = t->arg;
    rsi_block_free(worker_self(), t);
    return 0;
}

/* Join a thread that has ended and has no waiting joiner. -EBUSY: it has not ended. */
static int join_ended(struct rouse_thread *t, void **result)
{
    uintptr_t seen = rsi_load_relaxed(&t->join_word);
    /* Pairs with rsi_thread_left. Exclusive, so that two threads never release the block. */
    if (seen == RSI_JOIN_ENDED && rsi_cas_acquire(&t->join_word, &seen, RSI_JOIN_DETACHED))
        return join_finish(t, result);
    return seen == RSI_JOIN_NONE ? -EBUSY : -EINVAL;
}

/* Wait as the joiner. */
static int join_wait(struct rouse_thread *self, struct rouse_thread *t, void **result,
                     uint64_t ticket)
{
    int error = rsi_park_commit(self, ticket);
    uintptr_t joiner = (uintptr_t)self, expected = joiner;
    if (error != 0 && rsi_cas_acq_rel(&t->join_word, &expected, RSI_JOIN_NONE))
        return error;
    /* Pairs with rsi_thread_left. */
    expected = joiner | RSI_JOIN_ENDED;
    for (unsigned spins = 0; rsi_load_acquire(&t->join_word) != expected; spins++) {
        if (spins < LEAVING_SPINS)
            rsi_cpu_relax();
        else
            rsi_syscall0(SYS_sched_yield); /* the kernel thread it ends on is off the CPU */
    }
    if (error == -ECANCELED) /* t had ended: keep the request for the next blocking call */
        rsi_fetch_add_seq_cst(&self->waiter.cancel, 1u);
    return join_finish(t, result);
}

static int join(struct rouse_thread *t, void **result, uint64_t deadline_ns, const void *site)
{
    struct rouse_thread *self = rsi_self();
    int error = -EDEADLK;
    while (t != self && (error = join_ended(t, result)) == -EBUSY) {
        uintptr_t expected = RSI_JOIN_NONE;
        uint64_t ticket =
            rsi_park_prepare(self, ROUSE_WAIT_JOIN, t, site, deadline_ns, RSI_PARK_CANCELLABLE);
        rsi_test_delay();
        /* Releases the claim word to announce_end. */
        if (rsi_cas_acq_rel(&t->join_word, &expected, (uintptr_t)self))
            return join_wait(self, t, result, ticket);
        /* Cancelled just now: keep the request. Otherwise an old entry of the timer fired. */
        if (!rsi_park_abandon(self, ticket) && rsi_park_commit(self, ticket) == -ECANCELED)
            rsi_fetch_add_seq_cst(&self->waiter.cancel, 1u);
    }
    return error;
}

RSI_NOINLINE int rouse_thread_join(struct rouse_thread *t, void **result)
{
    return join(t, result, ROUSE_FOREVER, RSI_CALLER());
}

RSI_NOINLINE int rouse_thread_join_until(struct rouse_thread *t, void **result,
                                         uint64_t deadline_ns)
{
    return join(t, result, deadline_ns, RSI_CALLER());
}

int rouse_thread_join_try(struct rouse_thread *t, void **result)
{
    struct rouse_thread *self = rsi_self();
    rsi_turn_spend(self, 1); /* a loop around this call must let t run */
    return t == self ? -EDEADLK : join_ended(t, result);
}

int rouse_thread_detach(struct rouse_thread *t)
{
    uintptr_t expected = RSI_JOIN_NONE;
    return rsi_cas_acq_rel(&t->join_word, &expected, RSI_JOIN_DETACHED) ? 0 : join_ended(t, NULL);
}

void rouse_thread_yield(void)
{
    struct rsi_exec *exec = rsi_exec_self();
    if (rsi_unlikely(!exec->worker))
        rsi_syscall0(SYS_sched_yield);
    else
        rsi_switch_yield(exec->worker, exec->current, RSI_LEAVES_QUEUED);
}

/*
 * self was moved: continue on a worker of its new cluster. It becomes runnable there before it has left its
 * stack.
 */
void rsi_thread_leave(struct rouse_thread *self)
{
    struct rsi_worker *w = rsi_exec_self()->worker;
    if (rsi_load_relaxed(&self->waiter.home) == w->exec.home)
        return;
    rsi_run_elsewhere(self);
    rsi_switch_out(w, self, 0);
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
    rsi_account_name(t);
}

size_t rouse_thread_name(const struct rouse_thread *t, char *buffer, size_t bytes)
{
    const char *name = rsi_cold_at(t)->name;
    size_t length = 0;
    char c;
    for (; length < ROUSE_NAME_BYTES - 1 && (c = rsi_load_relaxed(&name[length])); length++)
        if (length + 1 < bytes)
            buffer[length] = c;
    if (bytes)
        buffer[length < bytes ? length : bytes - 1] = 0;
    return length;
}

/* deadline_ns: 0 if it has passed. */
RSI_INLINE int sleep_until(uint64_t deadline_ns, const void *site)
{
    struct rouse_thread *self = rsi_self();
    uint64_t ticket =
        rsi_park_prepare(self, ROUSE_WAIT_SLEEP, NULL, site, deadline_ns, RSI_PARK_CANCELLABLE);
    int result = rsi_park_commit(self, ticket);
    rsi_account_call(ROUSE_WAIT_SLEEP, result);
    return result == -ETIMEDOUT ? 0 : result;
}

RSI_NOINLINE int rouse_sleep_until(uint64_t deadline_ns)
{
    /* In the past: the thread stays runnable and does not wait for the next look at timers. */
    return sleep_until(deadline_ns > rsi_now_ns() ? deadline_ns : 0, RSI_CALLER());
}

RSI_NOINLINE int rouse_sleep(uint64_t ns)
{
    uint64_t now = ns != 0 ? rsi_now_ns() : 0;
    return sleep_until(ns < ROUSE_FOREVER - now ? now + ns : ROUSE_FOREVER, RSI_CALLER());
}

uint64_t rouse_now_ns(void)
{
    return rsi_now_ns();
}
