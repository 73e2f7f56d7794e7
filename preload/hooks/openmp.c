/* SPDX-License-Identifier: MIT */
/*
 * openmp.c - barriers and critical sections of OpenMP as gcc compiles them: GOMP_barrier, GOMP_critical_start and
 * others of libgomp.
 *
 * libgomp waits by instructions of its own, so that only its calls can be seen. No call of it tries without waiting.
 * - A barrier is a wait from its call to its return, which includes the time that libgomp spins. The thread that
 *   arrives last waits for no other and wakes the rest. Nothing identifies a team, so it is recognised by the number
 *   of waiting threads: teams at the same time, at the same depth of nesting, may be confused.
 * - A named critical section has a word of the program as its lock: 0 (free), 1 (held) or -1 (held, and some thread may
 *   sleep). It is read before the call. A lock that becomes held in between is waited for without a record.
 * - The lock of the unnamed section is private to libgomp. We count the threads that are in the section or wait for it.
 *
 * A thread may run tasks of the program inside a barrier. Waits in these are part of the wait for the barrier.
 *
 * A program may open libgomp for one of its libraries alone, and has then no GOMP_barrier that all can see. So
 * libgomp's function is looked up as the caller would find it. Rejected: one pointer for the process, since it may have
 * several libgomps.
 */
#include "obs/module.h"
#include "process/linkage.h"
#include "record/hold.h"
#include "record/reader_site.h"
#include "record/wait.h"
#include "record/waiters.h"

#include <dlfcn.h>

#define LEVELS 8u         /* depths of nested teams whose barriers have an object */
#define BELOW_BYTES 1024u /* HANDLER_BYTES of record/wait.c */
#define CALLERS 16u

typedef void plain_call(void);
typedef void named_call(void **);
typedef int figure_call(void);

plain_call GOMP_barrier, GOMP_critical_start, GOMP_critical_end;
named_call GOMP_critical_name_start, GOMP_critical_name_end;

/* Objects of waits. The command finds them by these names. */
RPI_EXPORT uint32_t rouse_preload_omp_critical, rouse_preload_omp_barrier[LEVELS];

static const char barrier[] = "GOMP_barrier", start[] = "GOMP_critical_start",
                  end[] = "GOMP_critical_end", name_start[] = "GOMP_critical_name_start",
                  name_end[] = "GOMP_critical_name_end";

/* libgomp's functions for a caller. NULL: it has none. */
struct gomp {
    const void *site;
    const char *name;
    void *real;
    figure_call *threads, *level;
};

/* The latest callers of this thread. */
static __thread struct gomp callers[CALLERS];

static const void *base_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* As dlsym, but never a function of this library. */
static void *find(void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    return found && base_of(found) == base_of(barrier) ? NULL : found;
}

