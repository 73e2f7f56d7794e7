/* SPDX-License-Identifier: MIT */
/*
 * inspect.c - reads control blocks and the stacks of parked threads while the program runs.
 *
 * No thread is stopped. A parked user thread is unwound twice from the registers that the context switch saved. The
 * result is accepted if both backtraces agree and the thread is still parked. The thread may be woken and run at
 * any time, so its stack may change during the walk; the walk then reads wrong values, but nothing outside that
 * stack. A running thread is asked for its backtrace (signal_unwind.h). If its state changed meanwhile, the attempt is
 * repeated; after some attempts the thread's worker is held during the attempt.
 */
#include "obs/inspect.h"

#include "obs/signal_unwind.h"
#include "obs/store.h"

#include <string.h>

/*
 * For words that their owner may write concurrently, without atomics. Later checks decide whether the values count.
 */
#define RACY __attribute__((no_sanitize("thread")))
#define PEEK(p) (*(const volatile __typeof__(*(p)) *)(p))

#define ATTEMPTS 12                 /* half of them without holding a worker */
#define PATIENCE_LEAST_NS 10000000u /* per thread, once most of the time is used up */

/*
 * Visit the control blocks. Their fields are read racily: relaxed loads, each validated by a later check.
 */
void rsi_blocks_visit(bool (*visit)(struct rouse_thread *t, void *context), void *context)
{
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        uint32_t used = rsi_load_acquire(&slab->used);
        for (uint32_t slot = 0; slot < used; slot++)
            if (!visit(rsi_slab_block(slab, slot), context))
                return;
    }
}

struct rouse_thread *rsi_block_at(const void *address)
{
    const char *at = address;
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        if (at < slab->base)
            continue;
        size_t group = (size_t)(at - slab->base) / RSI_GROUP_BYTES;
        size_t slot = (size_t)(at - slab->base) % RSI_GROUP_BYTES / RSI_BLOCK_BYTES;
        slot = group * RSI_GROUP_BLOCKS + (slot < RSI_GROUP_BLOCKS ? slot : 0);
        if (slot < rsi_load_acquire(&slab->used) && rsi_slab_block(slab, (uint32_t)slot) == address)
            return (struct rouse_thread *)address;
    }
    return NULL;
}

static bool same(const struct rsi_backtrace *a, const struct rsi_backtrace *b)
{
    return a->unwound == b->unwound && a->count == b->count &&
           memcmp(a->frames, b->frames, a->count * sizeof a->frames[0]) == 0;
}

/* The registers that the context switch saved of a thread, and the bounds of its stack. */
struct parked {
    const char *sp, *ip, *fp;
    const char *low, *high;
};

/* False: t has run meanwhile, and the values may be inconsistent. */
RACY static bool read_parked(const struct rouse_thread *t, const struct rsi_inspected *seen,
                             uint32_t on_cpu, struct parked *parked)
{
    const struct rsi_ctx *ctx = &t->waiter.ctx;
    parked->sp = PEEK(&ctx->sp);
    parked->ip = PEEK(&ctx->ip);
    parked->fp = PEEK(&ctx->fp);
    parked->low = PEEK(&t->stack.low);
    parked->high = PEEK(&t->stack.high);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* later reads stay after the reads above */
    return PEEK(&t->waiter.on_cpu) == on_cpu && PEEK(&t->id) == seen->id &&
           PEEK(&ctx->sp) == parked->sp;
}

static void walk_parked(const struct parked *parked, struct rsi_backtrace *backtrace)
{
    struct rsi_span spans[2] = { { 0, 0 }, { 0, 0 } };
    struct rsi_regs regs = rsi_regs_parked(parked->sp, parked->ip, parked->fp);
    if (parked->sp >= parked->low && parked->sp <= parked->high)
        spans[0] = (struct rsi_span){ (uintptr_t)parked->sp, (uintptr_t)parked->high };
    backtrace->unwound =
        rsi_unwind(&regs, spans, backtrace->frames, RSI_FRAMES_MAX, &backtrace->count);
}

/* Unwind t. True: both walks agree and t has not run meanwhile. */
RACY static bool inspect_parked(const struct rouse_thread *t, struct rsi_inspected *seen,
                                uint32_t on_cpu)
{
    struct parked parked;
    struct rsi_backtrace again;
    if (!read_parked(t, seen, on_cpu, &parked))
        return false;
    if (!parked.sp || parked.ip == (const char *)(uintptr_t)rsi_ctx_start) {
        seen->state = RSI_STATE_NEW;
        seen->backtrace = (struct rsi_backtrace){ RSI_UNWOUND_ALL, 1, { 0 } };
        seen->backtrace.frames[0] = (const void *)(uintptr_t)PEEK(&t->fn);
        return read_parked(t, seen, on_cpu, &parked);
    }
    walk_parked(&parked, &seen->backtrace);
    walk_parked(&parked, &again);
    return same(&seen->backtrace, &again) && read_parked(t, seen, on_cpu, &parked);
}

/*
 * Ask for a backtrace within the remaining patience, which is halved by each unanswered request. Returns the thread
 * that ran there.
 */
static const struct rouse_thread *ask(struct rsi_inspector *inspector, int32_t tid,
                                      struct rsi_inspected *seen)
{
    const struct rouse_thread *whose = NULL;
    if (tid == inspector->tid)
        return rsi_signal_unwind_self(&inspector->regs, &seen->backtrace);
    uint64_t limit = inspector->patience_ns > PATIENCE_LEAST_NS ? inspector->patience_ns
                                                                : PATIENCE_LEAST_NS;
    if (!rsi_signal_unwind(tid, limit, &whose, &seen->backtrace)) {
        inspector->patience_ns /= 2;
        seen->is_silent = true;
    }
    return whose;
}

