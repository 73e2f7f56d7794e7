/* SPDX-License-Identifier: MIT */
/*
 * stdio_lock.c - flockfile, and the calls of stdio that take a stream's lock: printf, fwrite, fflush, fgets and their
 * kin.
 *
 * libc takes the lock inside each call, by an instruction of its own. So we look at the lock's word before the call,
 * and wait for it ourselves, by flockfile, if another thread has it. The lock is recursive. The hold of a lock is the
 * whole call. The word's layout is libc's own: if it differs, ftrylockfile says so, and waits are missing, no more.
 *
 * Most streams are used by one thread. So holds are recorded only once a thread has waited for some stream.
 *
 * Calls for one character (putc, getc) are left alone, since our work would take longer than theirs. So are programs
 * with one thread, and streams without locking (__fsetlocking).
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "process/real.h"
#include "record/hold.h"
#include "record/reader_site.h"
#include "record/wait.h"
#include "record/waiters.h"

#include <stdarg.h>
#include <sys/single_threaded.h>

#define WITHOUT_LOCK 0x8000 /* libc's _IO_USER_LOCK */

/* libc's lock of a stream. */
struct stream_lock {
    int32_t word, count;
    const void *owner; /* as pthread_self returns it */
};

/* A call that takes the lock. */
struct entry {
    FILE *stream;
    const void *site;
    bool is_kept; /* the lock is ours, beside the call's own use of it */
};

static const struct stream_lock *lock_of(const FILE *stream)
{
    return (const struct stream_lock *)stream->_lock;
}

static bool is_ours(const struct stream_lock *lock)
{
    return rsi_load_relaxed(&lock->owner) == (const void *)pthread_self();
}

/* Some thread has waited for a stream. */
static bool is_any_contended;

/* Another thread has the lock: record the wait for it. */
static RSI_NOINLINE RSI_COLD void contend(struct entry *entry)
{
    struct rpi_contest contest = { .key = { (uintptr_t)entry->stream, 0,
                                            (uintptr_t)rpi_reader_site_of(entry->stream),
                                            ROUSE_WAIT_MUTEX, 0 },
                                   .since = rsi_tsc() };
    struct rpi_wait wait;
    entry->is_kept = true;
    rsi_store_relaxed(&is_any_contended, true);
    if (rpi_real.ftrylockfile(entry->stream) == 0)
        return;
    if (!rpi_wait_begin(&wait, ROUSE_WAIT_MUTEX, entry->stream, entry->site)) {
        rpi_real.flockfile(entry->stream);
        return;
    }
    rpi_real.flockfile(entry->stream);
    (void)rpi_wait_end(&wait, ROUSE_VERDICT_USEFUL, &contest);
}

/* False: nothing is to be recorded of the call. */
static bool enter(struct entry *entry, FILE *stream, const void *site)
{
    rpi_real_find();
    if (__libc_single_threaded || !stream || !lock_of(stream) || stream->_flags & WITHOUT_LOCK)
        return false;
    const struct stream_lock *lock = lock_of(stream);
    bool is_held = rsi_load_relaxed(&lock->word) != 0;
    if (is_held && is_ours(lock))
        return false;
    struct rpi_thread *self = rpi_self;
    *entry = (struct entry){ stream, site, false };
    if (rsi_unlikely(is_held))
        contend(entry);
    else if (rsi_load_relaxed(&is_any_contended) && (self || (self = rpi_thread_enter())))
        rpi_hold_acquired(self, &self->held[rpi_thread_held_at(stream)], stream, ROUSE_WAIT_MUTEX,
                          site);
    rpi_reader_site_put(stream, site);
    return true;
}

static void leave(const struct entry *entry)
{
    struct rpi_hold_ended ended = { 0 };
    if (rsi_unlikely(rpi_hold_is_timed(rpi_self)))
        ended = rpi_hold_end(rpi_self, entry->stream);
    rpi_waiters_note_wake(entry->stream, RPI_WAKES_ALL_ANEW, entry->site);
    if (entry->is_kept)
        rpi_real.funlockfile(entry->stream);
    if (rsi_unlikely(ended.row))
        rpi_hold_count(&ended);
}

static void leave_cancelled(void *entry)
{
    leave(entry);
}

/* Return what the call returns, which takes the lock of the stream. */
#define RETURN_LOCKED(stream, type, call) \
    do { \
        struct entry entry; \
        type result_; \
        if (!enter(&entry, (stream), RSI_CALLER())) \
            return (call); \
        pthread_cleanup_push(leave_cancelled, &entry); \
        result_ = (call); \
        pthread_cleanup_pop(0); \
        leave(&entry); \
        return result_; \
    } while (0)

RPI_EXPORT RSI_NOINLINE void flockfile(FILE *stream)
{
    struct entry entry;
    if (!enter(&entry, stream, RSI_CALLER()) || !entry.is_kept)
        rpi_real.flockfile(stream);
}

RPI_EXPORT RSI_NOINLINE void funlockfile(FILE *stream)
{
    const struct stream_lock *lock = lock_of(stream);
    rpi_real_find();
    if (!__libc_single_threaded && lock && is_ours(lock) && rsi_load_relaxed(&lock->count) == 1) {
        const struct entry entry = { stream, RSI_CALLER(), true };
        leave(&entry);
    } else {
        rpi_real.funlockfile(stream);
    }
}