static RSI_COLD void look_up(struct gomp *to, const char *name, const void *site)
{
    Dl_info caller, library;
    void *handle = NULL, *scope = RTLD_NEXT;
    *to = (struct gomp){ site, name, find(scope, name), NULL, NULL };
    if (!to->real && dladdr(site, &caller) &&
        (handle = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) != NULL) {
        scope = handle;
        to->real = find(scope, name);
        /* It stays, since callers keeps the addresses. A libgomp that has made threads cannot be unloaded anyway. */
        if (to->real && dladdr(to->real, &library))
            (void)dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
    if (to->real) {
        /* The types are those of libgomp's functions. */
        *(void **)&to->threads = find(scope, "omp_get_num_threads");
        *(void **)&to->level = find(scope, "omp_get_level");
    }
    if (handle)
        dlclose(handle);
    (void)dlerror(); /* the program's own dlerror must not report our attempts */
}

static const struct gomp *gomp_of(const char *name, const void *site)
{
    struct gomp *found = &callers[rsi_hash((uintptr_t)site, (uintptr_t)name, 0) % CALLERS];
    if (rsi_unlikely(found->site != site || found->name != name))
        look_up(found, name, site);
    return found;
}

/* name: as the call has it. NULL: the call has none. */
static void call_real(const struct gomp *gomp, void **name)
{
    if (gomp->real && name)
        ((named_call *)gomp->real)(name);
    else if (gomp->real)
        ((plain_call *)gomp->real)();
}

/* The command shows the names of our objects, and that the program uses libgomp. self is busy. */
static void note_modules(const struct rpi_thread *self, const struct gomp *gomp)
{
    rsi_module_note(self->writer, (uintptr_t)barrier);
    rsi_module_note(self->writer, (uintptr_t)gomp->real);
}

/*
 * So far below the record of the wait that a call from a task, or of syscall(2) from libgomp itself, is not taken for one
 * that follows a jump out of it. On AArch64 libgomp has no system call instructions of its own.
 */
static RSI_NOINLINE void wait_below(const struct gomp *gomp, void **name)
{
    char room[BELOW_BYTES];
    __asm__ volatile("" ::"r"(room) : "memory");
    call_real(gomp, name);
    __asm__ volatile("" ::"r"(room) : "memory");
}

RPI_EXPORT RSI_NOINLINE void GOMP_barrier(void)
{
    const struct gomp *gomp = gomp_of(barrier, RSI_CALLER());
    unsigned threads = gomp->threads ? (unsigned)gomp->threads() : 0;
    unsigned level = gomp->level ? (unsigned)gomp->level() : 0;
    const void *object = &rouse_preload_omp_barrier[level < LEVELS ? level : LEVELS - 1];
    struct rpi_wait wait;
    if (threads < 2 || !rpi_wait_begin(&wait, ROUSE_WAIT_BARRIER, object, gomp->site)) {
        call_real(gomp, NULL);
        return;
    }
    note_modules(wait.self, gomp);
    size_t count = level < LEVELS ? rpi_waiters_gather(wait.self, object, threads) : 0;
    if (count > 1)
        rsi_count(wait.self->writer->shared->herds[rsi_log2(count - 1, RSI_STORE_HERDS - 1)], 1);
    wait.is_queued = count == 0;
    wait_below(gomp, NULL);
    (void)rpi_wait_end(&wait, count ? ROUSE_VERDICT_NONE : ROUSE_VERDICT_USEFUL, NULL);
}

/* The section was held on arrival. */
static RSI_NOINLINE void contend(const struct gomp *gomp, void **name, const void *lock)
{
    struct rpi_contest contest = { .key = { (uintptr_t)lock, 0, (uintptr_t)rpi_reader_site_of(lock),
                                            ROUSE_WAIT_MUTEX, 0 },
                                   .since = rsi_tsc() };
    struct rpi_wait wait;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_MUTEX, lock, gomp->site)) {
        call_real(gomp, name);
        return;
    }
    note_modules(wait.self, gomp);
    wait_below(gomp, name);
    (void)rpi_wait_end(&wait, ROUSE_VERDICT_USEFUL, &contest);
}

static void enter(const struct gomp *gomp, void **name, const void *lock, bool is_held)
{
    struct rpi_thread *self = rpi_self;
    if (rsi_unlikely(is_held)) {
        contend(gomp, name, lock);
    } else {
        call_real(gomp, name);
        if (self || (self = rpi_thread_enter()))
            rpi_hold_acquired(self, &self->held[rpi_thread_held_at(lock)], lock, ROUSE_WAIT_MUTEX,
                              gomp->site);
    }
    rpi_reader_site_put(lock, gomp->site);
}

/*
 * The end of a section is often the last call of its function, which then returns into libgomp. So the place where the
 * thread entered the section stands for the end.
 */
static void leave(const struct gomp *gomp, void **name, const void *lock)
{
    const void *entry = rpi_reader_site_of(lock);
    struct rpi_hold_ended ended = { 0 };
    if (rsi_unlikely(rpi_hold_is_timed(rpi_self)))
        ended = rpi_hold_end(rpi_self, lock);
    rpi_waiters_note_wake(lock, RPI_WAKES_ALL_ANEW, entry ? entry : gomp->site);
    struct rpi_thread *self = rpi_self;
    bool is_begun = self && rpi_thread_begin(self); /* libgomp may call syscall(2) */
    call_real(gomp, name);
    if (is_begun)
        self->is_busy = false;
    if (rsi_unlikely(ended.row))
        rpi_hold_count(&ended);
}

/* Threads in the unnamed section, or waiting for it. */
static unsigned inside;

RPI_EXPORT RSI_NOINLINE void GOMP_critical_start(void)
{
    const struct gomp *gomp = gomp_of(start, RSI_CALLER());
    enter(gomp, NULL, &rouse_preload_omp_critical, rsi_fetch_add_relaxed(&inside, 1u) > 0);
}

RPI_EXPORT RSI_NOINLINE void GOMP_critical_end(void)
{
    const struct gomp *gomp = gomp_of(end, RSI_CALLER());
    (void)rsi_fetch_add_relaxed(&inside, -1u);
    leave(gomp, NULL, &rouse_preload_omp_critical);
}

/* Any other word belongs to a library that does not lock by it. */
static bool is_held(void *const *name)
{
    int32_t word = rsi_load_relaxed((const int32_t *)(const void *)name);
    return word == 1 || word == -1;
}

RPI_EXPORT RSI_NOINLINE void GOMP_critical_name_start(void **name)
{
    enter(gomp_of(name_start, RSI_CALLER()), name, name, is_held(name));
}

RPI_EXPORT RSI_NOINLINE void GOMP_critical_name_end(void **name)
{
    leave(gomp_of(name_end, RSI_CALLER()), name, name);
}
