/* SPDX-License-Identifier: MIT */
/* misuse.c - how a program ends that uses a sync object wrongly. */
#include "sync/misuse.h"

_Noreturn void rsi_misuse(const char *type, const void *object, const char *name, const char *what,
                          const void *site)
{
    if (name)
        rsi_fatal("%s \"%s\" %p %s, called from %p", type, name, object, what, site);
    rsi_fatal("%s %p %s, called from %p", type, object, what, site);
}
