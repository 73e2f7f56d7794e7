/* SPDX-License-Identifier: MIT */
/*
 * timer.c - the deadlines of user threads: a 4-ary heap a worker, in its section.
 *
 * A deadline is seldom reached: most waits end before. So ending a wait does not touch the heap. A
 * thread has at most one entry that counts, named by its timer_word {worker, generation, about when}; an
 * entry whose generation differs is stale. If the thread waits again on the same worker, with a later deadline, the
 * entry stays; when it comes up and the thread's present deadline is later, it moves there. A keep-alive
 * connection that arms a minute's limit for each request touches the heap once a minute.
 *
 * Nothing is lost: arming and expiring on one worker exclude each other (the section); arming on another
 * worker makes a new generation there. An entry that finds its thread not waiting clears timer_word, so
 * that the next arming inserts. The waiter stores its deadline before its claim word, so whoever sees
 * the claim word of a wait sees that wait's deadline.
 *
 * Stale entries are counted, and swept when they are half of the heap: it stays below twice the threads.
 * Rejected: removing an entry at each wake-up (the heap's moves write to other threads' blocks).
 */
#include "core/core.h"

#include <errno.h>

#define HEAP_MAX (2u * RSI_LIVE_MAX)

/* timer_word: worker index + 1 (0: no entry), generation, and the entry's deadline in units of 16 us,
 * rounded up, so that it can be compared without the entry. One word, so that it never tears. */
#define KEY_BITS 42
#define KEY_SHIFT 14
#define KEY_MASK ((UINT64_C(1) << KEY_BITS) - 1)
#define GENERATION_MASK UINT64_C(0x7ff)
#define OWNER_SHIFT 53
_Static_assert(RSI_WORKERS_MAX < 1 << 11, "owner has 11 bits");

/* A heap entry's second word: the generation above the thread's address. */
#define ADDRESS_BITS 48

static uint64_t owner_of(uint64_t word)
{
    return word >> OWNER_SHIFT;
}

static uint64_t generation_of(uint64_t word)
{
    return word >> KEY_BITS & GENERATION_MASK;
}

static uint64_t key_up(uint64_t deadline_ns)
{
    uint64_t key = (deadline_ns >> KEY_SHIFT) + 1;
    return key < KEY_MASK ? key : KEY_MASK;
}

static uint64_t word_make(uint64_t owner, uint64_t generation, uint64_t deadline_ns)
{
    return owner << OWNER_SHIFT | (generation & GENERATION_MASK) << KEY_BITS | key_up(deadline_ns);
}

static struct rsi_timer entry_make(uint64_t deadline_ns, struct rouse_thread *t, uint64_t word)
{
    return (struct rsi_timer){ deadline_ns, generation_of(word) << ADDRESS_BITS | (uintptr_t)t };
}

static struct rouse_thread *thread_of(const struct rsi_timer *entry)
{
    return (struct rouse_thread *)(uintptr_t)(entry->thread_gen &
                                              ((UINT64_C(1) << ADDRESS_BITS) - 1));
}

/* Whether word, of the entry's thread, names another entry than this one of w, or none. */
static bool is_stale(const struct rsi_worker *w, const struct rsi_timer *entry, uint64_t word)
{
    return owner_of(word) != (uint64_t)w->index + 1 ||
           generation_of(word) != entry->thread_gen >> ADDRESS_BITS;
}

static void stale_add(uint64_t owner, uint32_t count)
{
    rsi_fetch_add_relaxed(&rsi_rt.workers[owner - 1]->heap_stale, count);
}

bool rsi_timer_setup(struct rsi_worker *w)
{
    w->timer_next_ns = UINT64_MAX;
    w->heap = rsi_map((size_t)HEAP_MAX * sizeof *w->heap);
    return w->heap != NULL;
}

static void sift_up(struct rsi_timer *heap, uint32_t at, struct rsi_timer entry)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / 4;
        if (heap[parent].deadline_ns <= entry.deadline_ns)
            break;
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = entry;
}

