/* SPDX-License-Identifier: MIT */
/*
 * timer.c - the deadlines of user threads. Each worker has four sorted lanes and a 4-ary heap, under its
 * queue lock.
 *
 * Most deadlines of a program are now plus a constant, for a few values of the constant, and those of each
 * value are created in order. A lane is a ring of entries in order of deadline. A deadline that is not before
 * the last one of some lane is appended to such a lane, the one with the nearest last; if there is none it
 * goes into the heap. To arm and expire in a lane touches two cache lines that were touched just before. The
 * heap's log n lines and branches cost 100 ns with 10,000 entries. A lane also shows which threads are next,
 * so that their blocks can be prefetched. One pass takes due entries from lanes and heap in order of
 * deadline.
 *
 * Few deadlines are reached: most waits end earlier. So the end of a wait does not touch the heap. A thread
 * has at most one valid entry, named by its timer_word {worker, generation, approximate time}. An entry with
 * a different generation is stale. If the thread waits again on the same worker, with a later deadline, the
 * entry stays. When it comes up and the thread's current deadline is later, it moves there. A keep-alive
 * connection that sets a limit of one minute for each request touches the heap once a minute.
 *
 * Nothing is lost: arming and expiring on one worker exclude each other (the queue lock), and arming on
 * another worker makes a new generation there. An entry that finds its thread not waiting clears timer_word,
 * so that the next arming inserts a new one. The waiter stores its deadline before its claim word, so a
 * reader that sees the claim word of a wait also sees that wait's deadline.
 *
 * Stale entries are counted, and swept when they are half of all entries. So entries stay below twice the
 * number of threads. Rejected: removing an entry at each wake-up (the heap's moves write to other threads'
 * blocks).
 */
#include "core/core.h"

#include <errno.h>

#define AHEAD 8 /* blocks are prefetched this many entries before they fire */
#define LANE_FIRST 256u

/*
 * timer_word: worker index + 1 (0: no entry), generation, and the entry's deadline in units of 16 us, rounded
 * up, so that it can be compared without reading the entry. It is one word, so that it never tears.
 */
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

/* Whether word, the timer_word of the entry's thread, names another entry than this one of w, or none. */
static bool is_stale(const struct rsi_worker *w, const struct rsi_timer *entry, uint64_t word)
{
    return owner_of(word) != (uint64_t)w->index + 1 ||
           generation_of(word) != entry->thread_gen >> ADDRESS_BITS;
}

static void stale_add(uint64_t owner, uint32_t count)
{
    rsi_fetch_add_relaxed(&rsi_rt.workers[owner - 1]->timer_stale, count);
}

static void lane_reset(struct rsi_timer_lane *lane)
{
    lane->first_ns = UINT64_MAX;
    lane->last_ns = 0;
    lane->head = lane->tail = 0;
}

void rsi_timer_reset(struct rsi_worker *w)
{
    w->heap_length = w->timer_count = w->timer_stale = 0;
    w->timer_next_ns = UINT64_MAX;
    for (unsigned i = 0; i < RSI_TIMER_LANES; i++)
        lane_reset(&w->lanes[i]);
}

bool rsi_timer_setup(struct rsi_worker *w)
{
    w->heap = rsi_map(RSI_HEAP_BYTES);
    if (!w->heap)
        return false;
    /* A separate mapping, because Valgrind warns about mappings of 256 MiB and more. */
    struct rsi_timer *rings = rsi_map(RSI_LANES_BYTES);
    if (!rings) {
        rsi_unmap(w->heap, RSI_HEAP_BYTES);
        w->heap = NULL;
        return false;
    }
    for (unsigned i = 0; i < RSI_TIMER_LANES; i++) {
        w->lanes[i].ring = rings + (size_t)i * RSI_LANE_MAX;
        w->lanes[i].mask = LANE_FIRST - 1;
    }
    rsi_timer_reset(w);
    return true;
}

/* Double the capacity, if allowed. Entries whose position has changed move to the new half. */
static bool lane_grow(struct rsi_timer_lane *lane)
{
    uint32_t mask = lane->mask * 2 + 1;
    if (mask >= RSI_LANE_MAX)
        return false;
    for (uint32_t i = lane->head; i != lane->tail; i++)
        lane->ring[i & mask] = lane->ring[i & lane->mask];
    lane->mask = mask;
    return true;
}

