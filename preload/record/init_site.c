/* SPDX-License-Identifier: MIT */
/*
 * init_site.c - remembers where the program initialised each lock or similar object.
 *
 * There are two tables of fixed size, without a lock: the objects and the places. Places are added and never removed.
 * An object is one word, made of its address and the number of its place, so readers always see a whole entry.
 *
 * Invariants:
 * - A FREE word has never been used. A used word never becomes FREE again, so a search ends at the first FREE word.
 * - Only the thread that initialises or destroys an object changes the object's word. A program lets one thread do
 *   that at a time, while no other uses the object. All other threads change only FREE and GONE words, each by compare
 *   and swap. So an object has at most one word.
 *
 * All accesses are relaxed. The program itself orders the use of an object after its initialisation, so the user sees
 * that word or a later one. The word of a place was written before that of the first object with its number, and
 * never changes.
 *
 * A program may free the memory of a lock without destroying it. The next object that is initialised there takes its
 * word over. A lock that comes to lie there without a call, by PTHREAD_MUTEX_INITIALIZER or as std::mutex, is
 * reported with the old place.
 */
#include "record/init_site.h"

#include "process/recording.h"

#include <string.h>

#define WINDOW 32u /* words that a search reads: 4 or 5 cache lines */
#define PLACE_BITS RPI_INIT_SITE_PLACE_BITS
#define ADDRESS_BITS 48u /* the last two bits are 0, since every such object contains an int */

#define NO_ROOM UINT32_MAX /* for a name in the file */

enum { FREE, GONE };

_Static_assert(ADDRESS_BITS - 2 + PLACE_BITS == 64, "an object is one word");
_Static_assert(RPI_INIT_SITE_PLACES < 1u << PLACE_BITS, "a place's number fits into it");

uint64_t rpi_init_site_objects[RPI_INIT_SITE_OBJECTS];
static uintptr_t places[RPI_INIT_SITE_PLACES];

/* The number of a place, which is added if necessary. 0: there is no room. */
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

/* object's word. NULL: it has none, and *room is the first word that it can have, or NULL. */
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

/* By place: the number of its name in this process's file. 0: none yet. Set once, by compare and swap. */
static uint32_t names[RPI_INIT_SITE_PLACES];
static bool is_named; /* some place has a name; relaxed */
static uint64_t lost; /* initialisations without a known place */

/* Several threads may report at once: the greatest count stays. */
static RSI_COLD void report(uint64_t count)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with rsi_file_open */
    if (!head || !*rpi_recording_here)
        return;
    uint64_t reported = rsi_load_relaxed(&head->lost_origins);
    while (reported < count && !rsi_cas_relaxed(&head->lost_origins, &reported, count))
        ;
}

void rpi_init_site_note(void)
{
    report(rsi_load_relaxed(&lost));
}

void rpi_init_site_child(void)
{
    if (is_named)
        memset(names, 0, sizeof names);
    is_named = false;
}

static RSI_COLD uint32_t name_new(struct rsi_writer *writer, uint32_t place)
{
    uint32_t before = 0;
    uint32_t made = rsi_writer_origin(writer, (uintptr_t)rpi_init_site_address(place));
    made = made ? made : NO_ROOM;
    rsi_store_relaxed(&is_named, true);
    return rsi_cas_relaxed(&names[place - 1], &before, made) ? made : before;
}

uint32_t rpi_init_site_name(struct rsi_writer *writer, const void *object)
{
    uint32_t place = rpi_init_site_of(object);
    if (place == 0)
        return 0;
    uint32_t name = rsi_load_relaxed(&names[place - 1]);
    if (rsi_unlikely(name == 0))
        name = name_new(writer, place);
    return name == NO_ROOM ? 0 : name;
}

void rpi_init_site_lost(void)
{
    report(rsi_fetch_add_relaxed(&lost, 1) + 1);
}
