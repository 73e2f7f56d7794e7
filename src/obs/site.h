/* SPDX-License-Identifier: MIT */
/*
 * site.h - the representation of a code location in the file: an address, or a call stack (struct rsi_store_stack).
 */
#ifndef RSI_OBS_SITE_H
#define RSI_OBS_SITE_H

#include "obs/ledger.h"
#include "obs/walk.h"

/*
 * Frames per site, 1 to RSI_SITE_FRAMES. Fixed before the file is created. Defined in file.c, which stores it.
 */
extern uint32_t rsi_site_depth;

/*
 * The end of the calling thread's stack that contains sp. 0: unknown; the stack is then not read.
 */
typedef uintptr_t rsi_stack_end_of(struct rsi_writer *writer, uint64_t sp);

/* Read the depth from ROUSE_OBS_DEPTH. False: the value is invalid, and the depth stays 1. */
bool rsi_sites_setup(rsi_stack_end_of *stack_end);

/*
 * The call stack from site (a return address on the calling thread's stack) outwards. May allocate memory.
 */
uint64_t rsi_site_stack(struct rsi_writer *writer, const void *site);

RSI_INLINE uint64_t rsi_site_of(struct rsi_writer *writer, const void *site)
{
    if (rsi_likely(rsi_load_relaxed(&rsi_site_depth) == 1) || !site || !writer)
        return (uintptr_t)site;
    return rsi_site_stack(writer, site);
}

/* The frames of a site, innermost first. Returns how many: at least 1, unless it is unknown. */
unsigned rsi_site_frames(uint64_t site, uint64_t frames[RSI_SITE_FRAMES]);

/* The site of a call stack that another process of the program has found. depth 0: 0. May allocate memory. */
uint64_t rsi_site_put(struct rsi_writer *writer, const uint64_t *frames, unsigned depth);

/* The innermost return address of a site. */
const void *rsi_site_address(uint64_t site);

/* Forget all stacks, in a child after fork. */
void rsi_sites_child(void);
/* Release the locks alone, where the child's thread goes on in this module. */
void rsi_sites_child_locks(void);

#endif
