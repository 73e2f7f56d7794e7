/* SPDX-License-Identifier: MIT */
/*
 * walk.h - the calls that led to a site, from the stack that one stands on; many times a second.
 *
 * unwind.h walks any thread's stack from any instruction; this walks one's own from a call, and keeps what .eh_frame
 * says of each return address, reduced to three offsets. A frame that needs more (a CFA that is an expression, or
 * relative to another register than stack and frame pointer) ends the walk, as does whatever makes no sense.
 */
#ifndef RSI_OBS_WALK_H
#define RSI_OBS_WALK_H

#include "obs/unwind.h"

#define RSI_SITE_FRAMES 8

/* One kernel thread's rows. */
struct rsi_walker;

/* NULL: no memory. It is never given back. */
struct rsi_walker *rsi_walker_new(void);

/* Where a walk begins. */
struct rsi_here {
    uint64_t ip, sp, fp;
};

/* Of the function that calls it, which must not return before the walk. */
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

/* The words of the stack that a walk went by, the innermost first. */
#define RSI_TRAIL_MOST 16u
struct rsi_trail {
    uint64_t room;  /* 0, or how much stack there was, which the walk's end may hang on */
    uint32_t count; /* 0: it does not do, since the walk went by more than these words */
    uint32_t offsets[RSI_TRAIL_MOST]; /* from where it began */
    uint64_t values[RSI_TRAIL_MOST];
};

/*
 * The return addresses from site on, the innermost first, at most most; 0: site is none of the nearest. Nothing is
 * read but [here.sp, high) of the stack, and .eh_frame where no row is known; is_fresh: whether it is or not.
 */
unsigned rsi_walk(struct rsi_walker *walker, const struct rsi_here *here, uintptr_t high,
                  uint64_t site, uint64_t *frames, unsigned most, bool is_fresh,
                  struct rsi_trail *trail);

/* The number that was kept for a walk that would go as this one; RSI_WALK_UNKNOWN: there is none. */
#define RSI_WALK_UNKNOWN UINT64_MAX
uint64_t rsi_walk_number(const struct rsi_walker *walker, const struct rsi_here *here,
                         uintptr_t high, uint64_t site);
void rsi_walk_keep(struct rsi_walker *walker, const struct rsi_here *here, uint64_t site,
                   const struct rsi_trail *trail, uint64_t number);

#endif
