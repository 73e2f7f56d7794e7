/* SPDX-License-Identifier: MIT */
/*
 * ledger.c - writers, their slots for threads, and their entries by key.
 *
 * Each kernel thread counts in its own entries: no locked instruction, and no cache line with two writers. Readers
 * add up the writers. Rejected: one hash table in the file for all. Each of the five words of a wake-up would need
 * an atomic addition, on a cache line that all workers write.
 */
#include "obs/ledger.h"

#include "obs/module.h"
#include "os/os.h"

#include <rouse/obs.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/uio.h>

#define INDEX_FIRST (RSI_PAGE / sizeof(uint64_t)) /* entries of the first table */
#define WORKER_PAGES 4u                           /* pages per chunk */
#define KERNEL_PAGES 1u
#define THREADS_PAGES 16u

static struct {
    uint32_t lock; /* rsi_own_lock; held while memory is allocated */
    struct rsi_writer *free;
    struct rsi_store_chunk *writers, *names; /* where the next entry comes from */
    struct rsi_index groups;                 /* of kernel threads */
    uint32_t writer_count, name_count;
} ledger;

const struct rsi_wait_class rsi_wait_classes[RSI_STORE_WAIT_KINDS] = {
    [ROUSE_WAIT_NONE] = { RSI_IN_LAT, false },
    [ROUSE_WAIT_MUTEX] = { RSI_IN_MUTEX, true },
    [ROUSE_WAIT_READ_LOCK] = { RSI_IN_RWLOCK, true },
    [ROUSE_WAIT_WRITE_LOCK] = { RSI_IN_RWLOCK, true },
    [ROUSE_WAIT_COND] = { RSI_IN_COND, true },
    [ROUSE_WAIT_SEM] = { RSI_IN_SEM, true },
    [ROUSE_WAIT_BARRIER] = { RSI_IN_JOIN, true },
    [ROUSE_WAIT_ONCE] = { RSI_IN_JOIN, false },
    [ROUSE_WAIT_JOIN] = { RSI_IN_JOIN, false },
    [ROUSE_WAIT_SLEEP] = { RSI_IN_SLEEP, false },
    [ROUSE_WAIT_READ] = { RSI_IN_IO, false },
    [ROUSE_WAIT_WRITE] = { RSI_IN_IO, false },
    [ROUSE_WAIT_ACCEPT] = { RSI_IN_ACCEPT, false },
    [ROUSE_WAIT_CONNECT] = { RSI_IN_IO, false },
    [ROUSE_WAIT_BLOCKING] = { RSI_IN_IO, false },
    [ROUSE_WAIT_SET] = { RSI_IN_POLL, false },
    [ROUSE_WAIT_POLL] = { RSI_IN_POLL, false },
    [RSI_STORE_WAIT_FUTEX] = { RSI_IN_SEM, true },
    [RSI_STORE_WAIT_CHILD] = { RSI_IN_JOIN, false },
    [RSI_STORE_WAIT_FILE_LOCK] = { RSI_IN_MUTEX, false },
    [RSI_STORE_WAIT_SIGNAL] = { RSI_IN_POLL, false },
    [RSI_STORE_WAIT_SET_OF_SEMS] = { RSI_IN_SEM, false },
    [RSI_STORE_WAIT_MESSAGE] = { RSI_IN_IO, false },
    [RSI_STORE_WAIT_SYNC] = { RSI_IN_IO, false },
};
_Static_assert(ROUSE_WAIT_KINDS == RSI_STORE_WAIT_FUTEX,
               "the kinds of the file follow the public ones");
_Static_assert(RSI_STORE_WAIT_SYNC < RSI_STORE_WAIT_KINDS, "a writer has room for every kind");

