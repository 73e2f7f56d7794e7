/* SPDX-License-Identifier: MIT */
/* origin.h - which place of the program initialised a lock or the like (origin.c). */
#ifndef RSI_PRELOAD_ORIGIN_H
#define RSI_PRELOAD_ORIGIN_H

#include "obs/ledger.h"

#define RSI_ORIGIN_OBJECTS \
    65536u /* at once: 512 KiB, of which those pages are there that are used */
#define RSI_ORIGIN_PLACES 8192u
#define RSI_ORIGIN_PLACE_BITS 18u

/* An object's word is its address over four and, in the low bits, the number of its place (origin.c). */
extern __attribute__((visibility("hidden"))) uint64_t rsi_origin_objects[RSI_ORIGIN_OBJECTS];

/*
 * object has just been initialised at site, before anybody else uses it. False: there is no room, and it is of no
 * place. end: it has just been destroyed. Neither waits, takes memory, or sets errno; signal handlers may call both.
 */
bool rsi_origin_put(const void *object, const void *site);
void rsi_origin_end(const void *object);

RSI_INLINE bool rsi_origin_is_of(uint64_t word, const void *object)
{
    return word >> RSI_ORIGIN_PLACE_BITS == (uintptr_t)object >> 2;
}

/*
 * Where the search for object's word begins. Eight words are a line, which the objects of 256 bytes share: who uses one
 * of them uses its neighbours too, and as many of the size of a mutex as can be there have room.
 */
RSI_INLINE uint32_t rsi_origin_at(const void *object)
{
    uint64_t address = (uintptr_t)object;
    return (8 * rsi_hash(address >> 8, 0, 0) + (uint32_t)(address >> 5) % 8) % RSI_ORIGIN_OBJECTS;
}

/* The number of the place that initialised object, from 1 to RSI_ORIGIN_PLACES; 0: it is not known. */
uint32_t rsi_origin_search(const void *object);
RSI_INLINE uint32_t rsi_origin_of(const void *object)
{
    uint64_t word = rsi_load_relaxed(&rsi_origin_objects[rsi_origin_at(object)]);
    return rsi_likely(rsi_origin_is_of(word, object))
               ? (uint32_t)(word & ((1u << RSI_ORIGIN_PLACE_BITS) - 1))
               : rsi_origin_search(object);
}

/* What rsi_origin_put was told of that number. */
const void *rsi_origin_site(uint32_t place);

#endif