/* Read the wait record of a waiting thread. */
RACY static void read_wait(const struct rouse_thread *t, struct rsi_inspected *seen)
{
    const struct rsi_wait *record = &t->waiter.record;
    seen->kind = PEEK(&record->kind);
    seen->object = PEEK(&record->object);
    seen->site = PEEK(&record->wait_site);
    seen->deadline_ns = PEEK(&t->waiter.deadline_ns);
    const struct rsi_store_thread *slot =
        PEEK(&record->slot); /* never unmapped while a thread owns it */
    uint64_t since_tsc = slot && PEEK(&slot->doing) == RSI_DOES_WAIT ? PEEK(&slot->since_tsc) : 0;
    seen->since_tsc = rsi_obs_is_current(since_tsc) ? since_tsc : 0;
}

/* Examine a user thread that is not on a CPU. on_cpu must stay unchanged. */
RACY static bool inspect_still(const struct rouse_thread *t, struct rsi_inspected *seen,
                               uint32_t on_cpu)
{
    uint64_t claim = rsi_load_acquire(&t->waiter.claim);
    seen->state = claim & 3 ? RSI_STATE_WAITING : RSI_STATE_RUNNABLE;
    read_wait(t, seen);
    return inspect_parked(t, seen, on_cpu) && rsi_load_acquire(&t->waiter.claim) == claim;
}

RACY static bool inspect_user(struct rsi_inspector *inspector, const struct rouse_thread *t,
                              struct rsi_inspected *seen)
{
    uint32_t on_cpu = rsi_load_acquire(&t->waiter.on_cpu); /* pairs with rsi_switch_finish */
    seen->worker = PEEK(&t->waiter.worker_index);
    if (on_cpu != RSI_CPU_RUNS) /* stack trimming skips a thread that is being unwound */
        return inspect_still(t, seen, on_cpu);
    seen->state = RSI_STATE_RUNNING;
    return ask(inspector, PEEK(&rsi_rt.workers[seen->worker]->tid), seen) == t;
}

/*
 * The same while t's worker is held, for threads that run for less time than an unwind takes. If the worker runs
 * another thread, it has left t's stack, though it may not have cleared on_cpu of t yet. If the worker is between
 * two threads, it is released and the attempt is repeated.
 */
RACY static bool inspect_user_held(struct rsi_inspector *inspector, const struct rouse_thread *t,
                                   struct rsi_inspected *seen)
{
    unsigned worker = PEEK(&t->waiter.worker_index);
    int32_t tid = PEEK(&rsi_rt.workers[worker]->tid);
    if (tid == inspector->tid)
        return inspect_user(inspector, t, seen);
    rsi_signal_unwind_hold();
    const struct rouse_thread *whose = ask(inspector, tid, seen);
    uint32_t on_cpu = rsi_load_acquire(&t->waiter.on_cpu);
    bool is_seen = whose == t;
    seen->worker = worker;
    seen->state = RSI_STATE_RUNNING;
    if (!is_seen && !seen->is_silent && (whose || on_cpu != RSI_CPU_RUNS))
        is_seen = inspect_still(t, seen, on_cpu) && PEEK(&t->waiter.worker_index) == worker;
    rsi_signal_unwind_release();
    return is_seen;
}

RACY static bool inspect_kernel(struct rsi_inspector *inspector, const struct rouse_thread *t,
                                struct rsi_inspected *seen)
{
    bool is_on_cpu = rsi_load_acquire(&t->waiter.on_cpu);
    uint64_t claim = rsi_load_acquire(&t->waiter.claim);
    seen->tid = PEEK(&t->tid);
    seen->state = is_on_cpu   ? RSI_STATE_RUNNING
                  : claim & 3 ? RSI_STATE_WAITING
                              : RSI_STATE_RUNNABLE;
    read_wait(t, seen);
    return ask(inspector, seen->tid, seen) == t && rsi_load_acquire(&t->waiter.claim) == claim;
}

RACY static void inspect_once(struct rsi_inspector *inspector, const struct rouse_thread *t,
                              struct rsi_inspected *seen, bool holds)
{
    memset(seen, 0, offsetof(struct rsi_inspected, backtrace));
    seen->id = PEEK(&t->id);
    seen->origin = PEEK(&t->waiter.origin);
    rouse_thread_name(t, seen->name, sizeof seen->name);
    /* The block may be reused for another thread, so id is read first. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (PEEK(&t->waiter.life) == RSI_LIFE_ENDED)
        seen->state = RSI_STATE_ENDED;
    else if (seen->origin == RSI_ORIGIN_USER)
        seen->has_backtrace = holds ? inspect_user_held(inspector, t, seen)
                                    : inspect_user(inspector, t, seen);
    else
        seen->has_backtrace = inspect_kernel(inspector, t, seen);
}

bool rsi_inspect(struct rsi_inspector *inspector, struct rouse_thread *t,
                 struct rsi_inspected *seen)
{
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        /* Pairs with the release in rouse_thread_create. */
        if (rsi_load_acquire(&t->waiter.life) == RSI_LIFE_FREE)
            return false;
        inspect_once(inspector, t, seen, attempt >= ATTEMPTS / 2);
        if (seen->has_backtrace || seen->is_silent || seen->state == RSI_STATE_ENDED)
            break;
    }
    return true;
}
