/* SPDX-License-Identifier: MIT */
/*
 * tls_libc.c - calls of libc that librouse.so replaces, because they depend on which kernel thread makes them.
 *
 * 1. Locks that know their owner by kernel thread, or by its thread block: recursive and error-checking mutexes, and
 * those of flockfile. All user threads of a worker that share its storage are one owner to them. Such a lock lets two
 * threads in, returns EDEADLK to a thread that does not hold it, or EPERM to one that does. Where this has happened, it
 * is reported, once for a process. `holders` says which user thread took a lock first. An entry is written after its
 * lock was taken and taken back before it is released, so the lock orders them; and a thread that is let in finds the
 * entry of the thread that is inside. Two locks may need the same entry: the earlier one is then forgotten, and not
 * judged. Other mutexes only pay for the look at their kind.
 *
 * 2. pthread_getattr_np of the calling thread, if it has storage of its own: libc would give the stack of its lender.
 *
 * 3. Attributes for priority-inheriting mutexes: the kernel finds the owner of such a mutex by the id in it, which
 * libc takes from the thread block. That of a borrowed block is the lender's, which does not run the thread.
 *
 * The names are exported without a version, so that references to any version of libc's find them. The static library
 * does not contain this file: in a program without a dynamic loader there is no libc to ask.
 */
#include "core/core.h"
#include "core/tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif

/* Programs lock before any constructor has run, and dlsym may lock. These names only libc has. */
__asm__(".symver libc_mutex_lock, __pthread_mutex_lock@" FIRST);
__asm__(".symver libc_mutex_trylock, __pthread_mutex_trylock@" FIRST);
__asm__(".symver libc_mutex_unlock, __pthread_mutex_unlock@" FIRST);
int libc_mutex_lock(pthread_mutex_t *m);
int libc_mutex_trylock(pthread_mutex_t *m);
int libc_mutex_unlock(pthread_mutex_t *m);
void _IO_flockfile(FILE *file);
int _IO_ftrylockfile(FILE *file);
void _IO_funlockfile(FILE *file);

#define EXPORTED __attribute__((visibility("default")))

#define HOLDERS 1024
#define ID_BITS 30
#define LOCK_SHIFT 3
#define LOCK_BITS 10
_Static_assert(1 << LOCK_BITS == HOLDERS,
               "the entry is the part of the address that the word lacks");

/* By address of the lock: the rest of its address, and the id of the user thread that took it first. */
static uint64_t holders[HOLDERS];

/* libc's lock of a FILE. */
struct file_lock {
    int futex, count;
    void *owner;
};

RSI_INLINE uint64_t *holder_of(const void *lock)
{
    return &holders[((uintptr_t)lock >> LOCK_SHIFT) % HOLDERS];
}

RSI_INLINE uint64_t word_of(const void *lock, uint64_t thread)
{
    uint64_t rest = (uintptr_t)lock >> (LOCK_SHIFT + LOCK_BITS);
    return rest << ID_BITS | (thread & ((UINT64_C(1) << ID_BITS) - 1));
}

/* The user thread whose storage is its worker's, or NULL if the caller is none. */
static const struct rouse_thread *sharer(void)
{
    const struct rouse_thread *self = rsi_exec_self()->current;
    bool is_user = self && self->waiter.origin == RSI_ORIGIN_USER;
    return is_user && !(self->tls && self->tls->is_entered) ? self : NULL;
}

static void report(const char *what, const void *lock, const char *happened, const void *site)
{
    static uint32_t is_reported;
    Dl_info info = { 0 };
    uint32_t not_yet = 0;
    if (!rsi_cas_relaxed(&is_reported, &not_yet, 1u))
        return;
    if (!dladdr(site, &info) || !info.dli_fname)
        info.dli_fname = "?";
    const char *slash = strrchr(info.dli_fname, '/');
    rsi_report(
        "%s+0x%lx: %s the %s at %p. To it, all threads of a worker are one owner. Use own_tls or "
        "ROUSE_TLS=own, or rouse_mutex: see rouse(7). Only the first such case is reported",
        slash ? slash + 1 : info.dli_fname,
        (unsigned long)((uintptr_t)site - (uintptr_t)info.dli_fbase), happened, what, lock);
}

/* The caller has tried to take a lock. is_first: it holds the lock now, and nobody held it before. */
static void taken(const struct rouse_thread *self, const char *what, const void *lock,
                  bool is_first, const char *happened, const void *site)
{
    uint64_t mine = word_of(lock, rsi_load_relaxed(&self->id));
    uint64_t seen = rsi_load_relaxed(holder_of(lock));
    if (is_first)
        rsi_store_relaxed(holder_of(lock), mine);
    else if (seen >> ID_BITS == mine >> ID_BITS && seen != mine)
        report(what, lock, happened, site);
}

/* Before the caller releases a lock. Returns whether it took the lock first. */
static bool gives(const struct rouse_thread *self, const void *lock, bool is_last)
{
    uint64_t mine = word_of(lock, rsi_load_relaxed(&self->id));
    uint64_t seen = mine;
    return is_last ? rsi_cas_relaxed(holder_of(lock), &seen, 0)
                   : rsi_load_relaxed(holder_of(lock)) == mine;
}

