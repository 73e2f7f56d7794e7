/* SPDX-License-Identifier: MIT */
/*
 * walk.h - the calls that led to a site, from the caller's own stack; fast enough for every wait.
 *
 * unwind.h unwinds any thread's stack from any instruction. This file walks the caller's own stack from a call, and
 * caches what .eh_frame says about each return address, reduced to three offsets. A frame that needs more (a CFA
 * that is an expression, or relative to a register other than the stack and frame pointers) ends the walk, as does
 * an inconsistent frame.
 */
#ifndef RSI_OBS_WALK_H
#define RSI_OBS_WALK_H

#include "obs/unwind.h"

#define RSI_SITE_FRAMES 8

/* One kernel thread's cached rows. */
struct rsi_walker;

/* Returns NULL if there is no memory. It is never freed. */
struct rsi_walker *rsi_walker_new(void);

/* The registers at which a walk begins. */
struct rsi_here {
    uint64_t ip, sp, fp;
};

/* Those of the calling function, which must not return before the walk. */
RSI_INLINE struct rsi_here rsi_here(void)
{
    struct rsi_here here;
#if defined(__x86_64__)
    __asm__ volatile("leaq 0(%%rip), %0\n\tmovq %%rsp, %1\n\tmovq %%rbp, %2"
                     : "=&r"(here.ip), "=&r"(here.sp), "=&r"(here.fp));
#else
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29"
                     : "=&r"(here.ip), "=&r"(here.sp), "=&r"(here.fp));
#endif
    return here;
}

/* The stack words that a walk depended on, innermost first. */
#define RSI_TRAIL_MOST 16u
struct rsi_trail {
    uint64_t room;  /* 0, or the size of the stack, if the end of the walk may depend on it */
    uint32_t count; /* 0: unusable, since the walk depended on more than these words */
    uint32_t offsets[RSI_TRAIL_MOST]; /* from the start of the walk */
    uint64_t values[RSI_TRAIL_MOST];
};

/* Leave out frames between low and end: those of a library that calls the program's functions back. Called once. */
void rsi_walk_leaves_out(const void *low, const void *end);

/*
 * Fill frames with the return addresses from site outwards, innermost first, at most `most`. Returns how many; 0:
 * site is not among the nearest frames. Reads only [here.sp, high) of the stack, and .eh_frame where no row is
 * cached; is_fresh: .eh_frame in every case.
 */
unsigned rsi_walk(struct rsi_walker *walker, const struct rsi_here *here, uintptr_t high,
                  uint64_t site, uint64_t *frames, unsigned most, bool is_fresh,
                  struct rsi_trail *trail);

/* The number stored for an identical walk; RSI_WALK_UNKNOWN: none. */
#define RSI_WALK_UNKNOWN UINT64_MAX
uint64_t rsi_walk_number(const struct rsi_walker *walker, const struct rsi_here *here,
                         uintptr_t high, uint64_t site);
void rsi_walk_keep(struct rsi_walker *walker, const struct rsi_here *here, uint64_t site,
                   const struct rsi_trail *trail, uint64_t number);

#endif
