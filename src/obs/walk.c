/* SPDX-License-Identifier: MIT */
/*
 * walk.c - walks the caller's own stack with cached rows.
 *
 * Rows are looked up by instruction address. After a module is unloaded, its rows stay in the cache and may be
 * found for another module. A walk with such rows reads nothing outside its stack, and a caller that stores the
 * result verifies it with a fresh walk. A signal handler may walk in the middle of a walk, so a row is written
 * between clearing and setting its address.
 * Most walks repeat an earlier walk, on the same stack or another: if the stack words that the earlier walk
 * depended on have the same values at the same distance from its start, then the rows and the result are the same.
 * So those words are compared first.
 * Rejected: frame pointers. Compilers omit them, libc has none, and nothing says which code has them.
 */
#include "obs/walk.h"

#include "obs/cfi.h"
#include "os/os.h"

#define ROWS_BITS 10 /* 24 KiB */
#define INNER_MOST \
    16u /* the runtime's own frames between the start and the site, and those that are left out */

enum {
    ROW_CFA_FP = 1,   /* the CFA is relative to the frame pointer, else to the stack pointer */
    ROW_FP_SAVED = 2, /* saved at the CFA + fp; otherwise unchanged */
    ROW_FP_LOST = 4,
    ROW_SIGNED = 8, /* AArch64: the return address carries an authentication code */
    ROW_END = 16,   /* no caller, or an unknown one */
};

struct row {
    uint64_t ip; /* 0: none */
    int32_t cfa, ra, fp;
    uint32_t flags;
};

#define PATHS_BITS 5
#define PATHS_WAYS 4u

/* A walk whose result is known. */
struct path {
    uint64_t site; /* 0: none */
    uint64_t ip, number;
    struct rsi_trail trail;
};

struct rsi_walker {
    struct row rows[1u << ROWS_BITS];
    struct path paths[1u << PATHS_BITS][PATHS_WAYS];
    /* changes of paths: a signal handler may make one in the middle of a lookup */
    uint32_t changes;
};

static struct {
    uint64_t low, size;
} left_out;

void rsi_walk_leaves_out(const void *low, const void *end)
{
    left_out.low = (uintptr_t)low;
    left_out.size = (uintptr_t)end - (uintptr_t)low;
}

struct rsi_walker *rsi_walker_new(void)
{
    return rsi_map(sizeof(struct rsi_walker));
}

static uint32_t flags_of(const struct rsi_cfi_row *r)
{
    uint64_t ra = r->return_register;
    if (r->cfa_expression || r->is_signal_frame || ra >= RSI_REGS ||
        r->kind[ra] != RSI_RULE_AT_CFA || r->kind[RSI_REG_SP] != RSI_RULE_SAME ||
        (r->cfa_register != RSI_REG_SP && r->cfa_register != RSI_REG_FP) ||
        r->cfa_offset != (int32_t)r->cfa_offset || r->value[ra] != (int32_t)r->value[ra])
        return ROW_END;
    uint32_t flags = r->cfa_register == RSI_REG_FP ? ROW_CFA_FP : 0;
    if (r->kind[RSI_REG_FP] == RSI_RULE_AT_CFA)
        flags |= ROW_FP_SAVED;
    else if (r->kind[RSI_REG_FP] != RSI_RULE_SAME)
        flags |= ROW_FP_LOST;
    return flags | (r->is_signed_return ? ROW_SIGNED : 0);
}

static RSI_COLD void fill(struct row *row, uint64_t ip)
{
    struct rsi_cfi_row r;
    struct row fresh = { .flags = ROW_END };
    if (rsi_cfi_find(ip, &r))
        fresh.flags = flags_of(&r);
    if (!(fresh.flags & ROW_END)) {
        fresh.cfa = (int32_t)r.cfa_offset;
        fresh.ra = (int32_t)r.value[r.return_register];
        fresh.fp = (int32_t)r.value[RSI_REG_FP];
    }
    rsi_store_relaxed(&row->ip, UINT64_C(0));
    rsi_compiler_barrier();
    *row = fresh;
    rsi_compiler_barrier();
    rsi_store_relaxed(&row->ip, ip);
}

RSI_INLINE const struct row *row_of(struct rsi_walker *walker, uint64_t ip, bool is_fresh)
{
    struct row *row = &walker->rows[(ip * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - ROWS_BITS)];
    if (rsi_unlikely(row->ip != ip) || rsi_unlikely(is_fresh))
        fill(row, ip);
    return row;
}

/* The words on the stack may be in a red zone. */
#define NOT_INSTRUMENTED __attribute__((no_sanitize("address", "thread")))

/* Read a word of the stack [low, high). */
__attribute__((noinline)) NOT_INSTRUMENTED static bool stack_word(uintptr_t low, uintptr_t high,
                                                                  uint64_t at, uint64_t *word)
{
    if (at % sizeof *word != 0 || at < low || at >= high || high - at < sizeof *word)
        return false;
    *word = *(const volatile uint64_t *)(uintptr_t)at;
    return true;
}

