/* SPDX-License-Identifier: MIT */
/* obs_test.h - helpers of the obs tests: which function contains an address. */
#ifndef OBS_TEST_H
#define OBS_TEST_H

#include "unit/core/core_test.h"
#include "obs/inspect.h"
#include "obs/symbol.h"

/* A function that keeps its own call and frame. If it ends with a call, KEEP_FRAME must follow. */
#if defined(__clang__)
#define FRAME __attribute__((noinline))
#else
#define FRAME __attribute__((noinline, noclone))
#endif
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static struct rsi_symbols symbols_of_test;

/* The text is valid until the next call. */
static MAYBE_UNUSED const char *name_of(const void *address)
{
    static char text[256];
    rsi_symbol_format(&symbols_of_test, address, text, sizeof text);
    return text;
}

/* The compilers add suffixes to names. */
static MAYBE_UNUSED bool is_in(const void *address, const char *function)
{
    const char *text = name_of(address);
    size_t length = strlen(function);
    return strncmp(text, function, length) == 0 && (text[length] == '+' || text[length] == '.');
}

/* Whether a public call's own caller is known. Link-time optimisation inlines the call into it. */
#if defined(ROUSE_TEST_LTO)
#define SITES_ARE_KEPT false
#else
#define SITES_ARE_KEPT true
#endif

/* The same for a return address. */
static MAYBE_UNUSED bool is_site_in(const void *site, const char *function)
{
    return site && (!SITES_ARE_KEPT || is_in((const char *)site - 1, function));
}

#endif
