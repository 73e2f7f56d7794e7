/* SPDX-License-Identifier: MIT */
/*
 * cfi.h - what .eh_frame says of an instruction: where its caller's registers are.
 */
#ifndef RSI_OBS_CFI_H
#define RSI_OBS_CFI_H

#include "obs/unwind.h"

enum rsi_rule {
    RSI_RULE_SAME, /* not mentioned: the register is as it was */
    RSI_RULE_UNDEFINED,
    RSI_RULE_AT_CFA,        /* saved at CFA + value */
    RSI_RULE_IS_CFA,        /* is CFA + value */
    RSI_RULE_REGISTER,      /* is in register value */
    RSI_RULE_AT_EXPRESSION, /* saved at what the expression at address value says */
    RSI_RULE_IS_EXPRESSION, /* is what the expression at address value says */
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
    bool is_signal_frame;  /* its caller was interrupted: ip is no return address */
};

/* Bytes being decoded; once too few are left it is bad and gives zeros. */
struct rsi_bytes {
    const uint8_t *at, *end;
    bool is_bad;
};

uint64_t rsi_bytes_take(struct rsi_bytes *b, unsigned bytes);
int64_t rsi_bytes_signed(struct rsi_bytes *b, unsigned bytes);
uint64_t rsi_bytes_uleb(struct rsi_bytes *b);
int64_t rsi_bytes_sleb(struct rsi_bytes *b);
void rsi_bytes_skip(struct rsi_bytes *b, uint64_t bytes);

/* Fill row for the instruction at ip. False: nothing is known of it. Signal handlers may call it. */
bool rsi_cfi_find(uint64_t ip, struct rsi_cfi_row *row);

/* Take the authentication code out of a signed return address. */
RSI_INLINE uint64_t rsi_cfi_plain_return(bool is_signed, uint64_t address)
{
#if defined(__aarch64__)
    if (is_signed) {
        register uint64_t x30 __asm__("x30") = address;
        __asm__("hint #7" : "+r"(x30)); /* xpaclri; a nop where it is not known */
        return x30;
    }
#endif
    (void)is_signed;
    return address;
}

#endif
