/* SPDX-License-Identifier: MIT */
/* module.h - which files of code a recording's sites are in. */
#ifndef RSI_OBS_MODULE_H
#define RSI_OBS_MODULE_H

#include "obs/ledger.h"

#include <link.h>

struct dl_find_object;

struct rsi_module_headers {
    const ElfW(Phdr) * first;
    size_t count;
};

/* A module's program headers; count is 0 where they are not to be seen. */
struct rsi_module_headers rsi_module_headers_of(const struct dl_find_object *found);

/* See that the module of a site is in the file. Any thread; cheap for one that is. */
void rsi_module_note(struct rsi_writer *writer, uint64_t site);

/* In a child after fork: none is. */
void rsi_modules_child(void);

#endif
