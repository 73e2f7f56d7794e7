/* SPDX-License-Identifier: MIT */
/*
 * ledger.h - the entries of the shared file that one kernel thread writes: slots of threads, wake-ups, locks.
 *
 * src/core/account.c (the runtime) and preload/record/ (the interposer) count waits through these calls; readers
 * are listed in store.h. A writer belongs to one kernel thread at a time, and only that thread makes these calls
 * with it, unless noted. No call blocks, except for the few microseconds of allocating memory.
 */
#ifndef RSI_OBS_LEDGER_H
#define RSI_OBS_LEDGER_H

#include "obs/cpu_time.h"
#include "obs/file.h"

/*
 * Entries of one kind, found by hash. The table belongs to the process; the entries are in the file. A word of the
 * table is the address of an entry and, above it, the upper bits of its hash, so that a lookup does not read the
 * cache lines of other entries.
 */
struct rsi_index {
    uint64_t *table; /* NULL: no entry yet */
    uint32_t mask, count;
    bool is_full;                  /* an entry found no room */
    struct rsi_store_chunk *chunk; /* where the next entry comes from */
};

struct rsi_writer {
    struct rsi_store_writer *shared;
    uint32_t index;
    uint32_t chunk_pages; /* pages per chunk of entries: few for threads that record little */
    struct rsi_index wakes, locks;
    struct rsi_index groups;           /* of user threads that ended here */
    struct rsi_store_group *group;     /* the last one that was found; NULL: none yet */
    struct rsi_store_chunk *threads;   /* where the next slot comes from */
    struct rsi_store_thread *free;     /* slots, linked through begin_tsc */
    struct rsi_store_chunk *listeners; /* written by the interposer; NULL: none yet */
    struct rsi_store_chunk *ring;      /* of events; NULL: none yet, or there was no room */
    uint32_t ring_next;                /* index of its next entry */
    bool is_ringless;                  /* there was no room for a ring */
    struct rsi_walker *walker;         /* NULL before the first stack walk; walk.c */
    uintptr_t stack_low, stack_high;   /* of the stack of its kernel thread, once it was walked */
    struct rsi_writer *next;           /* next unused writer */
};

/*
 * name: the name of the entry, 0 for none; an object that was initialized again elsewhere has another. ANY:
 * whichever the object has, since its name never changes; it is read when the entry is created.
 */
#define RSI_NAME_ANY UINT32_MAX

struct rsi_wake_key {
    uint64_t wait_site, wake_site, object;
    uint32_t kind, name;
};

struct rsi_lock_key {
    uint64_t lock, site, holder_site;
    uint32_t kind, name;
};

/* The state that each wait kind counts as, and whether its entries are separate per object. */
struct rsi_wait_class {
    uint8_t micro; /* enum rsi_micro */
    bool has_object;
};
extern const struct rsi_wait_class rsi_wait_classes[RSI_STORE_WAIT_KINDS];

/* Get an unused writer; NULL: no memory. Any thread. */
struct rsi_writer *rsi_writer_take(bool is_worker, int32_t tid);
/* Return the writer when its kernel thread ends. */
void rsi_writer_give(struct rsi_writer *writer);
/* Forget all writers, in a child after fork. */
void rsi_writers_child(void);
/* Release the locks alone, where the child's thread goes on in this module. */
void rsi_writers_child_locks(void);

/* Get a slot for a thread, all zero; NULL: no room. */
struct rsi_store_thread *rsi_writer_slot(struct rsi_writer *writer);
/*
 * Free a slot when its thread ends, now; its times are added to the group of its name. A kernel thread calls this
 * itself.
 */
void rsi_writer_slot_end(struct rsi_writer *writer, struct rsi_store_thread *slot,
                         uint64_t now_tsc);
/*
 * The kernel thread is recorded from begin_tsc on, when the kernel had these figures of it. Not called: since it began.
 */
void rsi_writer_begin(struct rsi_writer *writer, uint64_t begin_tsc,
                      const struct rsi_cpu_time *spent);

/*
 * Find or create the entry of a key; NULL: no room, which the caller counts. name: where the address of the
 * object's name is, if the key leaves the name open; NULL: the object has none. It is read once, when the entry is
 * created, and safely even if the object is already gone.
 */
struct rsi_store_wake *rsi_writer_wake(struct rsi_writer *writer, const struct rsi_wake_key *key,
                                       const char *const *name);
/*
 * The same, but returns the entry only if it is found at the first place of the table; otherwise NULL.
 */
RSI_INLINE struct rsi_store_wake *rsi_writer_wake_there(const struct rsi_writer *writer,
                                                        const struct rsi_wake_key *key);
