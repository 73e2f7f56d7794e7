/* SPDX-License-Identifier: MIT */
/* counting.h - `rouse-kernel count`. */
#ifndef RSI_KERNEL_COUNTING_H
#define RSI_KERNEL_COUNTING_H

/* Answer the lines of standard input until it ends. */
void rsi_bpf_count(void);

#endif
