/* SPDX-License-Identifier: MIT */
/*
 * site.h - what stands in the file for a place in the code: an address, or a call stack (struct rsi_store_stack).
 */
#ifndef RSI_OBS_SITE_H
#define RSI_OBS_SITE_H

#include "obs/ledger.h"

/* Frames of a site, 1 to RSI_SITE_FRAMES; settled before the file is made. In file.c, which notes it. */
extern uint32_t rsi_site_depth;

/* The end of the stack of the calling thread that sp is on; 0: it is not known, and nothing is read of it. */
typedef uintptr_t rsi_stack_end_of(struct rsi_writer *writer, uint64_t sp);

/* The depth, from ROUSE_OBS_DEPTH; false: that is no depth, and it stays 1. */
bool rsi_sites_setup(rsi_stack_end_of *stack_end);

/* The stack from site, a return address on the stack of the calling thread, outwards. May take memory. */
uint64_t rsi_site_stack(struct rsi_writer *writer, const void *site);

RSI_INLINE uint64_t rsi_site_of(struct rsi_writer *writer, const void *site)
{
    if (rsi_likely(rsi_load_relaxed(&rsi_site_depth) == 1) || !site || !writer)
        return (uintptr_t)site;
    return rsi_site_stack(writer, site);
}

/* The return address of a site: the innermost. */
const void *rsi_site_address(uint64_t site);

/* In a child after fork: there are none. */
void rsi_sites_child(void);

#endif
