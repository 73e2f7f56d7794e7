/* SPDX-License-Identifier: MIT */
/*
 * init_site.c - which place of the program initialised a lock or the like: two tables of fixed size, without a lock.
 *
 * Places are added and never taken away. An object is one word, its address and the number of its place, so that it
 * is whole for whoever reads it.
 *
 * Invariants:
 *   FREE is where nothing has ever been. What is not FREE never is again, so a search ends at the first that is.
 *   An object's word is changed by whoever initialises or destroys it alone, which a program lets one thread do at a
 *   time and while nobody uses it. All others change FREE and GONE words only, each by compare and swap.
 *   So an object has one word at most.
 * All is relaxed. Who uses an object comes after its initialisation by the program's own order, and sees that word or a
 * later one; a place's word was there before the first object's that has its number, and stays as it is.
 *
 * A program may give the memory of a lock back without destroying it. Whatever is initialised there takes its word
 * over; a lock that is there without a call, by PTHREAD_MUTEX_INITIALIZER or as std::mutex, is told by it.
 */
#include "record/init_site.h"

#define WINDOW 32u /* words that are looked at: 4 or 5 lines */
#define PLACE_BITS RPI_INIT_SITE_PLACE_BITS
#define ADDRESS_BITS 48u /* of which the last two are 0: all that is initialised has an int in it */

enum { FREE, GONE };

_Static_assert(ADDRESS_BITS - 2 + PLACE_BITS == 64, "an object is one word");
_Static_assert(RPI_INIT_SITE_PLACES < 1u << PLACE_BITS, "a place's number fits into it");

uint64_t rpi_init_site_objects[RPI_INIT_SITE_OBJECTS];
static uintptr_t places[RPI_INIT_SITE_PLACES];

/* The number of a place, which is added if need be; 0: there is no room. */
static uint32_t place_of(const void *site)
{
    uint32_t at = rsi_hash((uintptr_t)site, 0, 0);
    for (uint32_t n = 0; n < WINDOW; n++) {
        uint32_t index = (at + n) % RPI_INIT_SITE_PLACES;
        uintptr_t there = rsi_load_relaxed(&places[index]);
        if (rsi_unlikely(there == FREE) && rsi_cas_relaxed(&places[index], &there, (uintptr_t)site))
            return index + 1;
        if (rsi_likely(there == (uintptr_t)site))
            return index + 1;
    }
    return 0;
}

/* object's word; NULL: it has none, and *room is the first that it can have, if there is one. */
static uint64_t *word_of(const void *object, uint64_t **room)
{
    uint32_t at = rpi_init_site_at(object);
    *room = NULL;
    for (uint32_t n = 0; n < WINDOW; n++) {
        uint64_t *word = &rpi_init_site_objects[(at + n) % RPI_INIT_SITE_OBJECTS];
        uint64_t value = rsi_load_relaxed(word);
        if (rpi_init_site_is_of(value, object))
            return word;
        if (value <= GONE && !*room)
            *room = word;
        if (value == FREE)
            break;
    }
    return NULL;
}

bool rpi_init_site_put(const void *object, const void *site)
{
    if ((uintptr_t)object & 3 || (uint64_t)(uintptr_t)object >> ADDRESS_BITS)
        return false;
    uint32_t place = place_of(site);
    uint64_t value = place ? (uint64_t)(uintptr_t)object >> 2 << PLACE_BITS | place : GONE, *room;
    for (;;) {
        uint64_t *word = word_of(object, &room);
        if (word) {
            rsi_store_relaxed(word, value);
            return place != 0;
        }
        if (!room || !place)
            return false;
        uint64_t before = rsi_load_relaxed(room);
        rsi_test_delay();
        if (before <= GONE && rsi_cas_relaxed(room, &before, value))
            return true;
    }
}

void rpi_init_site_end(const void *object)
{
    uint64_t *room, *word = word_of(object, &room);
    if (word)
        rsi_store_relaxed(word, (uint64_t)GONE);
}

uint32_t rpi_init_site_search(const void *object)
{
    uint64_t *room;
    const uint64_t *word = word_of(object, &room);
    return word ? (uint32_t)(rsi_load_relaxed(word) & ((1u << PLACE_BITS) - 1)) : 0;
}

const void *rpi_init_site_address(uint32_t place)
{
    return (const void *)rsi_load_relaxed(&places[place - 1]);
}