RPI_EXPORT RSI_NOINLINE size_t fwrite(const void *data, size_t bytes, size_t count, FILE *stream)
{
    RETURN_LOCKED(stream, size_t, rpi_real.fwrite(data, bytes, count, stream));
}

RPI_EXPORT RSI_NOINLINE int fputs(const char *text, FILE *stream)
{
    RETURN_LOCKED(stream, int, rpi_real.fputs(text, stream));
}

RPI_EXPORT RSI_NOINLINE int puts(const char *text)
{
    RETURN_LOCKED(stdout, int, rpi_real.puts(text));
}

RPI_EXPORT RSI_NOINLINE int fflush(FILE *stream)
{
    RETURN_LOCKED(stream, int, rpi_real.fflush(stream));
}

RPI_EXPORT RSI_NOINLINE size_t fread(void *data, size_t bytes, size_t count, FILE *stream)
{
    RETURN_LOCKED(stream, size_t, rpi_real.fread(data, bytes, count, stream));
}

RPI_EXPORT RSI_NOINLINE char *fgets(char *text, int bytes, FILE *stream)
{
    RETURN_LOCKED(stream, char *, rpi_real.fgets(text, bytes, stream));
}

RPI_EXPORT RSI_NOINLINE ssize_t getdelim(char **text, size_t *bytes, int end, FILE *stream)
{
    RETURN_LOCKED(stream, ssize_t, rpi_real.getdelim(text, bytes, end, stream));
}

/* The name that getline has where it is inlined. */
RPI_EXPORT RSI_NOINLINE ssize_t __getdelim(char **text, size_t *bytes, int end, FILE *stream)
{
    RETURN_LOCKED(stream, ssize_t, rpi_real.getdelim(text, bytes, end, stream));
}

/* stdio.h has inline definitions of getline and vprintf, so ours have other names in C. */
ssize_t own_getline(char **text, size_t *bytes, FILE *stream) __asm__("getline");
RPI_EXPORT RSI_NOINLINE ssize_t own_getline(char **text, size_t *bytes, FILE *stream)
{
    RETURN_LOCKED(stream, ssize_t, rpi_real.getline(text, bytes, stream));
}

static int print(FILE *stream, const char *format, va_list list, const void *site)
{
    struct entry entry;
    int result;
    if (!enter(&entry, stream, site))
        return rpi_real.vfprintf(stream, format, list);
    pthread_cleanup_push(leave_cancelled, &entry);
    result = rpi_real.vfprintf(stream, format, list);
    pthread_cleanup_pop(0);
    leave(&entry);
    return result;
}

RPI_EXPORT RSI_NOINLINE int vfprintf(FILE *stream, const char *format, va_list list)
{
    return print(stream, format, list, RSI_CALLER());
}

int own_vprintf(const char *format, va_list list) __asm__("vprintf");
RPI_EXPORT RSI_NOINLINE int own_vprintf(const char *format, va_list list)
{
    return print(stdout, format, list, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int fprintf(FILE *stream, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int result = print(stream, format, list, RSI_CALLER());
    va_end(list);
    return result;
}

RPI_EXPORT RSI_NOINLINE int printf(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int result = print(stdout, format, list, RSI_CALLER());
    va_end(list);
    return result;
}

/* The calls of programs that are compiled with _FORTIFY_SOURCE. flag: how much libc checks. */

static int print_checked(FILE *stream, int flag, const char *format, va_list list, const void *site)
{
    struct entry entry;
    int result;
    if (!enter(&entry, stream, site))
        return rpi_real.__vfprintf_chk(stream, flag, format, list);
    pthread_cleanup_push(leave_cancelled, &entry);
    result = rpi_real.__vfprintf_chk(stream, flag, format, list);
    pthread_cleanup_pop(0);
    leave(&entry);
    return result;
}

RPI_EXPORT RSI_NOINLINE int __vfprintf_chk(FILE *stream, int flag, const char *format, va_list list)
{
    return print_checked(stream, flag, format, list, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int __vprintf_chk(int flag, const char *format, va_list list)
{
    return print_checked(stdout, flag, format, list, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int __fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int result = print_checked(stream, flag, format, list, RSI_CALLER());
    va_end(list);
    return result;
}

RPI_EXPORT RSI_NOINLINE int __printf_chk(int flag, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int result = print_checked(stdout, flag, format, list, RSI_CALLER());
    va_end(list);
    return result;
}

RPI_EXPORT RSI_NOINLINE char *__fgets_chk(char *text, size_t room, int bytes, FILE *stream)
{
    RETURN_LOCKED(stream, char *, rpi_real.__fgets_chk(text, room, bytes, stream));
}

RPI_EXPORT RSI_NOINLINE size_t __fread_chk(void *data, size_t room, size_t bytes, size_t count,
                                           FILE *stream)
{
    RETURN_LOCKED(stream, size_t, rpi_real.__fread_chk(data, room, bytes, count, stream));
}