struct rsi_store_lock *rsi_writer_lock(struct rsi_writer *writer, const struct rsi_lock_key *key,
                                       const char *const *name);

/*
 * Create a name without text, for objects that were initialized at a site; 0: no room, which is counted.
 */
uint32_t rsi_writer_origin(struct rsi_writer *writer, uint64_t site);

/* Create a name with this text, truncated, for requests; 0: no room, which is counted. */
uint32_t rsi_writer_label(struct rsi_writer *writer, const char *text);

/*
 * Other processes may read the words of the file at any time, so each is written whole. There is one writer, so no
 * locked instruction is needed.
 */
#define rsi_count(word, by) rsi_store_relaxed(&(word), rsi_load_relaxed(&(word)) + (by))
#define rsi_count_most(word, value) \
    ((value) > rsi_load_relaxed(&(word)) ? rsi_store_relaxed(&(word), (value)) : (void)0)

/*
 * Words of a slot that are written between these two calls are consistent for a reader, or it sees that they are
 * changing. change returns what changed takes, so that seq is read once.
 */
RSI_INLINE uint32_t rsi_slot_change(struct rsi_store_thread *slot)
{
    uint32_t seq = slot->seq + 1;
    rsi_store_relaxed(&slot->seq, seq);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with the reader's second load of seq */
    return seq;
}

RSI_INLINE void rsi_slot_changed(struct rsi_store_thread *slot, uint32_t seq)
{
    rsi_store_release(&slot->seq, seq + 1); /* pairs with the reader's first load of seq */
}

/* Add the times of a wait that has ended to the entry of its wake-up. */
RSI_INLINE void rsi_wake_time(struct rsi_store_wake *wake, uint64_t waited, uint64_t late)
{
    rsi_count(wake->wait_ticks, waited);
    rsi_count_most(wake->wait_most, waited);
    rsi_count(wake->late_ticks, late);
    rsi_count_most(wake->late_most, late);
}

/* Count such a wait, too. */
RSI_INLINE void rsi_wake_count(struct rsi_store_wake *wake, uint32_t verdict, uint64_t waited,
                               uint64_t late)
{
    rsi_count(wake->count[verdict], 1);
    rsi_wake_time(wake, waited, late);
}

/*
 * Hash, from the upper half of a product. A bit of h affects only the product bits above it, so the bits that
 * differ between keys must be below bit 32.
 */
RSI_INLINE uint32_t rsi_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a ^ (b << 21 | b >> 43) ^ (c << 11 | c >> 53);
    return (uint32_t)((h * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

#define RSI_INDEX_ADDRESS \
    ((UINT64_C(1) << 48) - 1) /* user addresses are no longer, unless a program asks for that */
RSI_INLINE uint64_t rsi_index_word(const void *entry, uint32_t hash)
{
    return (uintptr_t)entry | (uint64_t)hash >> 16 << 48;
}

/* The entry of a table word; NULL: its hash differs. */
RSI_INLINE void *rsi_index_entry(uint64_t word, uint32_t hash)
{
    return rsi_likely(word >> 48 == hash >> 16) ? (void *)(uintptr_t)(word & RSI_INDEX_ADDRESS)
                                                : NULL;
}

RSI_INLINE uint32_t rsi_wake_hash(const struct rsi_wake_key *key)
{
    return rsi_hash(key->wait_site, key->wake_site, key->object + key->kind);
}

RSI_INLINE bool rsi_wake_is_of(const struct rsi_store_wake *wake, const struct rsi_wake_key *key)
{
    return wake->wait_site == key->wait_site && wake->wake_site == key->wake_site &&
           wake->object == key->object && wake->kind == key->kind;
}

RSI_INLINE struct rsi_store_wake *rsi_writer_wake_there(const struct rsi_writer *writer,
                                                        const struct rsi_wake_key *key)
{
    if (rsi_unlikely(!writer->wakes.table))
        return NULL;
    uint32_t hash = rsi_wake_hash(key);
    struct rsi_store_wake *wake =
        rsi_index_entry(writer->wakes.table[hash & writer->wakes.mask], hash);
    return rsi_likely(wake && rsi_wake_is_of(wake, key)) ? wake : NULL;
}

/* The index in a histogram by powers of two: floor(log2(value)), 0 for 0, at most `most`. */
RSI_INLINE unsigned rsi_log2(uint64_t value, unsigned most)
{
    unsigned bits = value ? 63u - (unsigned)__builtin_clzll(value) : 0;
    return bits < most ? bits : most;
}

#endif