/* Under the lock: allocate an entry of a chunk that all writers share. */
static void *shared_next_locked(struct rsi_store_chunk **chunk, enum rsi_store_kind kind,
                                size_t entry_bytes, unsigned pages)
{
    void *entry = rsi_chunk_next(*chunk);
    if (!entry) {
        struct rsi_store_chunk *fresh = rsi_file_chunk(kind, entry_bytes, pages, UINT32_MAX);
        if (!fresh)
            return NULL;
        *chunk = fresh;
        entry = rsi_chunk_next(fresh);
    }
    return entry;
}

static struct rsi_writer *writer_new_locked(void)
{
    struct rsi_writer *writer = rsi_map(sizeof *writer);
    if (!writer)
        return NULL;
    writer->shared = shared_next_locked(&ledger.writers, RSI_STORE_WRITERS,
                                        sizeof(struct rsi_store_writer), WORKER_PAGES);
    if (!writer->shared) {
        rsi_unmap(writer, sizeof *writer);
        return NULL;
    }
    writer->index = writer->shared->index = ledger.writer_count++;
    writer->shared->begin_tsc = rsi_tsc();
    rsi_chunk_add(ledger.writers);
    return writer;
}

struct rsi_writer *rsi_writer_take(bool is_worker, int32_t tid)
{
    rsi_own_lock(&ledger.lock);
    struct rsi_writer *writer = ledger.free;
    if (writer)
        ledger.free = writer->next;
    else
        writer = writer_new_locked();
    rsi_own_unlock(&ledger.lock);
    if (!writer)
        return NULL;
    writer->stack_low = writer->stack_high = 0;
    writer->chunk_pages = is_worker ? WORKER_PAGES : KERNEL_PAGES;
    rsi_store_relaxed(&writer->shared->is_worker, (uint32_t)is_worker);
    rsi_store_relaxed(&writer->shared->tid, tid);
    rsi_store_relaxed(&writer->shared->end_tsc, UINT64_C(0));
    rsi_store_relaxed(&writer->shared->taken_tsc, rsi_tsc());
    rsi_store_relaxed(&writer->shared->begin_cpu_ns, UINT64_C(0));
    rsi_store_relaxed(&writer->shared->begin_queue_ns, UINT64_C(0));
    rsi_store_release(&writer->shared->is_live, 1u); /* pairs with rsi_cpu_time_note */
    /*
     * Record the program itself now, since most waits in progress are its own. Other modules are recorded with
     * their first entry.
     */
    rsi_module_note(writer, getauxval(AT_ENTRY));
    return writer;
}

void rsi_writer_give(struct rsi_writer *writer)
{
    rsi_store_relaxed(&writer->shared->idle_since_tsc, UINT64_C(0));
    rsi_store_relaxed(&writer->shared->end_tsc, rsi_tsc());
    rsi_store_relaxed(&writer->shared->is_live, 0u);
    rsi_own_lock(&ledger.lock);
    writer->next = ledger.free;
    ledger.free = writer;
    rsi_own_unlock(&ledger.lock);
}

void rsi_writers_child_locks(void)
{
    rsi_store_relaxed(&ledger.lock, 0u);
}

void rsi_writers_child(void)
{
    memset(&ledger, 0, sizeof ledger);
    rsi_writers_child_locks();
    rsi_modules_child();
}

struct rsi_store_thread *rsi_writer_slot(struct rsi_writer *writer)
{
    struct rsi_store_thread *slot = writer->free;
    if (slot) {
        writer->free = (struct rsi_store_thread *)(uintptr_t)slot->begin_tsc;
        rsi_store_relaxed(&slot->begin_tsc, UINT64_C(0));
        return slot;
    }
    slot = rsi_chunk_next(writer->threads);
    if (!slot) {
        unsigned pages = writer->chunk_pages == KERNEL_PAGES ? KERNEL_PAGES : THREADS_PAGES;
        struct rsi_store_chunk *fresh = rsi_file_chunk(
            RSI_STORE_THREADS, sizeof(struct rsi_store_thread), pages, writer->index);
        if (!fresh)
            return NULL;
        writer->threads = fresh;
        slot = rsi_chunk_next(fresh);
    }
    rsi_chunk_add(writer->threads);
    return slot;
}

