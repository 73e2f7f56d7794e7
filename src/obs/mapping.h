/* SPDX-License-Identifier: MIT */
/* mapping.h - what is mapped around an address. */
#ifndef RSI_OBS_MAPPING_H
#define RSI_OBS_MAPPING_H

#include "obs/unwind.h"

/*
 * The readable mapping around address; of length 0: there is none, or /proc cannot be read. A stack that rouse did not
 * make is known in no other way. Signal handlers may call it.
 */
void rsi_mapping_find(uintptr_t address, struct rsi_span *span);

#endif
