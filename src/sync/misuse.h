/* SPDX-License-Identifier: MIT */
/* misuse.h - ends the program with a message when a sync object is misused. */
#ifndef RSI_SYNC_MISUSE_H
#define RSI_SYNC_MISUSE_H

#include "base/base.h"

/*
 * The holder of an object and the site where it acquired it; read while other threads may change them.
 */
struct rsi_holder {
    const struct rouse_thread *thread; /* NULL: no thread */
    const void *site;
};

/*
 * Print one line and end the program: the type, name (may be NULL) and address of the object, the misuse, the call
 * site, and the holder (NULL: the object has none). what continues the sentence after the address: "unlocked by a
 * thread that does not hold it".
 */
_Noreturn RSI_COLD void rsi_misuse(const char *type, const void *object, const char *name,
                                   const char *what, const void *site,
                                   const struct rsi_holder *holder);

#endif
