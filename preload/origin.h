/* SPDX-License-Identifier: MIT */
/* origin.h - which place of the program initialised a lock or the like (origin.c). */
#ifndef RSI_PRELOAD_ORIGIN_H
#define RSI_PRELOAD_ORIGIN_H

#include <stdbool.h>
#include <stdint.h>

#define RSI_ORIGIN_OBJECTS \
    65536u /* at once: 512 KiB, of which those pages are there that are used */
#define RSI_ORIGIN_PLACES 8192u

/*
 * object has just been initialised at site, before anybody else uses it. False: there is no room, and it is of no
 * place. end: it has just been destroyed. Neither waits, takes memory, or sets errno; signal handlers may call both.
 */
bool rsi_origin_put(const void *object, const void *site);
void rsi_origin_end(const void *object);

/* The number of the place that initialised object, from 1 to RSI_ORIGIN_PLACES; 0: it is not known. */
uint32_t rsi_origin_of(const void *object);

/* What rsi_origin_put was told of that number. */
const void *rsi_origin_site(uint32_t place);

#endif
