/* SPDX-License-Identifier: MIT */
/* fault.h - stack overflows and other faults, and the signal stacks they need (fault.c). */
#ifndef RSI_CORE_FAULT_H
#define RSI_CORE_FAULT_H

#include "base/base.h"

struct rsi_worker;

void rsi_fault_setup(void);
bool rsi_fault_prepare_worker(struct rsi_worker *w);
void rsi_fault_setup_worker(struct rsi_worker *w);
void rsi_fault_end_worker(void);
void *rsi_fault_stack_take(void);
void rsi_fault_stack_give(void *stack);
void rsi_fault_begin_kernel(void *signal_stack);
void rsi_fault_end_kernel(void);
void rsi_fault_child(void);

#endif