static void sift_down(struct rsi_timer *heap, uint32_t length, uint32_t at, struct rsi_timer entry)
{
    for (;;) {
        uint32_t child = at * 4 + 1, least = child;
        if (child >= length)
            break;
        uint32_t end = child + 4 < length ? child + 4 : length;
        for (uint32_t i = child + 1; i < end; i++)
            if (heap[i].deadline_ns < heap[least].deadline_ns)
                least = i;
        if (heap[least].deadline_ns >= entry.deadline_ns)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = entry;
}

static void publish_next(struct rsi_worker *w)
{
    rsi_store_relaxed(&w->timer_next_ns, w->heap_length ? w->heap[0].deadline_ns : UINT64_MAX);
}

static void sweep(struct rsi_worker *w)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->heap_length; i++)
        if (!is_stale(w, &w->heap[i], rsi_load_relaxed(&thread_of(&w->heap[i])->timer_word)))
            w->heap[kept++] = w->heap[i];
    w->heap_length = kept;
    rsi_store_relaxed(&w->heap_stale, 0u);
    for (uint32_t i = kept / 4 + 1; i-- > 0;)
        if (i < kept)
            sift_down(w->heap, kept, i, w->heap[i]);
}

void rsi_timer_arm(struct rsi_worker *w, struct rouse_thread *t, uint64_t deadline_ns)
{
    uint64_t word = rsi_load_relaxed(&t->timer_word), owner = owner_of(word);
    uint64_t key = word & KEY_MASK;
    if (owner == (uint64_t)w->index + 1 && key != KEY_MASK && key << KEY_SHIFT <= deadline_ns)
        return;
    if (rsi_load_relaxed(&w->heap_stale) > w->heap_length / 2 + 64 || w->heap_length == HEAP_MAX)
        sweep(w);
    uint64_t fresh = word_make((uint64_t)w->index + 1, generation_of(word) + 1, deadline_ns);
    /* An expiring worker may clear or move the old entry at the same time; then it is not stale. */
    word = rsi_exchange_acq_rel(&t->timer_word, fresh);
    if (owner_of(word))
        stale_add(owner_of(word), 1);
    sift_up(w->heap, w->heap_length++, entry_make(deadline_ns, t, fresh));
    publish_next(w);
}

/* t has ended: its entry, wherever it is, is stale. */
void rsi_timer_forget(struct rouse_thread *t)
{
    uint64_t word = rsi_load_relaxed(&t->timer_word);
    if (rsi_likely(!owner_of(word)))
        return;
    word = rsi_exchange_acq_rel(&t->timer_word, word_make(0, generation_of(word) + 1, 0));
    if (owner_of(word))
        stale_add(owner_of(word), 1);
}

static struct rsi_timer pop(struct rsi_worker *w)
{
    struct rsi_timer first = w->heap[0];
    w->heap_length--;
    if (w->heap_length)
        sift_down(w->heap, w->heap_length, 0, w->heap[w->heap_length]);
    return first;
}

/* The entry has come up and was taken out. True: its thread's wait was ended by it. */
static bool fire(struct rsi_worker *w, struct rsi_timer entry, uint64_t now_ns)
{
    struct rouse_thread *t = thread_of(&entry);
    uint64_t word = rsi_load_relaxed(&t->timer_word);
    uint64_t claim = rsi_load_acquire(&t->waiter.claim); /* pairs with the release in prepare */
    uint64_t deadline = rsi_load_relaxed(&t->waiter.deadline_ns);
    bool waits = (claim & 3) != 0, moves = waits && deadline > now_ns && deadline != ROUSE_FOREVER;
    uint64_t owner = moves ? (uint64_t)w->index + 1 : 0;
    if (is_stale(w, &entry, word) ||
        !rsi_cas_relaxed(&t->timer_word, &word,
                         word_make(owner, generation_of(word), moves ? deadline : 0))) {
        stale_add((uint64_t)w->index + 1, (uint32_t)-1);
        return false;
    }
    if (moves) {
        sift_up(w->heap, w->heap_length++, (struct rsi_timer){ deadline, entry.thread_gen });
        return false;
    }
    return waits && deadline <= now_ns && rsi_park_claim(t, claim, -ETIMEDOUT, NULL);
}

/* End the waits that are due. Returns their threads, linked by queue_link, in order of deadline. */
struct rouse_thread *rsi_timer_expire(struct rsi_worker *w, uint64_t now_ns)
{
    struct rouse_thread *first = NULL, **last = &first;
    while (w->heap_length && w->heap[0].deadline_ns <= now_ns) {
        struct rsi_timer entry = pop(w);
        if (!fire(w, entry, now_ns))
            continue;
        *last = thread_of(&entry);
        last = &(*last)->queue_link;
    }
    *last = NULL;
    publish_next(w);
    return first;
}