/* Step from a frame to its caller's. row describes an address inside the call. */
RSI_INLINE bool step(const struct row *row, struct rsi_here *at, uintptr_t high, bool *is_fp_known)
{
    uint32_t flags = row->flags;
    uint64_t low = at->sp, base = flags & ROW_CFA_FP ? at->fp : at->sp;
    uint64_t cfa = base + (uint64_t)(int64_t)row->cfa;
    if (flags & ROW_END || (flags & ROW_CFA_FP && !*is_fp_known) || cfa <= low ||
        !stack_word(low, high, cfa + (uint64_t)(int64_t)row->ra, &at->ip))
        return false;
    if (flags & ROW_FP_SAVED)
        *is_fp_known = stack_word(low, high, cfa + (uint64_t)(int64_t)row->fp, &at->fp);
    else if (flags & ROW_FP_LOST)
        *is_fp_known = false;
    at->ip = rsi_cfi_plain_return((flags & ROW_SIGNED) != 0, at->ip);
    at->sp = cfa;
    return at->ip != 0;
}

unsigned rsi_walk(struct rsi_walker *walker, const struct rsi_here *here, uintptr_t high,
                  uint64_t site, uint64_t *frames, unsigned most, bool is_fresh,
                  struct rsi_trail *trail)
{
    struct rsi_here at = *here;
    uint64_t lookup = at.ip;
    bool is_fp_known = true, is_plain = true;
    unsigned count = 0, inner = 0;
    while (count < most && inner < INNER_MOST) {
        const struct row *row = row_of(walker, lookup, is_fresh);
        uint32_t n = count + inner;
        if (!step(row, &at, high, &is_fp_known))
            break;
        is_plain = is_plain && !(row->flags & (ROW_CFA_FP | ROW_SIGNED)) && n < RSI_TRAIL_MOST;
        if (is_plain) {
            trail->offsets[n] = (uint32_t)(at.sp - here->sp) + (uint32_t)row->ra;
            trail->values[n] = at.ip;
        }
        if (count == 0 ? at.ip != site : at.ip - left_out.low < left_out.size)
            inner++;
        else
            frames[count++] = at.ip;
        lookup = at.ip - 1;
    }
    trail->room = count == most ? 0 : high - here->sp;
    trail->count = is_plain && count ? count + inner : 0;
    return count;
}

static struct path *paths_of(const struct rsi_walker *walker, uint64_t site)
{
    uint64_t at = (site * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - PATHS_BITS);
    return (struct path *)(uintptr_t)walker->paths[at];
}

RSI_INLINE NOT_INSTRUMENTED bool is_same(const struct rsi_trail *trail, const struct rsi_here *here,
                                         uintptr_t high)
{
    uint64_t room = high - here->sp;
    if (trail->room && trail->room != room)
        return false;
    for (uint32_t n = trail->count;
         /* outermost first: the innermost frames are the runtime's own and rarely differ */
         n-- > 0;) {
        uint64_t offset = trail->offsets[n];
        if (offset + sizeof(uint64_t) > room ||
            *(const volatile uint64_t *)(uintptr_t)(here->sp + offset) != trail->values[n])
            return false;
    }
    return true;
}

NOT_INSTRUMENTED uint64_t rsi_walk_number(const struct rsi_walker *walker,
                                          const struct rsi_here *here, uintptr_t high,
                                          uint64_t site)
{
    const struct path *paths = paths_of(walker, site);
    uint32_t changes = rsi_load_relaxed(&walker->changes);
    for (unsigned i = 0; i < PATHS_WAYS && high > here->sp; i++) {
        rsi_compiler_barrier();
        uint64_t number = paths[i].number;
        if (paths[i].site == site && paths[i].ip == here->ip &&
            is_same(&paths[i].trail, here, high)) {
            rsi_compiler_barrier();
            return rsi_load_relaxed(&walker->changes) == changes ? number : RSI_WALK_UNKNOWN;
        }
    }
    return RSI_WALK_UNKNOWN;
}

/*
 * Replaces the oldest path. A signal handler in between finds either no path of this site or a complete one.
 */
void rsi_walk_keep(struct rsi_walker *walker, const struct rsi_here *here, uint64_t site,
                   const struct rsi_trail *trail, uint64_t number)
{
    if (trail->count == 0)
        return;
    uint32_t changes = walker->changes + 1;
    rsi_store_relaxed(&walker->changes, changes);
    struct path *path = &paths_of(walker, site)[changes % PATHS_WAYS];
    rsi_store_relaxed(&path->site, UINT64_C(0));
    rsi_compiler_barrier();
    path->ip = here->ip;
    path->number = number;
    path->trail = *trail;
    rsi_compiler_barrier();
    rsi_store_relaxed(&path->site, site);
}
