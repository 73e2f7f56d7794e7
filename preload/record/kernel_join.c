/* SPDX-License-Identifier: MIT */
/*
 * kernel_join.c - for who watches the kernel's scheduler: how to find out, when a thread is switched away, which wait it is in.
 *
 * rouse_preload_join does nothing. `rouse run --kernel` has the kernel tell it of each call (a uprobe), whose arguments are
 * all that it needs to read a thread's slot; then there is no moment at which a process waits and is not known yet.
 */
#include "preload.h"

#include <stddef.h>

struct rpi_kernel_join {
    /* Offsets: of the slot's address in a thread, of words in the slot. */
    uint32_t slot, doing, kind, object, wait_site;
    uint32_t does_wait, condition; /* values of doing and kind */
};

static const struct rpi_kernel_join join = {
    .slot = offsetof(struct rpi_thread, slot),
    .doing = offsetof(struct rsi_store_thread, doing),
    .kind = offsetof(struct rsi_store_thread, kind),
    .object = offsetof(struct rsi_store_thread, object),
    .wait_site = offsetof(struct rsi_store_thread, wait_site),
    .does_wait = RSI_DOES_WAIT,
    .condition = ROUSE_WAIT_COND,
};

/* self: where the calling thread's thread is told; in other threads it lies as far from the thread's own pointer. */
RPI_EXPORT RSI_NOINLINE void rouse_preload_join(struct rpi_thread *const *self,
                                                const struct rpi_kernel_join *how);
void rouse_preload_join(struct rpi_thread *const *self, const struct rpi_kernel_join *how)
{
    __asm__ volatile("" : : "r"(self), "r"(how) : "memory"); /* the call is not left out */
}

void rpi_kernel_join_begin(void)
{
    rouse_preload_join(&rpi_self, &join);
}
