/* SPDX-License-Identifier: MIT */
/* file.h - creates and maps the shared file of store.h, and allocates chunks in it. */
#ifndef RSI_OBS_FILE_H
#define RSI_OBS_FILE_H

#include "obs/store.h"

/* NULL: there is no file. Release by rsi_file_open, acquire by every thread before it records. */
extern struct rsi_store_head *rsi_file_head;

/*
 * For the runtime only. Before it creates its file, it asks the interposer of `rouse run`, if that is in this
 * process too, to stop recording. A process has one file.
 */
void rsi_file_alone(void);

/*
 * Create the calling process's file and map it; an old file with the same name is replaced. Allocates with malloc
 * unless files are kept (ROUSE_OBS_KEEP=1). Returns 0, or -errno, with the failure described in reason; nothing is
 * left behind then. Not from two threads at once.
 */
int rsi_file_open(char *reason, size_t reason_bytes);

/*
 * Allocate a chunk of `pages` pages for entries, with its head filled in. NULL: no room; later calls for this kind
 * fail at once. Any thread. Does not block for long, except between rsi_file_fold and rsi_file_unfold.
 */
struct rsi_store_chunk *rsi_file_chunk(enum rsi_store_kind kind, size_t entry_bytes, unsigned pages,
                                       uint32_t writer);

/* The limit on the size of the file. After rsi_file_open. */
uint64_t rsi_file_bytes_most(void);

RSI_INLINE void *rsi_chunk_entry(struct rsi_store_chunk *chunk, uint32_t index)
{
    return (char *)chunk + RSI_STORE_CHUNK_HEAD + (size_t)index * chunk->entry_bytes;
}

/*
 * The next free entry of a chunk that only the caller adds to: zero, and not valid yet. NULL: the chunk is full.
 */
RSI_INLINE void *rsi_chunk_next(struct rsi_store_chunk *chunk)
{
    return chunk && chunk->used < chunk->capacity ? rsi_chunk_entry(chunk, chunk->used) : NULL;
}

/* Make the entry of rsi_chunk_next valid. */
RSI_INLINE void rsi_chunk_add(struct rsi_store_chunk *chunk)
{
    rsi_store_release(&chunk->used, chunk->used + 1); /* pairs with the reader's acquire */
}

/* Call visit for each valid entry of a kind, of all writers, while they write. Any thread. */
void rsi_file_visit(enum rsi_store_kind kind, void (*visit)(const void *entry, void *sum),
                    void *sum);

/*
 * For the interposer only, around a call that locks all memory (mlockall). fold unmaps the unallocated part of the
 * file, except a small reserve. unfold unlocks the mapping and maps again as much as there is room for. A thread
 * that needs more than the reserve in between waits, and so does fold until another thread has unfolded. Returns
 * false if there is no file; then unfold must not be called. The caller runs no signal handler in between and
 * cannot be cancelled. errno is preserved.
 */
bool rsi_file_fold(void);
void rsi_file_unfold(void);

/* Store the current instant on both clocks in the head, at most once per second. */
void rsi_file_tick(uint64_t now_ns);

/* The same, given the current time stamp; usually without reading the clock. */
void rsi_file_tick_tsc(uint64_t tsc);

/*
 * Measure what time stamps cost on this machine, which a hypervisor may raise: they are most of the cost of recording. The
 * head keeps the least that was ever measured, since other work may interrupt or slow down any try. Any thread.
 */
void rsi_file_time_stamps(struct rsi_store_head *head);

/* The process ends: note that in the head, and unlink the file unless files are kept. */
void rsi_file_end(void);

/* In a child after fork: unmap the parent's file and use it no more; the child has no file yet. */
void rsi_file_child(void);

/*
 * Instead of rsi_file_child, where the child's thread is in the middle of writing: it goes on writing to a private copy
 * at the same address.
 */
void rsi_file_detach(void);

#endif
