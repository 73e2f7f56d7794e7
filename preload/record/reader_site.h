/* SPDX-License-Identifier: MIT */
/*
 * reader_site.h - the place where a read-write lock was last acquired for reading, or a critical section of OpenMP was
 * entered.
 *
 * A read-write lock has many readers, and no word that says who they are. The word of a critical section does not say
 * it either. So a table has the last place for each lock, by hash. A word holds 16 bits of the lock's hash above the
 * place, a code address of 48 bits, so that it is read and written at once. It is written only if it changes: readers
 * that come from one place share the line.
 */
#ifndef RPI_RECORD_READER_SITE_H
#define RPI_RECORD_READER_SITE_H

#include "obs/ledger.h"
#include "process/linkage.h"

#define RPI_READER_SITES 1024u
extern RPI_HIDDEN uint64_t rpi_reader_sites[RPI_READER_SITES];

RSI_INLINE void rpi_reader_site_put(const void *lock, const void *site)
{
    uint32_t hash = rsi_hash((uintptr_t)lock, 0, 0);
    uint64_t *at = &rpi_reader_sites[hash % RPI_READER_SITES];
    uint64_t word = (uint64_t)(hash >> 16) << 48 | (uintptr_t)site;
    if (rsi_load_relaxed(at) != word)
        rsi_store_relaxed(at, word);
}

/* NULL: not known. */
RSI_INLINE const void *rpi_reader_site_of(const void *lock)
{
    uint32_t hash = rsi_hash((uintptr_t)lock, 0, 0);
    uint64_t word = rsi_load_relaxed(&rpi_reader_sites[hash % RPI_READER_SITES]);
    return word >> 48 == hash >> 16 ? (const void *)(uintptr_t)(word & RSI_INDEX_ADDRESS) : NULL;
}

#endif
