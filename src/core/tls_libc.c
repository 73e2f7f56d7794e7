/* SPDX-License-Identifier: MIT */
/*
 * tls_libc.c - calls of libc that librouse.so replaces, because they depend on which kernel thread makes them.
 *
 * 1. Locks that know their owner by kernel thread, or by its thread block: recursive and error-checking mutexes, and
 * those of flockfile. All user threads of a worker that share its storage are one owner to them. Such a lock lets two
 * threads in, returns EDEADLK to a thread that does not hold it, or EPERM to one that does. Where this has happened, it
 * is reported, once for a process. `holders` says which user thread took a lock first, and as which owner. An entry is
 * written after its lock was taken and taken back before it is released, so the lock orders them. A thread that is let
 * in finds the entry of the thread that is inside. pthread_cond_wait releases and takes a mutex within libc, which
 * leaves entries that are too old: they have another owner than the mutex, since the worker of a thread that waits
 * there has no other threads meanwhile. Two locks may need the same entry: the earlier one is then forgotten, and not
 * judged. A forked child begins without entries: libc's owners are those of the parent. Other mutexes only pay for the
 * look at their kind.
 *
 * 2. pthread_getattr_np of the calling thread, if it has storage of its own: libc would give the stack of its lender.
 *
 * 3. Attributes for priority-inheriting mutexes: the kernel finds the owner of such a mutex by the id in it, which
 * libc takes from the thread block. That of a borrowed block is the lender's, which does not run the thread.
 *
 * 4. setuid and its like: tls_setxid.c.
 *
 * The names are exported without a version, so that references to any version of libc's find them. They are looked up
 * in the next library, which may be a sanitizer's. The static library does not contain this file: in a program without
 * a dynamic loader there is no next library to ask.
 */
#include "core/core.h"
#include "core/tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

#define HOLDERS 1024
#define ID_BITS 30
#define LOCK_SHIFT 3
#define LOCK_BITS 10
_Static_assert(1 << LOCK_BITS == HOLDERS,
               "the entry is the part of the address that the word lacks");

/* By address of the lock. */
static struct {
    uint64_t
        word; /* the rest of the lock's address, and the id of the user thread that took it first. 0: none */
    uint64_t owner; /* as the lock has it */
} holders[HOLDERS];
static uint32_t is_used; /* an entry was written */

/* libc's lock of a FILE. */
struct file_lock {
    int futex, count;
    void *owner;
};

RSI_INLINE unsigned place_of(const void *lock)
{
    return (unsigned)((uintptr_t)lock >> LOCK_SHIFT) % HOLDERS;
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

static void note(unsigned place, uint64_t word, uint64_t owner)
{
    if (!rsi_load_relaxed(&is_used)) /* all workers read this line, so that few may write it */
        rsi_store_relaxed(&is_used, 1u);
    rsi_store_relaxed(&holders[place].word, UINT64_C(0));
    rsi_store_release(&holders[place].owner, owner); /* pairs with seen_at */
    rsi_store_release(&holders[place].word, word);   /* pairs with seen_at */
}

/* The word of an entry that has this owner, and otherwise 0. */
static uint64_t seen_at(unsigned place, uint64_t owner)
{
    uint64_t word = rsi_load_acquire(&holders[place].word);
    bool is_same = rsi_load_acquire(&holders[place].owner) == owner;
    return is_same && rsi_load_relaxed(&holders[place].word) == word ? word : 0;
}

/* The caller has tried to take a lock. is_first: it holds the lock now, and nobody held it before. */
static void taken(const struct rouse_thread *self, const char *what, const void *lock,
                  uint64_t owner, bool is_first, const char *happened, const void *site)
{
    unsigned place = place_of(lock);
    uint64_t mine = word_of(lock, rsi_load_relaxed(&self->id));
    if (is_first) {
        note(place, mine, owner);
        return;
    }
    uint64_t seen = seen_at(place, owner);
    if (seen >> ID_BITS == mine >> ID_BITS && seen != mine)
        report(what, lock, happened, site);
}

/* Before the caller releases a lock. Returns whether it took the lock first. */
static bool gives(const struct rouse_thread *self, const void *lock, bool is_last)
{
    uint64_t mine = word_of(lock, rsi_load_relaxed(&self->id));
    uint64_t seen = mine;
    uint64_t *word = &holders[place_of(lock)].word;
    return is_last ? rsi_cas_relaxed(word, &seen, UINT64_C(0)) : rsi_load_relaxed(word) == mine;
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
    uint64_t owner = (uint64_t)m->__data.__owner;
    if (self && error == 0)
        taken(self, name_of(m), m, owner, is_first, "two threads hold", site);
    else if (self && error == EDEADLK)
        taken(self, name_of(m), m, owner, false, "wrong EDEADLK from", site);
    return error;
}

/* dlsym gives an object's address, and pointers to functions are of another kind. */
static void *next_of(void **known, const char *name)
{
    void *found = rsi_load_relaxed(known);
    if (rsi_likely(found != NULL))
        return found;
    found = dlsym(RTLD_NEXT, name);
    if (!found)
        rsi_fatal("libc has no %s", name);
    rsi_store_relaxed(known, found);
    return found;
}

#define CALL(name) \
    static void *known_##name; \
    static __typeof__(&name) next_##name(void) \
    { \
        __typeof__(&name) next; \
        void *found = next_of(&known_##name, #name); \
        memcpy(&next, &found, sizeof next); \
        return next; \
    }

CALL(pthread_mutex_lock)
CALL(pthread_mutex_trylock)
CALL(pthread_mutex_timedlock)
CALL(pthread_mutex_clocklock)
CALL(pthread_mutex_unlock)
CALL(flockfile)
CALL(ftrylockfile)
CALL(funlockfile)
CALL(pthread_getattr_np)
CALL(pthread_mutexattr_setprotocol)

static void on_child(void)
{
    if (rsi_load_relaxed(&is_used))
        memset(holders, 0, sizeof holders);
}

/* dlsym takes the loader's lock, which another thread may hold while it waits for this one. So the locks come first. */
__attribute__((constructor)) static void find_first(void)
{
    next_pthread_mutex_lock();
    next_pthread_mutex_trylock();
    next_pthread_mutex_timedlock();
    next_pthread_mutex_clocklock();
    next_pthread_mutex_unlock();
    next_flockfile();
    next_ftrylockfile();
    next_funlockfile();
    if (pthread_atfork(NULL, NULL, on_child) != 0)
        rsi_fatal("no memory for the fork handlers");
}

EXPORTED int pthread_mutex_lock(pthread_mutex_t *m)
{
    if (has_owner(m))
        return tried(m, next_pthread_mutex_lock()(m), RSI_CALLER());
    return next_pthread_mutex_lock()(m);
}

EXPORTED int pthread_mutex_trylock(pthread_mutex_t *m)
{
    if (has_owner(m))
        return tried(m, next_pthread_mutex_trylock()(m), RSI_CALLER());
    return next_pthread_mutex_trylock()(m);
}

EXPORTED int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *until)
{
    int error = next_pthread_mutex_timedlock()(m, until);
    return has_owner(m) ? tried(m, error, RSI_CALLER()) : error;
}

EXPORTED int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock,
                                     const struct timespec *until)
{
    int error = next_pthread_mutex_clocklock()(m, clock, until);
    return has_owner(m) ? tried(m, error, RSI_CALLER()) : error;
}

