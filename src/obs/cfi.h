/* SPDX-License-Identifier: MIT */
/*
 * cfi.h - call frame information: what .eh_frame says about where the caller's registers are at an instruction.
 */
#ifndef RSI_OBS_CFI_H
#define RSI_OBS_CFI_H

#include "obs/unwind.h"

enum rsi_rule {
    RSI_RULE_SAME, /* not mentioned: the register is unchanged */
    RSI_RULE_UNDEFINED,
    RSI_RULE_AT_CFA,        /* saved at CFA + value */
    RSI_RULE_IS_CFA,        /* is CFA + value */
    RSI_RULE_REGISTER,      /* is in register value */
    RSI_RULE_AT_EXPRESSION, /* saved at the result of the expression at address value */
    RSI_RULE_IS_EXPRESSION, /* is the result of the expression at address value */
};

/* The rules that hold at one instruction. */
struct rsi_cfi_row {
    uint8_t kind[RSI_REGS];
    int64_t value[RSI_REGS];
    const uint8_t *cfa_expression; /* NULL: cfa_register + cfa_offset */
    uint64_t cfa_register;
    int64_t cfa_offset;
    uint64_t return_register;
    bool is_signed_return; /* AArch64: the return address carries an authentication code */
    bool is_signal_frame;  /* its caller was interrupted: ip is not a return address */
};

/* Bytes being decoded. If too few are left, is_bad is set and reads return 0. */
struct rsi_bytes {
    const uint8_t *at, *end;
    bool is_bad;
};

uint64_t rsi_bytes_take(struct rsi_bytes *b, unsigned bytes);
int64_t rsi_bytes_signed(struct rsi_bytes *b, unsigned bytes);
uint64_t rsi_bytes_uleb(struct rsi_bytes *b);
int64_t rsi_bytes_sleb(struct rsi_bytes *b);
void rsi_bytes_skip(struct rsi_bytes *b, uint64_t bytes);

/* Fill row for the instruction at ip. False: no information. Async-signal-safe. */
bool rsi_cfi_find(uint64_t ip, struct rsi_cfi_row *row);

/* Remove the authentication code from a signed return address. */
RSI_INLINE uint64_t rsi_cfi_plain_return(bool is_signed, uint64_t address)
{
#if defined(__aarch64__)
    if (is_signed) {
        register uint64_t x30 __asm__("x30") = address;
        __asm__("hint #7" : "+r"(x30)); /* xpaclri; a nop on CPUs without it */
        return x30;
    }
#endif
    (void)is_signed;
    return address;
}

#endif
