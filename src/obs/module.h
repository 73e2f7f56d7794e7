/* SPDX-License-Identifier: MIT */
/* module.h - which files of code a recording's sites are in. */
#ifndef RSI_OBS_MODULE_H
#define RSI_OBS_MODULE_H

#include "obs/ledger.h"

/* See that the module of a site is in the file. Any thread; cheap for one that is. */
void rsi_module_note(struct rsi_writer *writer, uint64_t site);

/* In a child after fork: none is. */
void rsi_modules_child(void);

#endif