/* Clear the words of slot between two offsets, each whole, since another process may read them. */
RSI_INLINE void clear(struct rsi_store_thread *slot, size_t from, size_t to)
{
    typedef uint64_t __attribute__((may_alias)) word;
    for (size_t at = from; at < to; at += sizeof(word))
        rsi_store_relaxed((word *)(void *)((char *)slot + at), UINT64_C(0));
}

/* Whether the words of a wait, and those behind ticks[RSI_IN_LAT], were never written: many threads never wait. */
RSI_INLINE bool is_waitless(const struct rsi_store_thread *slot)
{
    return (slot->waits | slot->wait_site | slot->object | slot->contest_tsc |
            rsi_load_relaxed(&slot->wake_tsc)) == 0 &&
           slot->name[0] == 0;
}

static void slot_free(struct rsi_writer *writer, struct rsi_store_thread *slot)
{
    uint32_t seq = slot->seq;
    rsi_store_relaxed(&slot->seq, seq + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* as in account.c */
    rsi_store_relaxed(&slot->doing, (uint16_t)RSI_DOES_NOTHING);
    rsi_store_relaxed(&slot->kind, (uint16_t)ROUSE_WAIT_NONE);
    rsi_store_relaxed(&slot->id, UINT64_C(0));
    if (rsi_likely(is_waitless(slot))) {
        rsi_store_relaxed(&slot->yields, UINT64_C(0));
        rsi_store_relaxed(&slot->accepted, UINT64_C(0));
        rsi_store_relaxed(&slot->ticks[RSI_IN_USR], UINT64_C(0));
        rsi_store_relaxed(&slot->ticks[RSI_IN_LAT], UINT64_C(0));
    } else {
        clear(slot, offsetof(struct rsi_store_thread, since_tsc), sizeof *slot);
    }
    rsi_store_relaxed(&slot->begin_tsc, (uint64_t)(uintptr_t)writer->free);
    rsi_store_release(&slot->seq, seq + 2);
    writer->free = slot;
}

/* Whether entry has the key. */
typedef bool is_of(const void *entry, const void *key);

RSI_INLINE bool name_is_of(uint32_t name, uint32_t wanted)
{
    return wanted == RSI_NAME_ANY || name == wanted;
}

static bool wake_is_of(const void *entry, const void *key)
{
    const struct rsi_store_wake *wake = entry;
    const struct rsi_wake_key *k = key;
    return rsi_wake_is_of(wake, k) && name_is_of(wake->name, k->name);
}

static bool lock_is_of(const void *entry, const void *key)
{
    const struct rsi_store_lock *lock = entry;
    const struct rsi_lock_key *k = key;
    return lock->lock == k->lock && lock->site == k->site && lock->holder_site == k->holder_site &&
           lock->kind == k->kind && name_is_of(lock->name, k->name);
}

static uint32_t wake_hash(const void *entry)
{
    const struct rsi_store_wake *wake = entry;
    return rsi_hash(wake->wait_site, wake->wake_site, wake->object + wake->kind);
}

static uint32_t lock_hash(const void *entry)
{
    const struct rsi_store_lock *lock = entry;
    return rsi_hash(lock->lock, lock->site, lock->holder_site + lock->kind);
}

/* The name of a thread, as words. A thread that renames another may write it. */
struct group_name {
    uint64_t words[3];
};
_Static_assert(sizeof(struct group_name) == sizeof((struct rsi_store_group){ 0 }.name) &&
                   sizeof(struct group_name) == sizeof((struct rsi_store_thread){ 0 }.name) &&
                   offsetof(struct rsi_store_thread, name) % sizeof(uint64_t) == 0,
               "names are three words");

typedef uint64_t __attribute__((may_alias)) name_word;

RSI_INLINE uint64_t name_word_of(const char *name, unsigned i)
{
    return rsi_load_relaxed((const name_word *)(const void *)name + i);
}

/* Bytes behind the end of a name are 0. */
static struct group_name group_name(const char *name)
{
    return (struct group_name){
        { name_word_of(name, 0), name_word_of(name, 1), name_word_of(name, 2) },
    };
}

/* Word by word: a copy that memcmp() reads would first have to be stored. */
RSI_INLINE bool is_named(const struct rsi_store_group *group, const char *name)
{
    uint64_t differs = (name_word_of(group->name, 0) ^ name_word_of(name, 0)) |
                       (name_word_of(group->name, 1) ^ name_word_of(name, 1)) |
                       (name_word_of(group->name, 2) ^ name_word_of(name, 2));
    return !differs && !group->is_rest;
}

static uint32_t name_hash(const struct group_name *name)
{
    uint64_t low[3];
    for (unsigned i = 0; i < 3; i++)
        low[i] = name->words[i] ^ name->words[i] >> 32; /* rsi_hash needs the difference there */
    return rsi_hash(low[0], low[1], low[2]);
}

static uint32_t group_hash(const void *entry)
{
    const struct rsi_store_group *group = entry;
    struct group_name name = group_name(group->name);
    return name_hash(&name);
}

static bool group_is_of(const void *entry, const void *key)
{
    return is_named(entry, key);
}

/*
 * Kernel threads of one name are often a server's and its clients', or workers and those who wait for them. So their
 * groups are divided by what the threads waited for, for 1 % of their lives or longer. A sum of threads that have this
 * part has it too, so that a group's own sums tell whose it is.
 */
enum { FOR_LOCKS = 1, FOR_EVENTS = 2, PARTS = 100 };

static unsigned waited_for(const uint64_t *ticks, uint64_t waits, uint64_t wall_ticks)
{
    if (!waits)
        return 0; /* group_add() leaves out what it waits for then */
    bool for_locks = (ticks[RSI_IN_MUTEX] + ticks[RSI_IN_RWLOCK]) * PARTS > wall_ticks;
    bool for_events = (ticks[RSI_IN_COND] + ticks[RSI_IN_SEM]) * PARTS > wall_ticks;
    return (for_locks ? FOR_LOCKS : 0) | (for_events ? FOR_EVENTS : 0);
}

struct kernel_group_key {
    struct group_name name; /* first: group_is_of() reads it */
    unsigned waited_for;
};

static bool kernel_group_is_of(const void *entry, const void *key)
{
    const struct rsi_store_group *group = entry;
    const struct kernel_group_key *wanted = key;
    return group_is_of(group, &wanted->name) &&
           waited_for(group->ticks, group->waits, group->wall_ticks) == wanted->waited_for;
}

static void index_put(struct rsi_index *index, void *entry, uint32_t hash)
{
    uint32_t at = hash & index->mask;
    while (index->table[at])
        at = (at + 1) & index->mask;
    index->table[at] = rsi_index_word(entry, hash);
}

/* A kind of entries that an index has. */
struct kind {
    enum rsi_store_kind kind;
    size_t bytes;
    uint32_t (*hash)(const void *entry);
};
static const struct kind wakes_kind = { RSI_STORE_WAKES, sizeof(struct rsi_store_wake), wake_hash };
static const struct kind locks_kind = { RSI_STORE_LOCKS, sizeof(struct rsi_store_lock), lock_hash };
static const struct kind groups_kind = { RSI_STORE_GROUPS, sizeof(struct rsi_store_group),
                                         group_hash };

/* Double the table, or create the first. False: no memory; the old table stays. */
static bool index_grow(struct rsi_index *index, const struct kind *kind)
{
    uint32_t size = index->table ? 2 * (index->mask + 1) : INDEX_FIRST;
    uint64_t *table = rsi_map(size * sizeof *table);
    if (!table)
        return false;
    struct rsi_index old = *index;
    index->table = table;
    index->mask = size - 1;
    for (uint32_t i = 0; old.table && i <= old.mask; i++) {
        void *entry = (void *)(uintptr_t)(old.table[i] & RSI_INDEX_ADDRESS);
        if (entry)
            index_put(index, entry, kind->hash(entry));
    }
    if (old.table)
        rsi_unmap(old.table, (old.mask + 1) * sizeof *old.table);
    return true;
}

/*
 * Room for an entry, zero and not valid yet; NULL: no room. After one failure it is not tried again. pages: of a new
 * chunk, which belongs to the writer.
 */
static void *index_room(struct rsi_index *index, const struct kind *kind, unsigned pages,
                        uint32_t writer)
{
    if (index->is_full)
        return NULL;
    index->is_full = true;
    if ((!index->table || 4 * (index->count + 1) > 3 * (index->mask + 1)) &&
        !index_grow(index, kind))
        return NULL;
    void *entry = rsi_chunk_next(index->chunk);
    if (!entry) {
        struct rsi_store_chunk *fresh = rsi_file_chunk(kind->kind, kind->bytes, pages, writer);
        if (!fresh)
            return NULL;
        index->chunk = fresh;
        entry = rsi_chunk_next(fresh);
    }
    index->is_full = false;
    return entry;
}

/* Read memory that may be unmapped. */
static bool read_far(const void *from, void *to, size_t bytes)
{
    struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    return rsi_syscall6(SYS_process_vm_readv, rsi_gettid(), (long)&local, 1, (long)&remote, 1, 0) ==
           (long)bytes;
}

/* Add a name. Returns its number + 1; 0: no room. */
static uint32_t name_add(struct rsi_writer *writer, uint64_t key, const char *text)
{
    rsi_own_lock(&ledger.lock);
    struct rsi_store_name *name =
        shared_next_locked(&ledger.names, RSI_STORE_NAMES, sizeof *name, 1);
    uint32_t number = 0;
    if (name) {
        name->key = key;
        rsi_format(name->text, sizeof name->text, "%s", text);
        rsi_chunk_add(ledger.names);
        number = ++ledger.name_count;
    }
    rsi_own_unlock(&ledger.lock);
    if (!name)
        rsi_count(writer->shared->lost_names, 1);
    return number;
}

uint32_t rsi_writer_origin(struct rsi_writer *writer, uint64_t site)
{
    rsi_module_note(writer, site);
    return name_add(writer, site, "");
}

uint32_t rsi_writer_label(struct rsi_writer *writer, const char *text)
{
    return name_add(writer, (uintptr_t)text, text);
}

/* The number of an object's name + 1; 0: it has none, or it cannot be read. */
static uint32_t name_of(struct rsi_writer *writer, const char *const *where)
{
    const char *text = NULL;
    char copy[sizeof(struct rsi_store_name) - sizeof(uint64_t)] = { 0 };
    if (!where || !read_far(where, &text, sizeof text) || !text)
        return 0;
    if (!read_far(text, copy, sizeof copy)) {
        /* Byte by byte, since the end of readable memory may be near. */
        size_t length = 0;
        memset(copy, 0, sizeof copy);
        while (length < sizeof copy && read_far(text + length, copy + length, 1) && copy[length])
            length++;
        if (length == 0)
            return 0;
    }
    copy[sizeof copy - 1] = 0;
    return name_add(writer, (uintptr_t)text, copy);
}

RSI_INLINE void *index_find(const struct rsi_index *index, uint32_t hash, is_of *is,
                            const void *key)
{
    if (rsi_unlikely(!index->table))
        return NULL;
    for (uint32_t at = hash & index->mask; index->table[at]; at = (at + 1) & index->mask) {
        void *entry = rsi_index_entry(index->table[at], hash);
        if (rsi_likely(entry && is(entry, key)))
            return entry;
    }
    return NULL;
}

static RSI_COLD struct rsi_store_wake *wake_new(struct rsi_writer *writer,
                                                const struct rsi_wake_key *key,
                                                const char *const *name)
{
    struct rsi_store_wake *wake =
        index_room(&writer->wakes, &wakes_kind, writer->chunk_pages, writer->index);
    if (!wake)
        return NULL;
    wake->kind = key->kind;
    wake->name = key->name == RSI_NAME_ANY ? name_of(writer, name) : key->name;
    wake->wait_site = key->wait_site;
    wake->wake_site = key->wake_site;
    wake->object = key->object;
    rsi_module_note(writer, key->wait_site);
    rsi_module_note(writer, key->wake_site);
    rsi_chunk_add(writer->wakes.chunk);
    index_put(&writer->wakes, wake, wake_hash(wake));
    writer->wakes.count++;
    return wake;
}

struct rsi_store_wake *rsi_writer_wake(struct rsi_writer *writer, const struct rsi_wake_key *key,
                                       const char *const *name)
{
    uint32_t hash = rsi_wake_hash(key);
    struct rsi_store_wake *wake = index_find(&writer->wakes, hash, wake_is_of, key);
    return rsi_likely(wake != NULL) ? wake : wake_new(writer, key, name);
}

static RSI_COLD struct rsi_store_lock *lock_new(struct rsi_writer *writer,
                                                const struct rsi_lock_key *key,
                                                const char *const *name)
{
    struct rsi_store_lock *lock =
        index_room(&writer->locks, &locks_kind, writer->chunk_pages, writer->index);
    if (!lock)
        return NULL;
    lock->kind = key->kind;
    lock->name = key->name == RSI_NAME_ANY ? name_of(writer, name) : key->name;
    lock->site = key->site;
    lock->holder_site = key->holder_site;
    lock->lock = key->lock;
    rsi_module_note(writer, key->site);
    rsi_module_note(writer, key->holder_site);
    rsi_chunk_add(writer->locks.chunk);
    index_put(&writer->locks, lock, lock_hash(lock));
    writer->locks.count++;
    return lock;
}

struct rsi_store_lock *rsi_writer_lock(struct rsi_writer *writer, const struct rsi_lock_key *key,
                                       const char *const *name)
{
    uint32_t hash = rsi_hash(key->lock, key->site, key->holder_site + key->kind);
    struct rsi_store_lock *lock = index_find(&writer->locks, hash, lock_is_of, key);
    return rsi_likely(lock != NULL) ? lock : lock_new(writer, key, name);
}

static RSI_COLD struct rsi_store_group *group_new(struct rsi_index *groups,
                                                  const struct group_name *name, bool is_rest,
                                                  unsigned pages, uint32_t writer)
{
    struct rsi_store_group *group = index_room(groups, &groups_kind, pages, writer);
    if (!group)
        return NULL;
    memcpy(group->name, name, sizeof group->name);
    group->is_user = writer != UINT32_MAX;
    group->is_rest = is_rest;
    rsi_chunk_add(groups->chunk);
    index_put(groups, group, name_hash(name));
    groups->count++;
    return group;
}

static bool is_rest(const void *entry, const void *key)
{
    const struct rsi_store_group *group = entry;
    (void)key;
    return group->is_rest != 0;
}

/* A group for a name that has none, or the one of those that found no room. NULL: no room for that either. */
static RSI_COLD struct rsi_store_group *group_add_name(struct rsi_index *groups,
                                                       const struct group_name *name,
                                                       unsigned pages, uint32_t writer)
{
    static const struct group_name none;
    struct rsi_store_group *group;
    if (groups->count < RSI_STORE_GROUPS_MAX)
        return group_new(groups, name, false, pages, writer);
    group = index_find(groups, name_hash(&none), is_rest, NULL);
    return group ? group : group_new(groups, &none, true, pages, writer);
}

static void group_add(struct rsi_store_group *group, const struct rsi_store_thread *slot,
                      uint64_t wall_ticks)
{
    rsi_count(group->threads, 1);
    rsi_count(group->waits, slot->waits);
    rsi_count(group->useless, slot->useless);
    rsi_count(group->yields, slot->yields);
    rsi_count(group->accepted, slot->accepted);
    for (unsigned i = 0; i < (slot->waits ? RSI_IN_COUNT : RSI_IN_LAT + 1); i++)
        rsi_count(group->ticks[i], slot->ticks[i]);
    rsi_count(group->wall_ticks, wall_ticks);
}

/* There is no group. */
static RSI_COLD void writer_add(struct rsi_store_writer *total, const struct rsi_store_thread *slot)
{
    rsi_count(total->groupless, 1);
    rsi_count(total->ended_waits, slot->waits);
    rsi_count(total->ended_useless, slot->useless);
    rsi_count(total->ended_yields, slot->yields);
    rsi_count(total->ended_accepted, slot->accepted);
    for (unsigned i = 0; i < RSI_IN_COUNT; i++)
        rsi_count(total->ended_ticks[i], slot->ticks[i]);
}

static RSI_NOINLINE struct rsi_store_group *group_find(struct rsi_writer *writer, const char *name)
{
    struct group_name copy = group_name(name);
    struct rsi_store_group *group =
        index_find(&writer->groups, name_hash(&copy), group_is_of, &copy);
    return group ? group
                 : group_add_name(&writer->groups, &copy, writer->chunk_pages, writer->index);
}

static void user_end(struct rsi_writer *writer, const struct rsi_store_thread *slot, uint64_t wall)
{
    if (rsi_unlikely(!writer->group || !is_named(writer->group, slot->name)))
        writer->group = group_find(writer, slot->name);
    if (rsi_likely(writer->group != NULL))
        group_add(writer->group, slot, wall);
    else
        writer_add(writer->shared, slot);
}

static void kernel_end(struct rsi_writer *writer, const struct rsi_store_thread *slot,
                       uint64_t wall)
{
    struct kernel_group_key key = { group_name(slot->name),
                                    waited_for(slot->ticks, slot->waits, wall) };
    uint64_t cpu_ns = rsi_cpu_time_ran(slot->tid) - writer->shared->begin_cpu_ns, queue_ns;
    bool has_queue = rsi_cpu_time_queued(slot->tid, slot->ticks[RSI_IN_USR], cpu_ns, &queue_ns);
    uint64_t begin_ns = writer->shared->begin_queue_ns;
    rsi_own_lock(&ledger.lock);
    struct rsi_store_group *group =
        index_find(&ledger.groups, name_hash(&key.name), kernel_group_is_of, &key);
    if (!group)
        group = group_add_name(&ledger.groups, &key.name, KERNEL_PAGES, UINT32_MAX);
    if (group) {
        group_add(group, slot, wall);
        rsi_count(group->cpu_ns, cpu_ns);
        rsi_count(group->queue_ns, queue_ns > begin_ns ? queue_ns - begin_ns : 0);
        rsi_count(group->queueless, !has_queue);
    }
    rsi_own_unlock(&ledger.lock);
    if (!group)
        writer_add(writer->shared, slot);
}

void rsi_writer_slot_end(struct rsi_writer *writer, struct rsi_store_thread *slot, uint64_t now_tsc)
{
    uint64_t wall = now_tsc > slot->begin_tsc ? now_tsc - slot->begin_tsc : 0;
    rsi_count(writer->shared->ended, 1);
    if (slot->origin == 0)
        user_end(writer, slot, wall);
    else
        kernel_end(writer, slot, wall);
    slot_free(writer, slot);
}

void rsi_writer_begin(struct rsi_writer *writer, uint64_t begin_tsc,
                      const struct rsi_cpu_time *spent)
{
    rsi_store_relaxed(&writer->shared->taken_tsc, begin_tsc);
    rsi_store_relaxed(&writer->shared->begin_cpu_ns, spent->cpu_ns);
    rsi_store_relaxed(&writer->shared->begin_queue_ns, spent->queue_ns);
}
