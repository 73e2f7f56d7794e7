/* SPDX-License-Identifier: MIT */
/*
 * dump_text.c - the description of a thread in a dump. Async-signal-safe: no locks, no malloc, no stdio.
 */
#include "obs/dump_text.h"

#include <rouse/sync.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WRITE_PATIENCE_S 5
#define OBJECT_NAME_BYTES 48

static void flush(struct rsi_dump_text *text)
{
    struct pollfd out = { .fd = text->fd, .events = POLLOUT };
    struct timespec patience = { .tv_sec = WRITE_PATIENCE_S };
    for (size_t at = 0; at < text->used && !text->is_broken;) {
        long written = rsi_syscall3(SYS_write, text->fd, text->bytes + at, text->used - at);
        if (written > 0)
            at += (size_t)written;
        else if (written == -EAGAIN)
            text->is_broken = rsi_syscall5(SYS_ppoll, &out, 1, &patience, NULL, 0) == 0;
        else
            text->is_broken = written != -EINTR;
    }
    text->used = 0;
}

void rsi_dump_text_add(struct rsi_dump_text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    text->line_used += rsi_format_list(text->line + text->line_used,
                                       sizeof text->line - text->line_used, format, list);
    va_end(list);
}

void rsi_dump_text_end_line(struct rsi_dump_text *text)
{
    if (sizeof text->bytes - text->used < text->line_used + 1)
        flush(text);
    memcpy(text->bytes + text->used, text->line, text->line_used);
    text->used += text->line_used;
    text->bytes[text->used++] = '\n';
    text->line_used = 0;
}

static void add_symbol(struct rsi_dump_text *text, const void *address)
{
    text->line_used += rsi_symbol_format(&text->symbols, address, text->line + text->line_used,
                                         sizeof text->line - text->line_used);
}

/* A return address is printed as the call before it. */
static void add_site(struct rsi_dump_text *text, const void *site)
{
    add_symbol(text, (const char *)site - 1);
}

static void add_seconds(struct rsi_dump_text *text, uint64_t ns)
{
    uint64_t ms = ns / 1000000;
    rsi_dump_text_add(text, "%lu.%u%u%u s", ms / 1000, (unsigned)(ms / 100 % 10),
                      (unsigned)(ms / 10 % 10), (unsigned)(ms % 10));
}

static void add_thread(struct rsi_dump_text *text, uint64_t id, const char *name)
{
    rsi_dump_text_add(text, name[0] ? "thread %lu \"%s\"" : "thread %lu", id, name);
}

/* A thread given by the address of its control block. Addresses read from objects may be wrong. */
static void add_block(struct rsi_dump_text *text, const void *address)
{
    const struct rouse_thread *t = rsi_block_at(address);
    char name[ROUSE_NAME_BYTES];
    if (!t) {
        rsi_dump_text_add(text, "an unknown thread");
        return;
    }
    rouse_thread_name(t, name, sizeof name);
    add_thread(text, rsi_load_relaxed(&t->id), name);
}

/*
 * Copy from memory that may be unmapped: a thread that waited there may have been woken and have freed it. The copy
 * goes through a pipe, since write(2) reports unreadable memory with EFAULT. (process_vm_readv would be one call,
 * but many containers forbid it.)
 */
