/* SPDX-License-Identifier: MIT */
/* mapping.h - finds the memory mapping around an address. */
#ifndef RSI_OBS_MAPPING_H
#define RSI_OBS_MAPPING_H

#include "obs/unwind.h"

/*
 * The readable mapping around address. Its length is 0 if there is none, or if /proc cannot be read. For stacks
 * that rouse did not create, whose bounds are not known otherwise. Async-signal-safe.
 */
void rsi_mapping_find(uintptr_t address, struct rsi_span *span);

#endif
