/* SPDX-License-Identifier: MIT */
/*
 * file.h - the shared file of store.h: where it lies, whose it is, and room in it.
 */
#ifndef RSI_OBS_FILE_H
#define RSI_OBS_FILE_H

#include "obs/store.h"

/* NULL: there is none. Release by rsi_file_open, acquire by whoever is about to record. */
extern struct rsi_store_head *rsi_file_head;

/*
 * The runtime's alone: before it makes its file it asks the interposer of `rouse run`, if that is in this process too,
 * to record no more. A process has one file.
 */
void rsi_file_alone(void);

/*
 * Make the calling process's file, anew if there is one of its number, and map it. Takes memory by malloc unless
 * files are kept (ROUSE_OBS_KEEP=1). Returns 0, or -errno and in
 * reason what could not be done; nothing is left then. Not from two threads at once.
 */
int rsi_file_open(char *reason, size_t reason_bytes);

/*
 * Room for entries: a chunk of so many pages, its head filled in, or NULL: there is none, and none will be asked
 * for again for entries of this kind. Any thread; does not block for long, but between fold and unfold.
 */
struct rsi_store_chunk *rsi_file_chunk(enum rsi_store_kind kind, size_t entry_bytes, unsigned pages,
                                       uint32_t writer);

RSI_INLINE void *rsi_chunk_entry(struct rsi_store_chunk *chunk, uint32_t index)
{
    return (char *)chunk + RSI_STORE_CHUNK_HEAD + (size_t)index * chunk->entry_bytes;
}

/* The next free entry of a chunk that only the caller adds to, zero, not yet valid; NULL: it is full. */
RSI_INLINE void *rsi_chunk_next(struct rsi_store_chunk *chunk)
{
    return chunk && chunk->used < chunk->capacity ? rsi_chunk_entry(chunk, chunk->used) : NULL;
}

/* It is valid. */
RSI_INLINE void rsi_chunk_add(struct rsi_store_chunk *chunk)
{
    rsi_store_release(&chunk->used, chunk->used + 1); /* pairs with the reader's acquire */
}

/* Call visit for each valid entry of a kind, of all writers, while they write. Any thread. */
void rsi_file_visit(enum rsi_store_kind kind, void (*visit)(const void *entry, void *sum),
                    void *sum);

/*
 * The interposer's alone, around a call that locks all memory. fold: unmap what has not been allotted, but for a
 * little; unfold: what is mapped is not locked any more, and as much is mapped again as there is room for. Who needs
 * more than that little meanwhile waits, and so does fold if another thread has not unfolded yet. False: there is no
 * file, and no unfold. The caller runs no signal handler in between, and can not be cancelled. errno is left alone.
 */
bool rsi_file_fold(void);
void rsi_file_unfold(void);

/* Note a moment in the head, at most once a second. */
void rsi_file_tick(uint64_t now_ns);

/* The same by a time stamp of now, without a look at the clock most times. */
void rsi_file_tick_tsc(uint64_t tsc);

/* The process ends: say so and take the file's name away, unless files are kept. */
void rsi_file_end(void);

/* In a child after fork: the parent's is not touched any more, and there is none. */
void rsi_file_child(void);

#endif