static size_t copy(struct rsi_dump_text *text, void *to, const void *from, size_t bytes)
{
    if (!text->has_pipe && rsi_syscall2(SYS_pipe2, text->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return 0;
    text->has_pipe = true;
    long written = rsi_syscall3(SYS_write, text->pipe[1], from, bytes);
    long got = written > 0 ? rsi_syscall3(SYS_read, text->pipe[0], to, written) : 0;
    return got > 0 ? (size_t)got : 0;
}

/* Offsets in an awaited object of its name, its owner and the owner's acquisition site; 0: none. */
struct layout {
    uint8_t bytes, name, owner, acquire_site;
};

#define LAYOUT(type) sizeof(struct type), offsetof(struct type, name)

static const struct layout layouts[ROUSE_WAIT_KINDS] = {
    [ROUSE_WAIT_MUTEX] = { LAYOUT(rouse_mutex), offsetof(struct rouse_mutex, owner),
                           offsetof(struct rouse_mutex, acquire_site) },
    [ROUSE_WAIT_READ_LOCK] = { LAYOUT(rouse_rwlock), offsetof(struct rouse_rwlock, owner),
                               offsetof(struct rouse_rwlock, acquire_site) },
    [ROUSE_WAIT_WRITE_LOCK] = { LAYOUT(rouse_rwlock), offsetof(struct rouse_rwlock, owner),
                                offsetof(struct rouse_rwlock, acquire_site) },
    [ROUSE_WAIT_COND] = { LAYOUT(rouse_cond), 0, 0 },
    [ROUSE_WAIT_SEM] = { LAYOUT(rouse_sem), 0, 0 },
    [ROUSE_WAIT_BARRIER] = { LAYOUT(rouse_barrier), 0, 0 },
    [ROUSE_WAIT_ONCE] = { LAYOUT(rouse_once), offsetof(struct rouse_once, owner), 0 },
};

struct object {
    char name[OBJECT_NAME_BYTES];
    const void *owner, *acquire_site;
};

static const void *pointer_at(const char *object, uint8_t offset)
{
    const void *pointer = NULL;
    if (offset)
        memcpy(&pointer, object + offset, sizeof pointer);
    return pointer;
}

static void read_object(struct rsi_dump_text *text, const struct rsi_inspected *seen,
                        struct object *object)
{
    const struct layout *layout = &layouts[seen->kind < ROUSE_WAIT_KINDS ? seen->kind : 0];
    char bytes[UINT8_MAX];
    memset(object, 0, sizeof *object);
    if (layout->bytes == 0 || copy(text, bytes, seen->object, layout->bytes) != layout->bytes)
        return;
    object->owner = pointer_at(bytes, layout->owner);
    object->acquire_site = pointer_at(bytes, layout->acquire_site);
    const char *name = pointer_at(bytes, layout->name);
    /* Not beyond the end of the page, which may be the end of the mapping. */
    size_t most = RSI_PAGE - (uintptr_t)name % RSI_PAGE;
    if (name)
        copy(text, object->name, name, most < OBJECT_NAME_BYTES - 1 ? most : OBJECT_NAME_BYTES - 1);
    for (char *c = object->name; *c; c++)
        *c = (unsigned char)*c < 32 || *c == 127 ? '?' : *c;
}

static void add_object(struct rsi_dump_text *text, const struct rsi_inspected *seen,
                       const struct object *object)
{
    if (seen->kind == ROUSE_WAIT_SLEEP) {
        rsi_dump_text_add(text, "sleeping");
        return;
    }
    rsi_dump_text_add(text, "waiting for %s", rouse_wait_kind_name(seen->kind));
    switch (seen->kind) {
    case ROUSE_WAIT_JOIN:
        rsi_dump_text_add(text, " of ");
        add_block(text, seen->object);
        break;
    case ROUSE_WAIT_READ:
    case ROUSE_WAIT_WRITE:
    case ROUSE_WAIT_ACCEPT:
    case ROUSE_WAIT_CONNECT:
        rsi_dump_text_add(text, ", descriptor %d", (int)(intptr_t)seen->object);
        break;
    case ROUSE_WAIT_POLL:
        rsi_dump_text_add(text, " of %lu descriptors", (unsigned long)(uintptr_t)seen->object);
        break;
    case ROUSE_WAIT_BLOCKING:
        rsi_dump_text_add(text, " of ");
        add_symbol(text, seen->object);
        break;
    default:
        rsi_dump_text_add(text, object->name[0] ? " %p \"%s\"" : " %p", seen->object, object->name);
    }
}

static void add_times(struct rsi_dump_text *text, const struct rsi_inspected *seen)
{
    uint64_t ticks = text->now_tsc - seen->since_tsc, all_ticks = text->now_tsc - text->tsc_base;
    if (seen->since_tsc && text->now_tsc > seen->since_tsc && all_ticks) {
        unsigned __int128 ns = (unsigned __int128)ticks * (text->now_ns - text->ns_base);
        rsi_dump_text_add(text, ", for ");
        add_seconds(text, (uint64_t)(ns / all_ticks));
    }
    if (seen->deadline_ns == ROUSE_FOREVER)
        return;
    rsi_dump_text_add(text, ", at most ");
    add_seconds(text, seen->deadline_ns > text->now_ns ? seen->deadline_ns - text->now_ns : 0);
    rsi_dump_text_add(text, " more");
}

static void add_wait(struct rsi_dump_text *text, const struct rsi_inspected *seen)
{
    struct object object;
    read_object(text, seen, &object);
    add_object(text, seen, &object);
    if (seen->site) {
        rsi_dump_text_add(text, ", at ");
        add_site(text, seen->site);
    }
    add_times(text, seen);
    if (!object.owner)
        return;
    rsi_dump_text_end_line(text);
    rsi_dump_text_add(text, "    held by ");
    add_block(text, object.owner);
    if (object.acquire_site) {
        rsi_dump_text_add(text, ", acquired at ");
        add_site(text, object.acquire_site);
    }
}

static void add_state(struct rsi_dump_text *text, const struct rsi_inspected *seen)
{
    bool is_user = seen->origin == RSI_ORIGIN_USER;
    switch (seen->state) {
    case RSI_STATE_RUNNING:
        rsi_dump_text_add(text, is_user ? "running on worker %u" : "running", seen->worker);
        break;
    case RSI_STATE_RUNNABLE: rsi_dump_text_add(text, "runnable"); break;
    case RSI_STATE_NEW: rsi_dump_text_add(text, "runnable, not started"); break;
    case RSI_STATE_ENDED: rsi_dump_text_add(text, "ended, not joined"); break;
    case RSI_STATE_WAITING: add_wait(text, seen); break;
    }
}

static void add_frames(struct rsi_dump_text *text, const struct rsi_inspected *seen)
{
    const struct rsi_backtrace *backtrace = &seen->backtrace;
    for (size_t i = 0; i < backtrace->count; i++) {
        rsi_dump_text_add(text, "    #%zu ", i);
        add_symbol(text, backtrace->frames[i]);
        rsi_dump_text_end_line(text);
    }
    if (backtrace->unwound == RSI_UNWOUND_ALL)
        return;
    rsi_dump_text_add(text, backtrace->unwound == RSI_UNWOUND_FULL
                                ? "    ... and more"
                                : "    ... no unwind information");
    rsi_dump_text_end_line(text);
}

void rsi_dump_text_thread(struct rsi_dump_text *text, const struct rsi_inspected *seen)
{
    static const char *const origins[] = { "user", "kernel", "foreign" };
    add_thread(text, seen->id, seen->name);
    rsi_dump_text_add(text, seen->tid ? ", %s, tid %d: " : ", %s: ", origins[seen->origin],
                      seen->tid);
    add_state(text, seen);
    rsi_dump_text_end_line(text);
    if (seen->has_backtrace)
        add_frames(text, seen);
    else if (seen->state != RSI_STATE_ENDED) {
        rsi_dump_text_add(text, seen->is_silent ? "    no backtrace: the thread did not answer"
                                                : "    no backtrace: the thread runs on too fast");
        rsi_dump_text_end_line(text);
    }
}

void rsi_dump_text_end(struct rsi_dump_text *text)
{
    flush(text);
    rsi_symbols_end(&text->symbols);
    if (text->has_pipe) {
        rsi_syscall1(SYS_close, text->pipe[0]);
        rsi_syscall1(SYS_close, text->pipe[1]);
    }
}
