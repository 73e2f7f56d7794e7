/* SPDX-License-Identifier: MIT */
/*
 * unwind.c - steps from frame to frame, using the call frame information of cfi.c.
 *
 * A step computes the canonical frame address (CFA: the stack pointer before the call) and reads the caller's
 * registers from where they were saved. A register that was neither known nor saved stays unknown, and a rule that
 * needs it ends the walk.
 *
 * Rejected: libgcc's unwinder. It starts only at its own caller, and trusts what it reads. A thread that was
 * interrupted in the middle of a context switch, or in code with inexact information, would crash the program being
 * examined.
 */
#include "obs/unwind.h"

#include "obs/cfi.h"

#include <string.h>
#include <ucontext.h>

#define EXPRESSION_DEPTH 16

struct walk {
    struct rsi_regs regs;
    const struct rsi_span *spans;
    struct rsi_cfi_row row;
};

struct stack {
    uint64_t value[EXPRESSION_DEPTH];
    unsigned depth;
    bool is_bad;
};

/*
 * Not instrumented: the word may be in the red zone of another frame, or be written concurrently.
 */
__attribute__((noinline, no_sanitize("address", "thread"))) static uint64_t raw_word(uintptr_t at)
{
    return *(const volatile uint64_t *)at;
}

static bool stack_word(const struct walk *w, uint64_t address, uint64_t *word)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct rsi_span *span = &w->spans[i];
        if (address % sizeof *word == 0 && address >= span->low && address < span->high &&
            span->high - address >= sizeof *word) {
            *word = raw_word(address);
            return true;
        }
    }
    return false;
}

static bool reg_value(const struct rsi_regs *regs, uint64_t reg, uint64_t *value)
{
    if (reg >= RSI_REGS || !(regs->known >> reg & 1))
        return false;
    *value = regs->value[reg];
    return true;
}

static void push(struct stack *s, uint64_t value)
{
    if (s->depth == EXPRESSION_DEPTH)
        s->is_bad = true;
    else
        s->value[s->depth++] = value;
}

static uint64_t pop(struct stack *s)
{
    if (s->depth == 0) {
        s->is_bad = true;
        return 0;
    }
    return s->value[--s->depth];
}

/* DW_OP_breg: a register and an offset. */
static void push_register(const struct walk *w, struct stack *s, uint64_t reg, int64_t offset)
{
    uint64_t value = w->regs.ip;
#if defined(__x86_64__)
    bool is_known = reg == RSI_REG_RETURN || reg_value(&w->regs, reg, &value);
#else
    bool is_known = reg_value(&w->regs, reg, &value);
#endif
    if (!is_known)
        s->is_bad = true;
    push(s, value + (uint64_t)offset);
}

static void binary(struct stack *s, uint8_t op)
{
    uint64_t b = pop(s), a = pop(s);
    switch (op) {
    case 0x1a: push(s, a & b); break;
    case 0x1c: push(s, a - b); break;
    case 0x1e: push(s, a * b); break;
    case 0x21: push(s, a | b); break;
    case 0x22: push(s, a + b); break;
    case 0x24: push(s, b < 64 ? a << b : 0); break;
    case 0x25: push(s, b < 64 ? a >> b : 0); break;
    case 0x27: push(s, a ^ b); break;
    case 0x29: push(s, a == b); break;
    case 0x2a: push(s, (int64_t)a >= (int64_t)b); break;
    case 0x2b: push(s, (int64_t)a > (int64_t)b); break;
    case 0x2c: push(s, (int64_t)a <= (int64_t)b); break;
    case 0x2d: push(s, (int64_t)a < (int64_t)b); break;
    case 0x2e: push(s, a != b); break;
    default: s->is_bad = true;
    }
}

static void constant(struct stack *s, struct rsi_bytes *b, uint8_t op)
{
    /* 0x08 to 0x0f: 1, 2, 4, 8 bytes, each without and with sign; then LEB128 */
    unsigned bytes = 1u << ((op - 0x08) / 2);
    if (op == 0x10)
        push(s, rsi_bytes_uleb(b));
    else if (op == 0x11)
        push(s, (uint64_t)rsi_bytes_sleb(b));
    else
        push(s, op & 1 ? (uint64_t)rsi_bytes_signed(b, bytes) : rsi_bytes_take(b, bytes));
}

static void operate(const struct walk *w, struct stack *s, struct rsi_bytes *b, uint8_t op)
{
    uint64_t value;
    if (op >= 0x30 && op <= 0x4f) { /* lit */
        push(s, op - 0x30);
    } else if (op >= 0x70 && op <= 0x8f) { /* breg */
        push_register(w, s, op - 0x70, rsi_bytes_sleb(b));
    } else if (op >= 0x08 && op <= 0x11) {
        constant(s, b, op);
    } else if (op == 0x06) { /* deref */
        if (!stack_word(w, pop(s), &value))
            s->is_bad = true;
        else
            push(s, value);
    } else if (op == 0x12) { /* dup */
        value = pop(s);
        push(s, value);
        push(s, value);
    } else if (op == 0x13) { /* drop */
        pop(s);
    } else if (op == 0x23) { /* plus_uconst */
        push(s, pop(s) + rsi_bytes_uleb(b));
    } else if (op != 0x96) { /* nop */
        binary(s, op);
    }
}

/*
 * Evaluate the expression at place, which begins with its length. seed, if not NULL, is pushed first.
 */
