/* SPDX-License-Identifier: MIT */
/* backend.c - choose the backend of this process: io_uring or epoll. */
#include "io/backend.h"

#include "io/ready.h"
#include "io/uring/ring.h"

#include <rouse/io.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct rsi_io_backend *rsi_backend_chosen;

static uint32_t guard;
static const char *why = "no call has needed one yet"; /* released with rsi_backend_chosen */

static enum rouse_io from_environment(void)
{
    const char *text = secure_getenv("ROUSE_IO");
    if (!text || !*text || strcmp(text, "auto") == 0)
        return ROUSE_IO_AUTO;
    if (strcmp(text, "epoll") == 0)
        return ROUSE_IO_EPOLL;
    if (strcmp(text, "uring") != 0)
        rsi_fatal("ROUSE_IO is \"%s\"; give auto, epoll or uring", text);
    return ROUSE_IO_URING;
}

/* Make the rings. Returns NULL, or why there are none. */
static const char *try_rings(void)
{
    const char *refusal = rsi_ring_make_all();
    if (refusal == NULL && rsi_epoll_start() < 0)
        refusal = "no descriptor or memory for an epoll set";
    return refusal;
}

static const struct rsi_io_backend *choose_locked(void)
{
    static bool was_reported;
    enum rouse_io wanted = rsi_config_io();
    wanted = wanted != ROUSE_IO_AUTO ? wanted : from_environment();
    why = "asked for";
    if (wanted == ROUSE_IO_EPOLL)
        return &rsi_epoll_backend;
    const char *refusal = try_rings();
    if (refusal == NULL) {
        why = wanted == ROUSE_IO_URING ? why : "the faster one, and the kernel has it";
        rsi_poller_register(rsi_uring_backend.poller);
        return &rsi_uring_backend;
    }
    why = refusal;
    if (wanted == ROUSE_IO_URING && !was_reported) {
        rsi_report("io_uring was asked for, epoll is used: %s", refusal);
        was_reported = true;
    }
    return &rsi_epoll_backend;
}

RSI_COLD const struct rsi_io_backend *rsi_backend_choose(void)
{
    rsi_guard_lock(&guard);
    const struct rsi_io_backend *backend = rsi_load_relaxed(&rsi_backend_chosen);
    if (backend == NULL) {
        backend = choose_locked();
        rsi_store_release(&rsi_backend_chosen, backend); /* pairs with rouse_io_backend */
        if (backend == &rsi_uring_backend)
            rsi_ring_enable_all();
    }
    rsi_guard_unlock(&guard);
    return backend;
}

const char *rouse_io_backend(const char **reason)
{
    (void)rsi_backend();
    const struct rsi_io_backend *backend = rsi_load_acquire(&rsi_backend_chosen);
    if (reason)
        *reason = why;
    return backend->name;
}

void rsi_backend_child(void)
{
    guard = 0;
    rsi_store_relaxed(&rsi_backend_chosen, NULL);
}