RSI_INLINE int kind_of(const pthread_mutex_t *m)
{
    return m->__data.__kind & 3;
}

RSI_INLINE bool has_owner(const pthread_mutex_t *m)
{
    return rsi_unlikely(kind_of(m) == PTHREAD_MUTEX_RECURSIVE ||
                        kind_of(m) == PTHREAD_MUTEX_ERRORCHECK);
}

static const char *name_of(const pthread_mutex_t *m)
{
    return kind_of(m) == PTHREAD_MUTEX_RECURSIVE ? "recursive mutex" : "error-checking mutex";
}

static int tried(const pthread_mutex_t *m, int error, const void *site)
{
    const struct rouse_thread *self = sharer();
    bool is_first = kind_of(m) == PTHREAD_MUTEX_ERRORCHECK || m->__data.__count == 1;
    if (self && error == 0)
        taken(self, name_of(m), m, is_first, "two threads hold", site);
    else if (self && error == EDEADLK)
        taken(self, name_of(m), m, false, "wrong EDEADLK from", site);
    return error;
}

/* dlsym gives an object's address, and pointers to functions are of another kind. */
static void *next_of(void **known, const char *name)
{
    void *found = rsi_load_relaxed(known);
    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        if (!found)
            rsi_fatal("libc has no %s", name);
        rsi_store_relaxed(known, found);
    }
    return found;
}

#define NEXT(name) \
    static void *known; \
    __typeof__(&name) next; \
    void *found = next_of(&known, #name); \
    memcpy(&next, &found, sizeof next)

EXPORTED int pthread_mutex_lock(pthread_mutex_t *m)
{
    if (has_owner(m))
        return tried(m, libc_mutex_lock(m), RSI_CALLER());
    return libc_mutex_lock(m);
}

EXPORTED int pthread_mutex_trylock(pthread_mutex_t *m)
{
    if (has_owner(m))
        return tried(m, libc_mutex_trylock(m), RSI_CALLER());
    return libc_mutex_trylock(m);
}

EXPORTED int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *until)
{
    NEXT(pthread_mutex_timedlock);
    int error = next(m, until);
    return has_owner(m) ? tried(m, error, RSI_CALLER()) : error;
}

EXPORTED int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock,
                                     const struct timespec *until)
{
    NEXT(pthread_mutex_clocklock);
    int error = next(m, clock, until);
    return has_owner(m) ? tried(m, error, RSI_CALLER()) : error;
}

EXPORTED int pthread_mutex_unlock(pthread_mutex_t *m)
{
    const struct rouse_thread *self = has_owner(m) ? sharer() : NULL;
    if (!self)
        return libc_mutex_unlock(m);
    bool is_last = kind_of(m) == PTHREAD_MUTEX_ERRORCHECK || m->__data.__count == 1;
    bool is_holder = gives(self, m, is_last);
    int error = libc_mutex_unlock(m);
    if (error == EPERM && is_holder)
        report(name_of(m), m, "wrong EPERM from", RSI_CALLER());
    return error;
}

static void file_tried(FILE *file, const void *site)
{
    const struct rouse_thread *self = sharer();
    const struct file_lock *lock = file->_lock;
    if (self)
        taken(self, "FILE's lock", lock, lock->count == 1, "two threads hold", site);
}

EXPORTED void flockfile(FILE *file)
{
    _IO_flockfile(file);
    file_tried(file, RSI_CALLER());
}

EXPORTED int ftrylockfile(FILE *file)
{
    int error = _IO_ftrylockfile(file);
    if (error == 0)
        file_tried(file, RSI_CALLER());
    return error;
}

EXPORTED void funlockfile(FILE *file)
{
    const struct rouse_thread *self = sharer();
    const struct file_lock *lock = file->_lock;
    if (self)
        gives(self, lock, lock->count == 1);
    _IO_funlockfile(file);
}

EXPORTED int pthread_getattr_np(pthread_t thread, pthread_attr_t *attr)
{
    NEXT(pthread_getattr_np);
    const struct rouse_thread *self = rsi_exec_self()->current;
    bool is_own = self && self->waiter.origin == RSI_ORIGIN_USER && self->tls &&
                  self->tls->is_entered && pthread_equal(thread, pthread_self());
    int error = next(thread, attr);
    if (error || !is_own)
        return error;
    /* Attributes cannot express less than PTHREAD_STACK_MIN, of which the smallest stacks lack a few lines. */
    size_t bytes = (size_t)(self->stack.high - self->stack.low);
    size_t least = (size_t)PTHREAD_STACK_MIN;
    bytes = bytes < least ? least : bytes;
    return pthread_attr_setstack(attr, self->stack.high - bytes, bytes);
}

EXPORTED int pthread_mutexattr_setprotocol(pthread_mutexattr_t *attr, int protocol)
{
    NEXT(pthread_mutexattr_setprotocol);
    return protocol == PTHREAD_PRIO_NONE || rsi_tls_mutexes_claim(RSI_MUTEXES_WITH_PRIORITY)
               ? next(attr, protocol)
               : ENOTSUP;
}
