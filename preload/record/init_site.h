/* SPDX-License-Identifier: MIT */
/* init_site.h - which place of the program initialised a lock or the like (origin.c). */
#ifndef RPI_RECORD_INIT_SITE_H
#define RPI_RECORD_INIT_SITE_H

#include "obs/ledger.h"

#define RPI_INIT_SITE_OBJECTS \
    65536u /* at once: 512 KiB, of which those pages are there that are used */
#define RPI_INIT_SITE_PLACES 8192u
#define RPI_INIT_SITE_PLACE_BITS 18u

/* An object's word is its address over four and, in the low bits, the number of its place (origin.c). */
extern __attribute__((visibility("hidden"))) uint64_t rpi_init_site_objects[RPI_INIT_SITE_OBJECTS];

/*
 * object has just been initialised at site, before anybody else uses it. False: there is no room, and it is of no
 * place. end: it has just been destroyed. Neither waits, takes memory, or sets errno; signal handlers may call both.
 */
bool rpi_init_site_put(const void *object, const void *site);
void rpi_init_site_end(const void *object);

RSI_INLINE bool rpi_init_site_is_of(uint64_t word, const void *object)
{
    return word >> RPI_INIT_SITE_PLACE_BITS == (uintptr_t)object >> 2;
}

/*
 * Where the search for object's word begins. Eight words are a line, which the objects of 256 bytes share: who uses one
 * of them uses its neighbours too, and as many of the size of a mutex as can be there have room.
 */
RSI_INLINE uint32_t rpi_init_site_at(const void *object)
{
    uint64_t address = (uintptr_t)object;
    return (8 * rsi_hash(address >> 8, 0, 0) + (uint32_t)(address >> 5) % 8) %
           RPI_INIT_SITE_OBJECTS;
}

/* The number of the place that initialised object, from 1 to RPI_INIT_SITE_PLACES; 0: it is not known. */
uint32_t rpi_init_site_search(const void *object);
RSI_INLINE uint32_t rpi_init_site_of(const void *object)
{
    uint64_t word = rsi_load_relaxed(&rpi_init_site_objects[rpi_init_site_at(object)]);
    return rsi_likely(rpi_init_site_is_of(word, object))
               ? (uint32_t)(word & ((1u << RPI_INIT_SITE_PLACE_BITS) - 1))
               : rpi_init_site_search(object);
}

/* What rpi_init_site_put was told of that number. */
const void *rpi_init_site_address(uint32_t place);

#endif
