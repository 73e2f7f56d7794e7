/* SPDX-License-Identifier: MIT */
/* init_site.h - where the program initialised each lock or similar object. */
#ifndef RPI_RECORD_INIT_SITE_H
#define RPI_RECORD_INIT_SITE_H

#include "obs/ledger.h"
#include "process/linkage.h"

/* Objects at one time. 512 KiB, of which only used pages take memory. */
#define RPI_INIT_SITE_OBJECTS 65536u
#define RPI_INIT_SITE_PLACES 8192u
#define RPI_INIT_SITE_PLACE_BITS 18u

/* An object's word: its address over four, and in the low bits the number of its place. */
extern RPI_HIDDEN uint64_t rpi_init_site_objects[RPI_INIT_SITE_OBJECTS];

/*
 * put: object has just been initialised at site, before any other thread uses it. False: there is no room, and its
 * place stays unknown. end: object has just been destroyed, or is about to be. Neither waits, allocates or sets errno,
 * and signal handlers may call both.
 */
bool rpi_init_site_put(const void *object, const void *site);
void rpi_init_site_end(const void *object);

RSI_INLINE bool rpi_init_site_is_of(uint64_t word, const void *object)
{
    return word >> RPI_INIT_SITE_PLACE_BITS == (uintptr_t)object >> 2;
}

/*
 * Where the search for object's word begins. Eight words share a cache line, and the objects in 256 bytes of memory
 * share those eight. A thread that uses one of them usually uses its neighbours too, and as many mutexes as fit there
 * have room.
 */
RSI_INLINE uint32_t rpi_init_site_at(const void *object)
{
    uint64_t address = (uintptr_t)object;
    return (8 * rsi_hash(address >> 8, 0, 0) + (uint32_t)(address >> 5) % 8) %
           RPI_INIT_SITE_OBJECTS;
}

/* The number of the place that initialised object, from 1 to RPI_INIT_SITE_PLACES. 0: unknown. */
uint32_t rpi_init_site_search(const void *object);
RSI_INLINE uint32_t rpi_init_site_of(const void *object)
{
    uint64_t word = rsi_load_relaxed(&rpi_init_site_objects[rpi_init_site_at(object)]);
    return rsi_likely(rpi_init_site_is_of(word, object))
               ? (uint32_t)(word & ((1u << RPI_INIT_SITE_PLACE_BITS) - 1))
               : rpi_init_site_search(object);
}

/* The site that rpi_init_site_put received for that number. */
const void *rpi_init_site_address(uint32_t place);

/* The number that the entries of writer's process have for the place that initialised object. 0: it is unknown. */
uint32_t rpi_init_site_name(struct rsi_writer *writer, const void *object);

void rpi_init_site_lost(void); /* an initialisation found no room: count it */
void rpi_init_site_note(void); /* write that count into the file, which has just been created */
void rpi_init_site_child(void);

#endif
