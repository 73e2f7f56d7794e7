/* SPDX-License-Identifier: MIT */
/* obs.c - recording: its mode, the names of its values, and a thread's latest wait. */
#include "core/account.h"
#include "core/sampling.h"
#include "obs/signal_unwind.h"
#include "obs/file.h"
#include "obs/inspect.h"
#include "obs/site.h"
#include "obs/trace.h"
#include "obs/walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* When recording was last switched on. */
static uint64_t on_since_tsc;

static const char *const kind_names[ROUSE_WAIT_KINDS] = {
    [ROUSE_WAIT_NONE] = "none",
    [ROUSE_WAIT_MUTEX] = "mutex",
    [ROUSE_WAIT_READ_LOCK] = "read lock",
    [ROUSE_WAIT_WRITE_LOCK] = "write lock",
    [ROUSE_WAIT_COND] = "condition",
    [ROUSE_WAIT_SEM] = "semaphore",
    [ROUSE_WAIT_BARRIER] = "barrier",
    [ROUSE_WAIT_ONCE] = "once",
    [ROUSE_WAIT_JOIN] = "join",
    [ROUSE_WAIT_SLEEP] = "sleep",
    [ROUSE_WAIT_READ] = "read",
    [ROUSE_WAIT_WRITE] = "write",
    [ROUSE_WAIT_ACCEPT] = "accept",
    [ROUSE_WAIT_CONNECT] = "connect",
    [ROUSE_WAIT_BLOCKING] = "blocking call",
    [ROUSE_WAIT_SET] = "set",
    [ROUSE_WAIT_POLL] = "poll",
};

static const char *const verdict_names[ROUSE_VERDICTS] = {
    [ROUSE_VERDICT_NONE] = "none",           [ROUSE_VERDICT_USEFUL] = "useful",
    [ROUSE_VERDICT_LOST_RACE] = "lost-race", [ROUSE_VERDICT_FALSE] = "false",
    [ROUSE_VERDICT_EARLY] = "early",         [ROUSE_VERDICT_TIMEOUT] = "timeout",
    [ROUSE_VERDICT_CANCELLED] = "cancelled",
};

const char *rouse_wait_kind_name(uint32_t kind)
{
    return kind < ROUSE_WAIT_KINDS ? kind_names[kind] : "?";
}

const char *rouse_verdict_name(uint32_t verdict)
{
    return verdict < ROUSE_VERDICTS ? verdict_names[verdict] : "?";
}

static int set_mode(uint32_t mode)
{
    int error = rsi_holds_setup(mode == ROUSE_OBS_LOCKS);
    if (error)
        return error;
    if (mode != ROUSE_OBS_OFF && rsi_load_relaxed(&rsi_obs_mode) == ROUSE_OBS_OFF)
        rsi_store_relaxed(&on_since_tsc, rsi_tsc());
    rsi_trace_set_mode(mode);
    rsi_sampling_begin_era(); /* workers' last time stamps may be old */
    return 0;
}

int rouse_obs_set_mode(enum rouse_obs_mode mode)
{
    if ((unsigned)mode > ROUSE_OBS_EXACT)
        return -EINVAL;
    rsi_runtime_start();
    return set_mode((uint32_t)mode);
}

bool rsi_obs_is_current(uint64_t since_tsc)
{
    return rsi_load_relaxed(&rsi_obs_mode) != ROUSE_OBS_OFF &&
           since_tsc >= rsi_load_relaxed(&on_since_tsc);
}

void rouse_obs_last_wait(struct rouse_wait_record *record)
{
    const struct rsi_wait *wait = &rsi_self()->waiter.record;
    const struct rsi_store_thread *slot = wait->slot;
    *record = (struct rouse_wait_record){
        .object = wait->object,
        .wait_site = wait->wait_site,
        .kind = wait->kind,
    };
    if (!slot || slot->waits == 0)
        return;
    record->since_tsc = slot->since_tsc < rsi_load_relaxed(&slot->wake_tsc)
                            ? slot->since_tsc
                            : rsi_load_relaxed(&slot->wake_tsc);
    record->verdict = rsi_load_relaxed(&slot->verdict);
    record->wake_tsc = rsi_load_relaxed(&slot->wake_tsc);
    record->wake_site = rsi_site_address(rsi_load_relaxed(&slot->wake_site));
    record->waker_id = rsi_load_relaxed(&slot->waker_id);
    record->wait_count = slot->waits;
    record->useless_count = slot->useless;
}

static size_t describe(char *buffer, size_t bytes)
{
    struct rsi_exec *exec = rsi_exec_self();
    /* A helper thread is described as the thread that it works for. */
    struct rouse_thread *caller = rsi_blocking_caller(), *t = caller ? caller : exec->current;
    if (!t)
        return 0;
    char name[ROUSE_NAME_BYTES];
    rouse_thread_name(t, name, sizeof name);
    return rsi_format(buffer, bytes, name[0] ? " (thread %lu \"%s\")" : " (thread %lu)", t->id,
                      name);
}

static uint32_t mode_from_environment(void)
{
    const char *text = secure_getenv("ROUSE_OBS");
    if (text && strcmp(text, "off") == 0)
        return ROUSE_OBS_OFF;
    if (text && strcmp(text, "locks") == 0)
        return ROUSE_OBS_LOCKS;
    if (text && strcmp(text, "trace") == 0)
        return ROUSE_OBS_TRACE;
    if (text && strcmp(text, "exact") == 0)
        return ROUSE_OBS_EXACT;
    if (text && *text && strcmp(text, "counted") != 0)
        rsi_fatal("ROUSE_OBS is \"%s\"; give off, counted, exact, locks or trace", text);
    return ROUSE_OBS_COUNTED;
}

void rsi_obs_setup(void)
{
    rsi_fatal_describe = describe;
    if (!rsi_sites_setup(rsi_signal_unwind_stack_end))
        rsi_fatal("ROUSE_OBS_DEPTH is \"%s\"; give a number from 1 to %d",
                  secure_getenv("ROUSE_OBS_DEPTH"), RSI_SITE_FRAMES);
    if (set_mode(mode_from_environment()) != 0)
        rsi_fatal("no memory for ROUSE_OBS=locks");
    rsi_dump_setup();
}
