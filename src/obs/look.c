/* SPDX-License-Identifier: MIT */
/*
 * look.c - reads control blocks and the stacks of parked threads, while the program runs.
 *
 * Nobody is stopped. A parked user thread is walked twice from the registers that the switch saved, and
 * believed when both walks agree and it is still parked; it may be woken and run at any time, and its
 * stack may change under the walk, which then reads nonsense but nothing outside that stack. A running
 * one is asked (ask.h). If it was caught in between, the look is taken again, and after some times its
 * worker is held meanwhile.
 */
#include "obs/look.h"

#include "obs/ask.h"
#include "obs/store.h"

#include <string.h>

/* For words that their owner may be writing, plainly: what is read counts only if later checks say so. */
#define RACY __attribute__((no_sanitize("thread")))
#define PEEK(p) (*(const volatile __typeof__(*(p)) *)(p))

#define ATTEMPTS 12                 /* half of them without holding anybody */
#define PATIENCE_LEAST_NS 10000000u /* for each, when most of the time is used up */

/* Where control blocks lie. Their fields are read racily: relaxed loads, each checked by what follows. */
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

/* What the switch saved of a thread, and the stack that it lies on. */
struct parked {
    const char *sp, *ip, *fp;
    const char *low, *high;
};

/* False: t has moved on, and what was read may not belong together. */
RACY static bool read_parked(const struct rouse_thread *t, const struct rsi_seen *seen,
                             uint32_t on_cpu, struct parked *parked)
{
    const struct rsi_ctx *ctx = &t->waiter.ctx;
    parked->sp = PEEK(&ctx->sp);
    parked->ip = PEEK(&ctx->ip);
    parked->fp = PEEK(&ctx->fp);
    parked->low = PEEK(&t->stack.low);
    parked->high = PEEK(&t->stack.high);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* what follows is read after what stands above */
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

/* Whether both walks agree and t has stayed where it was. */
RACY static bool look_parked(const struct rouse_thread *t, struct rsi_seen *seen, uint32_t on_cpu)
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

/* Ask within what patience is left, which shrinks by what was waited for in vain. Returns whose it is. */
static const struct rouse_thread *ask(struct rsi_looker *looker, int32_t tid, struct rsi_seen *seen)
{
    const struct rouse_thread *whose = NULL;
    if (tid == looker->tid)
        return rsi_ask_self(&looker->regs, &seen->backtrace);
    uint64_t limit = looker->patience_ns > PATIENCE_LEAST_NS ? looker->patience_ns
                                                             : PATIENCE_LEAST_NS;
    if (!rsi_ask(tid, limit, &whose, &seen->backtrace)) {
        looker->patience_ns /= 2;
        seen->is_silent = true;
    }
    return whose;
}

/* The wait record, of a thread that waits. */
RACY static void read_wait(const struct rouse_thread *t, struct rsi_seen *seen)
{
    const struct rsi_wait *record = &t->waiter.record;
    seen->kind = PEEK(&record->kind);
    seen->object = PEEK(&record->object);
    seen->site = PEEK(&record->wait_site);
    seen->deadline_ns = PEEK(&t->waiter.deadline_ns);
    const struct rsi_store_thread *slot =
        PEEK(&record->slot); /* never unmapped while it is a thread's */
    uint64_t since_tsc = slot && PEEK(&slot->doing) == RSI_DOES_WAIT ? PEEK(&slot->since_tsc) : 0;
    seen->since_tsc = rsi_obs_is_current(since_tsc) ? since_tsc : 0;
}

/* A user thread whose stack nobody stands on; on_cpu stays what it is. */
RACY static bool look_still(const struct rouse_thread *t, struct rsi_seen *seen, uint32_t on_cpu)
{
    uint64_t claim = rsi_load_acquire(&t->waiter.claim);
    seen->state = claim & 3 ? RSI_STATE_WAITING : RSI_STATE_RUNNABLE;
    read_wait(t, seen);
    return look_parked(t, seen, on_cpu) && rsi_load_acquire(&t->waiter.claim) == claim;
}

RACY static bool look_user(struct rsi_looker *looker, const struct rouse_thread *t,
                           struct rsi_seen *seen)
{
    uint32_t on_cpu = rsi_load_acquire(&t->waiter.on_cpu); /* pairs with rsi_switch_finish */
    seen->worker = PEEK(&t->waiter.worker_index);
    if (on_cpu != RSI_CPU_RUNS) /* trimming leaves alone what is walked */
        return look_still(t, seen, on_cpu);
    seen->state = RSI_STATE_RUNNING;
    return ask(looker, PEEK(&rsi_rt.workers[seen->worker]->tid), seen) == t;
}

/*
 * The same while t's worker is held, for threads whose turns are shorter than a walk. If the worker runs
 * another thread, it has left t's stack, though it may not have let go of t yet: on_cpu. If it is between
 * two threads, it is let go, and the look is taken again.
 */
RACY static bool look_user_held(struct rsi_looker *looker, const struct rouse_thread *t,
                                struct rsi_seen *seen)
{
    unsigned worker = PEEK(&t->waiter.worker_index);
    int32_t tid = PEEK(&rsi_rt.workers[worker]->tid);
    if (tid == looker->tid)
        return look_user(looker, t, seen);
    rsi_ask_hold();
    const struct rouse_thread *whose = ask(looker, tid, seen);
    uint32_t on_cpu = rsi_load_acquire(&t->waiter.on_cpu);
    bool is_seen = whose == t;
    seen->worker = worker;
    seen->state = RSI_STATE_RUNNING;
    if (!is_seen && !seen->is_silent && (whose || on_cpu != RSI_CPU_RUNS))
        is_seen = look_still(t, seen, on_cpu) && PEEK(&t->waiter.worker_index) == worker;
    rsi_ask_release();
    return is_seen;
}

RACY static bool look_kernel(struct rsi_looker *looker, const struct rouse_thread *t,
                             struct rsi_seen *seen)
{
    bool is_on_cpu = rsi_load_acquire(&t->waiter.on_cpu);
    uint64_t claim = rsi_load_acquire(&t->waiter.claim);
    seen->tid = PEEK(&t->tid);
    seen->state = is_on_cpu   ? RSI_STATE_RUNNING
                  : claim & 3 ? RSI_STATE_WAITING
                              : RSI_STATE_RUNNABLE;
    read_wait(t, seen);
    return ask(looker, seen->tid, seen) == t && rsi_load_acquire(&t->waiter.claim) == claim;
}

RACY static void look_once(struct rsi_looker *looker, const struct rouse_thread *t,
                           struct rsi_seen *seen, bool holds)
{
    memset(seen, 0, offsetof(struct rsi_seen, backtrace));
    seen->id = PEEK(&t->id);
    seen->origin = PEEK(&t->waiter.origin);
    rouse_thread_name(t, seen->name, sizeof seen->name);
    /* The block may become another thread's: id is read first. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (PEEK(&t->waiter.life) == RSI_LIFE_ENDED)
        seen->state = RSI_STATE_ENDED;
    else if (seen->origin == RSI_ORIGIN_USER)
        seen->has_backtrace = holds ? look_user_held(looker, t, seen) : look_user(looker, t, seen);
    else
        seen->has_backtrace = look_kernel(looker, t, seen);
}

bool rsi_look(struct rsi_looker *looker, struct rouse_thread *t, struct rsi_seen *seen)
{
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        /* Pairs with the release in rouse_thread_create. */
        if (rsi_load_acquire(&t->waiter.life) == RSI_LIFE_FREE)
            return false;
        look_once(looker, t, seen, attempt >= ATTEMPTS / 2);
        if (seen->has_backtrace || seen->is_silent || seen->state == RSI_STATE_ENDED)
            break;
    }
    return true;
}
