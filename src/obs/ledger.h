/* SPDX-License-Identifier: MIT */
/*
 * ledger.h - what one kernel thread counts in the shared file: its threads' slots, its wake-ups, its locks.
 *
 * A writer belongs to one kernel thread at a time, and only that one calls what is here with it, but where it is
 * said. Nothing here blocks, but for the few microseconds of asking for memory.
 */
#ifndef RSI_OBS_LEDGER_H
#define RSI_OBS_LEDGER_H

#include "obs/file.h"

/*
 * Entries of one kind, found by hash; the table is the process's own, the entries lie in the file. A word of it is an
 * entry's address and, above that, the upper bits of its hash: who looks for one reads no line of others.
 */
struct rsi_index {
    uint64_t *table; /* NULL: no entry yet */
    uint32_t mask, count;
    bool is_full;                  /* there was no room for an entry */
    struct rsi_store_chunk *chunk; /* where the next entry comes from */
};

struct rsi_writer {
    struct rsi_store_writer *shared;
    uint32_t index;
    uint32_t chunk_pages; /* of a chunk of entries: few for those that have little to say */
    struct rsi_index wakes, locks;
    struct rsi_store_chunk *threads;   /* whence the next slot comes */
    struct rsi_store_thread *free;     /* slots, linked through begin_tsc */
    struct rsi_store_chunk *listeners; /* the interposer's; NULL: none yet */
    struct rsi_store_chunk *ring;      /* of events; NULL: none yet, or no room for one */
    uint32_t ring_next;                /* its entry for the next */
    bool is_ringless;                  /* there was no room */
    struct rsi_walker *walker;         /* NULL until it walks: walk.c */
    uintptr_t stack_low, stack_high;   /* of its kernel thread, once that has walked on it */
    struct rsi_writer *next;           /* of those that nobody has */
};

/*
 * name: that of the entry, 0 for none; an object that was initialised anew elsewhere has another. ANY: whatever it has,
 * since an object has one name all its life; it is read where the entry is made.
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

/* What each enum rouse_wait_kind is counted as, and whether its object tells entries apart. */
struct rsi_wait_class {
    uint8_t micro; /* enum rsi_micro */
    bool has_object;
};
extern const struct rsi_wait_class rsi_wait_classes[RSI_STORE_WAIT_KINDS];

/* One that nobody has; NULL: no memory. Any thread. */
struct rsi_writer *rsi_writer_take(bool is_worker, int32_t tid);
/* Its kernel thread ends. */
void rsi_writer_give(struct rsi_writer *writer);
/* In a child after fork: there are none. */
void rsi_writers_child(void);

/* A slot for a thread, all zero; NULL: none is left. */
struct rsi_store_thread *rsi_writer_slot(struct rsi_writer *writer);
/* Its thread has ended: its time goes to the writer's totals. */
void rsi_writer_slot_end(struct rsi_writer *writer, struct rsi_store_thread *slot);

/*
 * The entry of a key, made if there is none; NULL: no room, which the caller counts. name: where the address of the
 * object's name stands, if the key leaves that open; read once, when the entry is made, even if the object is there no
 * more; NULL: it has none.
 */
struct rsi_store_wake *rsi_writer_wake(struct rsi_writer *writer, const struct rsi_wake_key *key,
                                       const char *const *name);
/* The same where it is likely to be there, and first in its place; else NULL. */
RSI_INLINE struct rsi_store_wake *rsi_writer_wake_there(const struct rsi_writer *writer,
                                                        const struct rsi_wake_key *key);
struct rsi_store_lock *rsi_writer_lock(struct rsi_writer *writer, const struct rsi_lock_key *key,
                                       const char *const *name);

/* A name without a text for what was initialised at a site; 0: no room, which is counted. */
uint32_t rsi_writer_origin(struct rsi_writer *writer, uint64_t site);

/* Words of the file are read by other processes at any time: written whole. One writer: no locked instruction. */
#define rsi_count(word, by) rsi_store_relaxed(&(word), rsi_load_relaxed(&(word)) + (by))
#define rsi_count_most(word, value) \
    ((value) > rsi_load_relaxed(&(word)) ? rsi_store_relaxed(&(word), (value)) : (void)0)

/* What a reader sees of a slot's words that are written between is of one moment, or it sees that they change. */
RSI_INLINE void rsi_slot_change(struct rsi_store_thread *slot)
{
    rsi_store_relaxed(&slot->seq, slot->seq + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with the reader's second look at seq */
}

RSI_INLINE void rsi_slot_changed(struct rsi_store_thread *slot)
{
    rsi_store_release(&slot->seq, slot->seq + 1); /* pairs with the reader's first */
}

/* A wait is over: in the entry of its wake-up. */
RSI_INLINE void rsi_wake_count(struct rsi_store_wake *wake, uint32_t verdict, uint64_t waited,
                               uint64_t late)
{
    rsi_count(wake->count[verdict], 1);
    rsi_count(wake->wait_ticks, waited);
    rsi_count_most(wake->wait_most, waited);
    rsi_count(wake->late_ticks, late);
    rsi_count_most(wake->late_most, late);
}

/* Of the low bits. A bit of h reaches those of the product above it only: those that differ must stand below 32. */
RSI_INLINE uint32_t rsi_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a ^ (b << 21 | b >> 43) ^ (c << 11 | c >> 53);
    return (uint32_t)((h * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

#define RSI_INDEX_ADDRESS \
    ((UINT64_C(1) << 48) - 1) /* no address of a program is longer unless it asks for one */
RSI_INLINE uint64_t rsi_index_word(const void *entry, uint32_t hash)
{
    return (uintptr_t)entry | (uint64_t)hash >> 16 << 48;
}

/* What a word of hash leads to; NULL: it is none of that hash. */
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

/* How full a histogram's power of two is: floor(log2(value)), 0 for 0, at most most. */
RSI_INLINE unsigned rsi_log2(uint64_t value, unsigned most)
{
    unsigned bits = value ? 63u - (unsigned)__builtin_clzll(value) : 0;
    return bits < most ? bits : most;
}

#endif
