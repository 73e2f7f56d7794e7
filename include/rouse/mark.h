/* SPDX-License-Identifier: MIT */
/*
 * rouse/mark.h - marks where the work on one request begins, passes and ends, so that its time can be explained.
 *
 *     rouse_mark("request", id);        it begins here, or passes here if it has begun
 *     ...                               in any threads
 *     rouse_mark_end("request", id);    it ends here
 *
 * `rouse report --section requests` then shows how long the requests took and where their time went: what the threads
 * ran, waited for, and what those did meanwhile that ended the waits. Marks are events, so they are recorded only where
 * events are: by `rouse run --trace`, and in programs that use librouse with ROUSE_OBS=trace.
 *
 * This header is enough: a program that includes it need not be linked with rouse. If nothing records, a call costs a
 * load and a branch. If <sys/sdt.h> is installed where the program is built, each call is also a USDT probe, rouse:mark
 * or rouse:mark_end, with the arguments name and id, for bpftrace and perf.
 *
 * name is a string that stays valid for the call; 55 bytes of it are kept, and a process has at most 64 names. id is any
 * number that no other request of this name has at the same time. The calls do not wait, keep errno, and may be made in
 * any thread, but not in a signal handler. A mark that is not recorded for want of room counts as a lost event.
 */
#ifndef ROUSE_MARK_H
#define ROUSE_MARK_H

#include <dlfcn.h>
#include <stdint.h>
#ifdef __has_include
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The request `id` of this name begins, or passes here. */
static inline void rouse_mark(const char *name, uint64_t id);

/* The request `id` of this name ends. Its number may be used again. */
static inline void rouse_mark_end(const char *name, uint64_t id);

/* The function by which librouse records. Not for programs, as all that follows. */
extern __attribute__((weak, visibility("default"))) void rouse_mark_record(const char *name,
                                                                           uint64_t id, int is_end);

static inline void rsi_mark_nowhere(const char *name, uint64_t id, int is_end)
{
    (void)name;
    (void)id;
    (void)is_end;
}

typedef void rsi_mark_recorder(const char *name, uint64_t id, int is_end);

/* The recorder of this process, found at the first call: librouse, the library of `rouse run`, or nothing. */
static inline rsi_mark_recorder *rsi_mark_find(void)
{
    static rsi_mark_recorder *recorder;
    rsi_mark_recorder *found = __atomic_load_n(&recorder, __ATOMIC_RELAXED);
    if (__builtin_expect(!found, 0)) {
        union {
            void *object;
            rsi_mark_recorder *function;
        } symbol = { 0 };
        if (rouse_mark_record)
            symbol.function = rouse_mark_record;
        else
            symbol.object = dlsym(RTLD_DEFAULT, "rouse_run_mark_record");
        found = symbol.object ? symbol.function : rsi_mark_nowhere;
        /* Relaxed: every thread finds the same, and the function is constant. */
        __atomic_store_n(&recorder, found, __ATOMIC_RELAXED);
    }
    return found;
}

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wgnu-zero-variadic-macro-arguments" /* of <sys/sdt.h> */
#endif

static inline void rouse_mark(const char *name, uint64_t id)
{
#ifdef DTRACE_PROBE2
    DTRACE_PROBE2(rouse, mark, name, id);
#endif
    rsi_mark_find()(name, id, 0);
}

static inline void rouse_mark_end(const char *name, uint64_t id)
{
#ifdef DTRACE_PROBE2
    DTRACE_PROBE2(rouse, mark_end, name, id);
#endif
    rsi_mark_find()(name, id, 1);
}

#ifdef __clang__
#pragma clang diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

#endif