static bool lane_push(struct rsi_worker *w, struct rsi_timer entry)
{
    struct rsi_timer_lane *best = NULL;
    for (struct rsi_timer_lane *lane = w->lanes; lane < w->lanes + RSI_TIMER_LANES; lane++)
        if (lane->last_ns <= entry.deadline_ns && (!best || lane->last_ns > best->last_ns))
            best = lane;
    if (!best || (best->tail - best->head > best->mask && !lane_grow(best)))
        return false;
    if (best->head == best->tail)
        best->first_ns = entry.deadline_ns;
    best->last_ns = entry.deadline_ns;
    best->ring[best->tail++ & best->mask] = entry;
    return true;
}

static struct rsi_timer lane_pop(struct rsi_timer_lane *lane)
{
    struct rsi_timer entry = lane->ring[lane->head++ & lane->mask];
    if (lane->head == lane->tail)
        lane_reset(lane);
    else
        lane->first_ns = lane->ring[lane->head & lane->mask].deadline_ns;
    return entry;
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

/* The lane whose first entry is the earliest of all, and that deadline in *deadline_ns. NULL: the heap. */
static struct rsi_timer_lane *first_of(struct rsi_worker *w, uint64_t *deadline_ns)
{
    struct rsi_timer_lane *first = NULL;
    uint64_t least = w->heap_length ? w->heap[0].deadline_ns : UINT64_MAX;
    for (struct rsi_timer_lane *lane = w->lanes; lane < w->lanes + RSI_TIMER_LANES; lane++)
        if (lane->first_ns < least) {
            least = lane->first_ns;
            first = lane;
        }
    *deadline_ns = least;
    return first;
}

static void insert(struct rsi_worker *w, struct rsi_timer entry)
{
    w->timer_count++;
    if (!lane_push(w, entry))
        sift_up(w->heap, w->heap_length++, entry);
    if (entry.deadline_ns < w->timer_next_ns)
        rsi_store_relaxed(&w->timer_next_ns, entry.deadline_ns);
}

static bool counts(const struct rsi_worker *w, const struct rsi_timer *entry)
{
    return !is_stale(w, entry, rsi_load_relaxed(&thread_of(entry)->timer_word));
}

static void lane_sweep(struct rsi_worker *w, struct rsi_timer_lane *lane)
{
    uint32_t kept = lane->head;
    for (uint32_t i = lane->head; i != lane->tail; i++)
        if (counts(w, &lane->ring[i & lane->mask]))
            lane->ring[kept++ & lane->mask] = lane->ring[i & lane->mask];
    lane->tail = kept;
    if (lane->head == kept) {
        lane_reset(lane);
        return;
    }
    lane->first_ns = lane->ring[lane->head & lane->mask].deadline_ns;
    lane->last_ns = lane->ring[(kept - 1) & lane->mask].deadline_ns;
}

static void sweep(struct rsi_worker *w)
{
    uint32_t kept = 0;
    uint64_t next_ns;
    for (uint32_t i = 0; i < w->heap_length; i++)
        if (counts(w, &w->heap[i]))
            w->heap[kept++] = w->heap[i];
    w->heap_length = w->timer_count = kept;
    for (uint32_t i = kept / 4 + 1; i-- > 0;)
        if (i < kept)
            sift_down(w->heap, kept, i, w->heap[i]);
    for (unsigned i = 0; i < RSI_TIMER_LANES; i++) {
        lane_sweep(w, &w->lanes[i]);
        w->timer_count += w->lanes[i].tail - w->lanes[i].head;
    }
    rsi_store_relaxed(&w->timer_stale, 0u);
    first_of(w, &next_ns);
    rsi_store_relaxed(&w->timer_next_ns, next_ns);
}

void rsi_timer_arm(struct rsi_worker *w, struct rouse_thread *t, uint64_t deadline_ns)
{
    uint64_t word = rsi_load_relaxed(&t->timer_word), owner = owner_of(word);
    uint64_t key = word & KEY_MASK;
    if (owner == (uint64_t)w->index + 1 && key != KEY_MASK && key << KEY_SHIFT <= deadline_ns)
        return;
    if (rsi_load_relaxed(&w->timer_stale) > w->timer_count / 2 + 64 ||
        w->timer_count == RSI_HEAP_MAX)
        sweep(w);
    uint64_t fresh = word_make((uint64_t)w->index + 1, generation_of(word) + 1, deadline_ns);
    /* An expiring worker may clear or move the old entry at the same time. Then it is not stale. */
    word = rsi_exchange_acq_rel(&t->timer_word, fresh);
    if (owner_of(word))
        stale_add(owner_of(word), 1);
    insert(w, entry_make(deadline_ns, t, fresh));
}

/* t has ended: its entry becomes stale, on whichever worker it is. */
void rsi_timer_forget(struct rouse_thread *t)
{
    uint64_t word = rsi_load_relaxed(&t->timer_word);
    if (rsi_likely(!owner_of(word)))
        return;
    word = rsi_exchange_acq_rel(&t->timer_word, word_make(0, generation_of(word) + 1, 0));
    if (owner_of(word))
        stale_add(owner_of(word), 1);
}

static struct rsi_timer heap_pop(struct rsi_worker *w)
{
    struct rsi_timer first = w->heap[0];
    w->heap_length--;
    if (w->heap_length)
        sift_down(w->heap, w->heap_length, 0, w->heap[w->heap_length]);
    return first;
}

uint32_t rsi_timer_take(struct rsi_worker *w, struct rsi_timer *entries, uint32_t most)
{
    uint32_t count = 0;
    uint64_t next_ns;
    for (; count < most && w->timer_count != 0; w->timer_count--) {
        struct rsi_timer_lane *lane = first_of(w, &next_ns);
        entries[count++] = lane ? lane_pop(lane) : heap_pop(w);
    }
    first_of(w, &next_ns);
    rsi_store_relaxed(&w->timer_next_ns, next_ns);
    return count;
}

void rsi_timer_adopt(struct rsi_worker *w, const struct rsi_worker *from,
                     const struct rsi_timer *entries, uint32_t count)
{
    if (w->timer_count > RSI_HEAP_MAX - count)
        sweep(w);
    for (uint32_t i = 0; i < count; i++) {
        struct rouse_thread *t = thread_of(&entries[i]);
        uint64_t word = rsi_load_relaxed(&t->timer_word);
        uint64_t fresh =
            word_make((uint64_t)w->index + 1, generation_of(word), entries[i].deadline_ns);
        /* If it is armed elsewhere at the same time, that arming wins. */
        if (!is_stale(from, &entries[i], word) && rsi_cas_relaxed(&t->timer_word, &word, fresh))
            insert(w, entries[i]);
    }
}

/*
 * Prefetch the block of an entry that comes up soon. The address may be arbitrary, since a prefetch cannot
 * fail.
 */
static void fetch(const struct rsi_timer_lane *lane, uint32_t ahead)
{
    uintptr_t block = (uintptr_t)thread_of(&lane->ring[(lane->head + ahead) & lane->mask]);
    for (size_t at = 0; at < sizeof(struct rouse_thread); at += RSI_CACHE_LINE)
        /* Arithmetic on integers: block may be NULL. NOLINTNEXTLINE(performance-no-int-to-ptr) */
        __builtin_prefetch((const void *)(block + at), 1);
}

/* The entry has come up and was removed. True: this ended its thread's wait. */
static bool fire(struct rsi_worker *w, struct rsi_timer entry, uint64_t now_ns)
{
    struct rouse_thread *t = thread_of(&entry);
    uint64_t word = rsi_load_relaxed(&t->timer_word);
    uint64_t claim = rsi_load_acquire(&t->waiter.claim); /* pairs with the release in prepare */
    uint64_t deadline = rsi_load_relaxed(&t->waiter.deadline_ns);
    bool waits = (claim & 3) != 0;
    /* Also if that deadline is due: the thread runs after those with earlier deadlines. */
    bool moves = waits && deadline > entry.deadline_ns && deadline != ROUSE_FOREVER;
    uint64_t owner = moves ? (uint64_t)w->index + 1 : 0;
    if (is_stale(w, &entry, word) ||
        !rsi_cas_relaxed(&t->timer_word, &word,
                         word_make(owner, generation_of(word), moves ? deadline : 0))) {
        stale_add((uint64_t)w->index + 1, (uint32_t)-1);
        return false;
    }
    if (moves) {
        insert(w, (struct rsi_timer){ deadline, entry.thread_gen });
        return false;
    }
    if (!waits || deadline > now_ns || !rsi_park_claim(t, claim, -ETIMEDOUT, NULL))
        return false;
    if (rsi_unlikely(rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF))
        rsi_account_lateness(now_ns - deadline);
    return true;
}

/* End the waits that are due. Returns their threads, linked through queue_link, in order of deadline. */
struct rouse_thread *rsi_timer_expire(struct rsi_worker *w, uint64_t now_ns)
{
    struct rouse_thread *first = NULL, **last = &first;
    struct rsi_timer_lane *lane;
    uint64_t next_ns;
    while (lane = first_of(w, &next_ns), next_ns <= now_ns) {
        if (lane)
            fetch(lane, AHEAD);
        struct rsi_timer entry = lane ? lane_pop(lane) : heap_pop(w);
        w->timer_count--;
        if (!fire(w, entry, now_ns))
            continue;
        *last = thread_of(&entry);
        last = &(*last)->queue_link;
    }
    *last = NULL;
    rsi_store_relaxed(&w->timer_next_ns, next_ns);
    return first;
}