EXPORTED int pthread_mutex_unlock(pthread_mutex_t *m)
{
    const struct rouse_thread *self = has_owner(m) ? sharer() : NULL;
    if (!self)
        return next_pthread_mutex_unlock()(m);
    bool is_last = kind_of(m) == PTHREAD_MUTEX_ERRORCHECK || m->__data.__count == 1;
    bool is_holder = gives(self, m, is_last);
    int error = next_pthread_mutex_unlock()(m);
    if (error == EPERM && is_holder)
        report(name_of(m), m, "wrong EPERM from", RSI_CALLER());
    return error;
}

static void file_tried(FILE *file, const void *site)
{
    const struct rouse_thread *self = sharer();
    const struct file_lock *lock = file->_lock;
    if (self)
        taken(self, "FILE's lock", lock, (uintptr_t)lock->owner, lock->count == 1,
              "two threads hold", site);
}

EXPORTED void flockfile(FILE *file)
{
    next_flockfile()(file);
    file_tried(file, RSI_CALLER());
}

EXPORTED int ftrylockfile(FILE *file)
{
    int error = next_ftrylockfile()(file);
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
    next_funlockfile()(file);
}

EXPORTED int pthread_getattr_np(pthread_t thread, pthread_attr_t *attr)
{
    const struct rouse_thread *self = rsi_exec_self()->current;
    bool is_own = self && self->waiter.origin == RSI_ORIGIN_USER && self->tls &&
                  self->tls->is_entered && pthread_equal(thread, pthread_self());
    int error = next_pthread_getattr_np()(thread, attr);
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
    return protocol == PTHREAD_PRIO_NONE || rsi_tls_mutexes_claim(RSI_MUTEXES_WITH_PRIORITY)
               ? next_pthread_mutexattr_setprotocol()(attr, protocol)
               : ENOTSUP;
}

/* The call is made on the worker's own block, so that libc reaches the lender of the caller as well. */
#define OF_PROCESS(name, parameters, arguments) \
    CALL(name) \
    EXPORTED int name parameters \
    { \
        __typeof__(&name) next = next_##name(); \
        const struct rouse_thread *self = rsi_tls_native_begin(); \
        int result = next arguments; \
        rsi_tls_native_end(self); \
        return result; \
    }

OF_PROCESS(setuid, (uid_t user), (user))
OF_PROCESS(seteuid, (uid_t user), (user))
OF_PROCESS(setreuid, (uid_t real, uid_t effective), (real, effective))
OF_PROCESS(setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))
OF_PROCESS(setgid, (gid_t group), (group))
OF_PROCESS(setegid, (gid_t group), (group))
OF_PROCESS(setregid, (gid_t real, gid_t effective), (real, effective))
OF_PROCESS(setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))
OF_PROCESS(setgroups, (size_t count, const gid_t *groups), (count, groups))
OF_PROCESS(initgroups, (const char *user, gid_t group), (user, group))
