/* SPDX-License-Identifier: MIT */
/*
 * symbol.h - symbol names of code addresses, for text that is written in signal handlers.
 *
 * They are read from the modules' files, since only those contain a program's static functions. No locks, no
 * malloc, nothing of libc except _dl_find_object and getauxval. A name is given only if the symbol's size says that
 * it contains the address; otherwise the text is the module and the offset in it. C++ names stay mangled; use
 * c++filt.
 */
#ifndef RSI_OBS_SYMBOL_H
#define RSI_OBS_SYMBOL_H

#include "base/base.h"

#define RSI_MODULES_MAX 32
#define RSI_SYMBOLS_CACHED 1024
#define RSI_MODULE_NAME_BYTES 64

struct rsi_module {
    /* range of its mapping, or a part; 0: this entry and those after it are free */
    uintptr_t start, end;
    uintptr_t bias; /* difference of its addresses from the file's */
    char name[RSI_MODULE_NAME_BYTES];
    char *table, *strings; /* copies of its symbol and string tables; NULL: none */
    size_t table_bytes, strings_bytes;
};

struct rsi_found {
    uintptr_t address;
    const struct rsi_module *module; /* NULL: not in a module */
    const char *symbol;              /* NULL: no symbol contains it */
    uint64_t offset;                 /* from the symbol */
};

/* Initially all zero, as rsi_map returns it. */
struct rsi_symbols {
    struct rsi_module modules[RSI_MODULES_MAX];
    struct rsi_found cache[RSI_SYMBOLS_CACHED];
};

/*
 * Format address as "function+0x1c (module+0x11fc)", "module+0x11fc" or "0x7f...". The last number is the argument
 * for addr2line. Returns the bytes before the final 0.
 */
size_t rsi_symbol_format(struct rsi_symbols *symbols, const void *address, char *buffer,
                         size_t bytes);

/* Release everything that was read. */
void rsi_symbols_end(struct rsi_symbols *symbols);

#endif