static bool evaluate(const struct walk *w, const uint8_t *place, const uint64_t *seed,
                     uint64_t *value)
{
    struct stack s = { .depth = 0 };
    struct rsi_bytes b = { place, place + 16, false };
    uint64_t length = rsi_bytes_uleb(&b);
    b.end = b.at + length;
    if (seed)
        push(&s, *seed);
    while (b.at < b.end && !s.is_bad)
        operate(w, &s, &b, (uint8_t)rsi_bytes_take(&b, 1));
    *value = pop(&s);
    return !s.is_bad && !b.is_bad;
}

static bool find_cfa(const struct walk *w, uint64_t *cfa)
{
    if (w->row.cfa_expression)
        return evaluate(w, w->row.cfa_expression, NULL, cfa);
    if (!reg_value(&w->regs, w->row.cfa_register, cfa))
        return false;
    *cfa += (uint64_t)w->row.cfa_offset;
    return true;
}

/* The caller's value of one register. False: unknown. */
static bool caller_value(const struct walk *w, unsigned reg, uint64_t cfa, uint64_t *value)
{
    int64_t rule_value = w->row.value[reg];
    const uint8_t *expression = (const uint8_t *)(intptr_t)rule_value;
    switch (w->row.kind[reg]) {
    case RSI_RULE_SAME: return reg_value(&w->regs, reg, value);
    case RSI_RULE_AT_CFA: return stack_word(w, cfa + (uint64_t)rule_value, value);
    case RSI_RULE_IS_CFA: *value = cfa + (uint64_t)rule_value; return true;
    case RSI_RULE_REGISTER: return reg_value(&w->regs, (uint64_t)rule_value, value);
    case RSI_RULE_AT_EXPRESSION:
        return evaluate(w, expression, &cfa, value) && stack_word(w, *value, value);
    case RSI_RULE_IS_EXPRESSION: return evaluate(w, expression, &cfa, value);
    default: return false;
    }
}

enum step { STEP_DONE, STEP_LAST, STEP_LOST };

/*
 * The thread was interrupted in a stub of the linker, which on AArch64 has no description and no frame.
 */
static enum step step_stub(struct walk *w)
{
#if defined(__aarch64__)
    if (w->regs.is_exact && reg_value(&w->regs, RSI_REG_RETURN, &w->regs.ip)) {
        w->regs.is_exact = false;
        return STEP_DONE;
    }
#endif
    (void)w;
    return STEP_LOST;
}

static enum step step(struct walk *w)
{
    uint64_t cfa, lookup = w->regs.ip - !w->regs.is_exact;
    if (!rsi_cfi_find(lookup, &w->row))
        return step_stub(w);
    uint64_t return_register = w->row.return_register;
    if (return_register >= RSI_REGS)
        return STEP_LOST;
    if (w->row.kind[return_register] == RSI_RULE_UNDEFINED)
        return STEP_LAST;
    if (!find_cfa(w, &cfa))
        return STEP_LOST;
    struct rsi_regs caller = { .is_exact = w->row.is_signal_frame };
    for (unsigned reg = 0; reg < RSI_REGS; reg++) {
        if (caller_value(w, reg, cfa, &caller.value[reg]))
            caller.known |= UINT64_C(1) << reg;
    }
    if (w->row.kind[RSI_REG_SP] == RSI_RULE_SAME) {
        caller.value[RSI_REG_SP] = cfa;
        caller.known |= UINT64_C(1) << RSI_REG_SP;
    }
    if (!reg_value(&caller, return_register, &caller.ip))
        return STEP_LOST;
    caller.ip = rsi_cfi_plain_return(w->row.is_signed_return, caller.ip);
    if (caller.ip == 0)
        return STEP_LAST;
    w->regs = caller;
    return STEP_DONE;
}

enum rsi_unwound rsi_unwind(const struct rsi_regs *start, const struct rsi_span *spans,
                            const void **frames, size_t max, size_t *count)
{
    struct walk w = { .regs = *start, .spans = spans };
    *count = 0;
    for (;;) {
        if (*count == max)
            return RSI_UNWOUND_FULL;
        frames[(*count)++] = (const void *)(uintptr_t)(w.regs.ip - !w.regs.is_exact);
        enum step stepped = step(&w);
        if (stepped != STEP_DONE)
            return stepped == STEP_LAST ? RSI_UNWOUND_ALL : RSI_UNWOUND_LOST;
    }
}

struct rsi_regs rsi_regs_parked(const void *sp, const void *ip, const void *fp)
{
    struct rsi_regs regs = { .ip = (uintptr_t)ip, .is_exact = true };
    regs.value[RSI_REG_SP] = (uintptr_t)sp;
    regs.value[RSI_REG_FP] = (uintptr_t)fp;
    regs.known = UINT64_C(1) << RSI_REG_SP | UINT64_C(1) << RSI_REG_FP;
    return regs;
}

void rsi_regs_from_context(struct rsi_regs *regs, const void *ucontext)
{
    const ucontext_t *uc = ucontext;
    memset(regs, 0, sizeof *regs);
    regs->is_exact = true;
#if defined(__x86_64__)
    static const uint8_t place[16] = { REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
                                       REG_RBP, REG_RSP, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15 };
    for (unsigned reg = 0; reg < 16; reg++)
        regs->value[reg] = (uint64_t)uc->uc_mcontext.gregs[place[reg]];
    regs->known = 0xffff;
    regs->ip = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
#else
    for (unsigned reg = 0; reg < 31; reg++)
        regs->value[reg] = uc->uc_mcontext.regs[reg];
    regs->value[RSI_REG_SP] = uc->uc_mcontext.sp;
    regs->known = UINT32_MAX;
    regs->ip = uc->uc_mcontext.pc;
#endif
}
