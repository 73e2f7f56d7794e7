/* SPDX-License-Identifier: MIT */
/* misuse.c - ends the program with a message when a sync object is misused. */
#include "sync/misuse.h"

#include "core/observe.h"

#define SITE_BYTES 160

_Noreturn void rsi_misuse(const char *type, const void *object, const char *name, const char *what,
                          const void *site, const struct rsi_holder *holder)
{
    char quoted[64] = "", call[SITE_BYTES], acquired[SITE_BYTES], held[SITE_BYTES + 64] = "";
    if (name)
        rsi_format(quoted, sizeof quoted, " \"%s\"", name);
    rsi_obs_site_format(site, call, sizeof call);
    if (holder && holder->thread) {
        rsi_obs_site_format(holder->site, acquired, sizeof acquired);
        rsi_format(held, sizeof held, "; held by thread %lu, acquired at %s",
                   rouse_thread_id(holder->thread), acquired);
    }
    rsi_fatal("%s%s %p %s, called from %s%s", type, quoted, object, what, call, held);
}
