/* SPDX-License-Identifier: MIT */
/*
 * kernel_join.c - shows `rouse run --kernel` how to read a thread's slot, so that it knows the wait of a thread that
 * the kernel switches away.
 *
 * rouse_preload_join does nothing. The kernel recorder puts a uprobe on it, and the call's arguments are all that it
 * needs to read a thread's slot. The call comes before the process's first recorded wait, so no wait is missed.
 */
#include "record/kernel_join.h"

#include "record/thread.h"

#include <rouse/obs.h>
#include <stddef.h>

struct rpi_kernel_join {
    /* Offsets of the slot's address in struct rpi_thread, and of words in the slot. */
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

/*
 * self: the address of the calling thread's rpi_self. Every thread has it at the same distance from its thread
 * pointer.
 */
RPI_EXPORT RSI_NOINLINE void rouse_preload_join(struct rpi_thread *const *self,
                                                const struct rpi_kernel_join *how);
void rouse_preload_join(struct rpi_thread *const *self, const struct rpi_kernel_join *how)
{
    __asm__ volatile("" : : "r"(self), "r"(how) : "memory"); /* keep the call */
}

void rpi_kernel_join_begin(void)
{
    rouse_preload_join(&rpi_self, &join);
}
