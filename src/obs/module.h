/* SPDX-License-Identifier: MIT */
/* module.h - records the files of code (modules) that the sites of a recording are in. */
#ifndef RSI_OBS_MODULE_H
#define RSI_OBS_MODULE_H

#include "obs/ledger.h"

#include <link.h>

struct dl_find_object;

struct rsi_module_headers {
    const ElfW(Phdr) * first;
    size_t count;
};

/* A module's program headers; count is 0 if they cannot be read. */
struct rsi_module_headers rsi_module_headers_of(const struct dl_find_object *found);

/* Record the module that contains site, once. Any thread; cheap if it is recorded already. */
void rsi_module_note(struct rsi_writer *writer, uint64_t site);

/* Forget all modules, in a child after fork. */
void rsi_modules_child(void);

#endif
