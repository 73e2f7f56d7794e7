/* SPDX-License-Identifier: MIT */
/* misuse.h - how a program ends that uses a sync object wrongly. */
#ifndef RSI_SYNC_MISUSE_H
#define RSI_SYNC_MISUSE_H

#include "base/base.h"

/* Who holds an object, and by which call it was taken; read while others may change it. */
struct rsi_holder {
    const struct rouse_thread *thread; /* NULL: nobody */
    const void *site;
};

/*
 * One line: type, name (may be NULL) and address of the object, what was done to it and by which call, and
 * its holder (NULL: it cannot have one). what goes on from the address: "unlocked by a thread that does not
 * hold it".
 */
_Noreturn RSI_COLD void rsi_misuse(const char *type, const void *object, const char *name,
                                   const char *what, const void *site,
                                   const struct rsi_holder *holder);

#endif
