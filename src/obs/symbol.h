/* SPDX-License-Identifier: MIT */
/*
 * symbol.h - names for addresses of code, for text that is written in signal handlers.
 *
 * Read from the modules' files, since a program's own static functions stand there only. No locks, no
 * malloc, no libc but _dl_find_object and getauxval. A name is given only if the symbol's size says that it
 * contains the address; else it is the module and the offset in it. C++ names stay as they are: c++filt reads
 * them.
 */
#ifndef RSI_OBS_SYMBOL_H
#define RSI_OBS_SYMBOL_H

#include "base/base.h"

#define RSI_MODULES_MAX 32
#define RSI_SYMBOLS_CACHED 1024
#define RSI_MODULE_NAME_BYTES 64

struct rsi_module {
    uintptr_t start, end; /* of its mapping, or a part; 0: this entry and those after are free */
    uintptr_t bias;       /* of its addresses over the file's */
    char name[RSI_MODULE_NAME_BYTES];
    char *table, *strings; /* copies of its symbol and string tables; NULL: none */
    size_t table_bytes, strings_bytes;
};

struct rsi_found {
    uintptr_t address;
    const struct rsi_module *module; /* NULL: not in a module */
    const char *symbol;              /* NULL: none contains it */
    uint64_t offset;                 /* from the symbol */
};

/* All zero to begin with, which is what rsi_map gives. */
struct rsi_symbols {
    struct rsi_module modules[RSI_MODULES_MAX];
    struct rsi_found cache[RSI_SYMBOLS_CACHED];
};

/*
 * "function+0x1c (module+0x11fc)", "module+0x11fc" or "0x7f...": the last number is what addr2line wants.
 * Returns the bytes before the 0.
 */
size_t rsi_symbol_format(struct rsi_symbols *symbols, const void *address, char *buffer,
                         size_t bytes);

/* Give back what was read. */
void rsi_symbols_end(struct rsi_symbols *symbols);

#endif
