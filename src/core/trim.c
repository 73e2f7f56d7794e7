/* SPDX-License-Identifier: MIT */
/*
 * trim.c - gives memory of parked threads' stacks back to the kernel.
 *
 * Problem: a thread that once had a deep call stack and then waits for an hour keeps every page that it
 * touched. The memory below its stack pointer is dead, but only until the thread runs again, and it may be
 * woken, picked and run at any moment.
 *
 * A worker that picks a thread waits until on_cpu is 0 (worker.c). The trimmer holds the thread by that word.
 *   trim:  R1 swap on_cpu, 0 -> TRIMMED;   F1 heavy fence;   R2 load claim: still the wait that was seen?
 *          If so give back; then swap on_cpu, TRIMMED -> 0. If not, only the latter.
 *   run:   P1 the claim ends the wait;     F2 light fence (the queue lock's, before the thread is dequeued);
 *          P2 load on_cpu, and wait unless it is 0; P3 store RUNS.
 * P1 is before P2: the thread is published after its claim, and picked after that. The fences have one order.
 * So either P2 sees R1 and waits, or R2 sees P1 and nothing is given back. If R2 finds the wait that was seen
 * before R1, then the thread has been parked since then, because wait numbers never repeat, and it stays
 * parked until on_cpu is 0 again. So its stack pointer is the one that was read, and the block does not
 * belong to another thread. A worker that picked it without seeing R1 overwrites TRIMMED by P3. The last swap
 * then fails and leaves RUNS. The waiter itself may write on_cpu only while it is 0 or RUNS: it does not run.
 * Model: tests/model/trim.pml.
 *
 * Several threads are held at a time, because a heavy fence costs as much as giving back a page. They are
 * few, because a worker that picks one of them waits.
 *
 * Without recording, the only way to know how long a wait has lasted is to have seen it before: each look
 * stores the low bits of the wait's number in the block. One in 256 new waits is mistaken for an old one,
 * which does no harm. Rejected: storing the time in the block at each park. That is one more store and load
 * in a path of 15 ns, for a question that is asked once per minute.
 */
#include "core/core.h"

/* For words that their owner may be writing without atomics. A value counts only if R2 confirms it. */
#define RACY __attribute__((no_sanitize("thread")))
#define PEEK(p) (*(const volatile __typeof__(*(p)) *)(p))
/* a function may keep data this far below its stack pointer (x86-64), at the switch too */
#define RED_ZONE 128

struct held {
    struct rouse_thread *thread;
    uint64_t claim;
    struct iovec unused;
    size_t bytes; /* bytes of unused that are in memory */
};

static struct {
    uint32_t is_busy;
    bool has_marks;
    uint64_t marked_ns; /* when the blocks' marks were set */
} trim;

struct round {
    struct held held[RSI_STACK_DROP_MAX];
    unsigned count;
    bool any_age;
    size_t bytes;
};

static void release(struct rouse_thread *t)
{
    uint32_t expected = RSI_CPU_TRIMMED;
    /* Pairs with the acquires before a thread is run. Fails if the thread was picked before it was held. */
    (void)rsi_cas_release(&t->waiter.on_cpu, &expected, 0u);
}

static void give_back(struct round *round)
{
    struct iovec ranges[RSI_STACK_DROP_MAX];
    unsigned count = 0;
    if (round->count == 0)
        return;
    rsi_fence_heavy(); /* F1 */
    for (unsigned i = 0; i < round->count; i++) {
        const struct held *held = &round->held[i];
        rsi_test_delay();
        if (rsi_load_acquire(&held->thread->waiter.claim) != held->claim) /* R2 */
            continue;
        ranges[count++] = held->unused;
        round->bytes += held->bytes;
    }
    rsi_stack_drop(ranges, count);
    for (unsigned i = 0; i < round->count; i++)
        release(round->held[i].thread);
    round->count = 0;
}

/*
 * Find what could be given back of t, which seems to be parked. The result may be wrong if t has moved on; R2
 * detects that, and stacks are never unmapped.
 */
RACY static bool find_unused(const struct rouse_thread *t, struct held *held)
{
    char *low = PEEK(&t->stack.low), *high = PEEK(&t->stack.high), *sp = PEEK(&t->waiter.ctx.sp);
    if (!low || sp < low || sp > high)
        return false;
    uintptr_t end = ((uintptr_t)sp - RED_ZONE) & ~(uintptr_t)(RSI_PAGE - 1);
    if (end <= (uintptr_t)low)
        return false;
    held->unused = (struct iovec){ low, end - (uintptr_t)low };
    held->bytes = rsi_stack_resident(low, (const char *)end);
    return held->bytes != 0;
}

RACY static void look(struct round *round, struct rouse_thread *t)
{
    struct rsi_waiter *waiter = &t->waiter;
    struct held *held = &round->held[round->count];
    /* Pairs with the release in rouse_thread_create. */
    if (rsi_load_acquire(&waiter->life) != RSI_LIFE_LIVE ||
        PEEK(&waiter->origin) != RSI_ORIGIN_USER)
        return;
    held->thread = t;
    held->claim = rsi_load_acquire(&waiter->claim); /* pairs with rsi_park_prepare */
    if ((held->claim & 3) == 0)
        return;
    uint8_t mark = (uint8_t)(held->claim >> 2);
    bool is_old = waiter->trim_mark == mark;
    waiter->trim_mark = mark;
    uint32_t expected = 0;
    /* Read after the claim: during a wait that is only prepared it is RUNS. Pairs with rsi_switch_finish. */
    if ((!is_old && !round->any_age) || rsi_load_acquire(&waiter->on_cpu) != 0 ||
        !find_unused(t, held))
        return;
    rsi_test_delay();
    if (!rsi_cas_seq_cst(&waiter->on_cpu, &expected, RSI_CPU_TRIMMED)) /* R1 */
        return;
    rsi_test_delay();
    if (++round->count == RSI_STACK_DROP_MAX)
        give_back(round);
}

static size_t trim_threads(uint64_t min_idle_ns)
{
    struct round round = { .any_age = min_idle_ns == 0 };
    if (!round.any_age && trim.has_marks && rsi_now_ns() - trim.marked_ns < min_idle_ns)
        return 0;
    for (unsigned i = 0; i < rsi_slab_count(); i++) {
        const struct rsi_slab *slab = rsi_slab_at(i);
        uint32_t used = rsi_load_acquire(&slab->used); /* pairs with rsi_block_alloc */
        for (uint32_t slot = 0; slot < used; slot++)
            look(&round, rsi_slab_block(slab, slot));
    }
    give_back(&round);
    trim.has_marks = true;
    trim.marked_ns = rsi_now_ns();
    return round.bytes;
}

struct call {
    uint64_t min_idle_ns;
    size_t bytes;
};

static void run(void *value)
{
    struct call *call = value;
    /* Acquire and release order the marks between calls. */
    if (rsi_exchange_acquire(&trim.is_busy, 1u) != 0)
        return;
    call->bytes = trim_threads(call->min_idle_ns) + rsi_stack_trim();
    rsi_store_release(&trim.is_busy, 0u);
}

RSI_NOINLINE size_t rouse_stacks_trim(uint64_t min_idle_ns)
{
    struct call call = { min_idle_ns, 0 };
    if (!rsi_exec_self()->worker || rsi_blocking_run(run, &call, RSI_CALLER()) != 0)
        run(&call);
    return call.bytes;
}

void rsi_trim_child(void)
{
    trim.is_busy = 0;
}
