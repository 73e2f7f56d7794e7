/* SPDX-License-Identifier: MIT */
/* fdtable.c - the entries of descriptors: make, fill in, forget. fdtable.h has the protocol. */
#include "io/accept/listener.h"
#include "io/accept/order.h"
#include "io/set.h"
#include "io/uring/multishot.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct rsi_fd *rsi_fdtable_chunks[RSI_FD_CHUNKS];
uint32_t rsi_fdtable_forks;

/* One past the highest chunk that exists; only grows. */
static uint32_t chunk_end;

/* A number that had a waiter at the last check, usually a server's listener. */
static uint32_t waiter_hint;

static int chunk_make(unsigned index)
{
    size_t bytes = RSI_FD_CHUNK * sizeof(struct rsi_fd);
    struct rsi_fd *chunk = rsi_map(bytes), *expected = NULL;
    if (chunk == NULL)
        return -ENOMEM;
    /* Before the chunk is stored, so that rsi_fdtable_child finds every used entry. */
    uint32_t end = rsi_load_relaxed(&chunk_end);
    while (end <= index && !rsi_cas_relaxed(&chunk_end, &end, index + 1)) {
    }
    /* Release: pairs with rsi_fdtable_peek's acquire. */
    if (!rsi_cas_release(&rsi_fdtable_chunks[index], &expected, chunk))
        rsi_unmap(chunk, bytes);
    return 0;
}

/* A number that is no descriptor gets no chunk. */
static int entry_make(int fd, struct rsi_fd **entry)
{
    *entry = rsi_fdtable_peek(fd);
    if (rsi_likely(*entry != NULL))
        return 0;
    long result = rsi_syscall2(SYS_fcntl, fd, F_GETFD);
    if (result >= 0)
        result = (unsigned)fd < RSI_FD_CHUNKS * RSI_FD_CHUNK
                     ? chunk_make((unsigned)fd / RSI_FD_CHUNK)
                     : -EMFILE;
    if (result >= 0)
        *entry = rsi_fdtable_peek(fd);
    return result < 0 ? (int)result : 0;
}

static int set_nonblock(int fd)
{
    long flags = rsi_syscall3(SYS_fcntl, fd, F_GETFL, 0);
    if (flags < 0 || (flags & O_NONBLOCK) != 0)
        return flags < 0 ? (int)flags : 0;
    return (int)rsi_syscall3(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
}

static int socket_option(int fd, int name)
{
    int value = 0;
    socklen_t length = sizeof value;
    long result = rsi_syscall5(SYS_getsockopt, fd, SOL_SOCKET, name, &value, &length);
    return result < 0 ? (int)result : value;
}

static int classify_socket(int fd, uint8_t *flags)
{
    int kind = socket_option(fd, SO_TYPE), domain = socket_option(fd, SO_DOMAIN);
    if (kind < 0 || domain < 0)
        return kind < 0 ? kind : domain;
    if (domain == AF_UNIX)
        *flags |= RSI_FD_IS_UNIX;
    if (kind != SOCK_STREAM)
        return kind == SOCK_SEQPACKET ? RSI_FD_STREAM : RSI_FD_DATAGRAM;
    bool is_inet = domain == AF_INET || domain == AF_INET6;
    return is_inet && socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP ? RSI_FD_TCP : RSI_FD_STREAM;
}

/* Determine the type of fd, and make pipes and similar types non-blocking. Returns the type or -errno. */
static int classify(int fd, uint8_t *flags)
{
    struct stat status = { 0 };
    long result = rsi_syscall2(SYS_fstat, fd, &status);
    if (result < 0)
        return (int)result;
    switch (status.st_mode & S_IFMT) {
    case S_IFSOCK: return classify_socket(fd, flags);
    case S_IFREG:
    case S_IFDIR:
    case S_IFBLK: return RSI_FD_FILE;
    case S_IFCHR: return RSI_FD_SLOW;
    default: break;
    }
    /* Other processes share the standard streams and do not expect O_NONBLOCK. */
    if (fd <= STDERR_FILENO)
        return RSI_FD_SLOW;
    result = set_nonblock(fd);
    return result < 0 ? (int)result : RSI_FD_POLLABLE;
}

static void reset_locked(struct rsi_fd *entry, uint8_t flags)
{
    rsi_store_relaxed(&entry->flags, flags);
    rsi_store_relaxed(&entry->sticky, 0);
    for (unsigned i = 0; i < 2; i++)
        rsi_store_relaxed(&entry->sides[i].spent, entry->sides[i].edges - 1);
}

int rsi_fdtable_ref(int fd, struct rsi_fd_ref *ref)
{
    int result = entry_make(fd, &ref->entry);
    while (result == 0) {
        ref->generation = rsi_load_acquire(&ref->entry->generation); /* as in rsi_fdtable_find */
        if (rsi_likely(rsi_load_acquire(&ref->entry->type) != RSI_FD_CLOSING))
            return 0;
        /* The close is under way: the number may be the old descriptor or the next. Wait until it is over. */
        result = (int)rsi_syscall2(SYS_fcntl, fd, F_GETFD);
        result = result < 0 ? result : 0;
        rouse_thread_yield();
    }
    return result;
}

/*
 * No close of this generation was under way when its type was read, and each close begins a new one. So if the
 * generation is still the same under the guard, no close happened meanwhile, and the type is that of the descriptor
 * that has the number now. (A type found during a close would be the old descriptor's, and stay for the next one.)
 */
int rsi_fdtable_adopt(int fd, struct rsi_fd_ref *ref)
{
    for (;;) {
        uint8_t flags = 0;
        int type = rsi_fdtable_ref(fd, ref);
        if (type == 0)
            type = classify(fd, &flags);
        if (type < 0)
            return type;
        rsi_test_delay();
        struct rsi_fd *entry = ref->entry;
        rsi_guard_lock(&entry->guard);
        bool is_same = entry->generation == ref->generation;
        if (is_same && entry->type == RSI_FD_UNKNOWN) {
            reset_locked(entry, flags);
            /* Release: a thread that sees the type sees the rest. Pairs with rsi_fdtable_find's acquire. */
            rsi_store_release(&entry->type, (uint8_t)type);
        }
        type = entry->type;
        rsi_guard_unlock(&entry->guard);
        if (is_same)
            return type;
    }
}

int rsi_fdtable_find_socket_slow(int fd, struct rsi_fd_ref *ref, const void *site)
{
    int kind = socket_option(fd, SO_TYPE);
    if (kind < 0)
        return kind;
    rsi_fdtable_forget(fd, ref->entry, site);
    int type = rsi_fdtable_adopt(fd, ref);
    return type < 0 || rsi_fdtable_is_socket(type) ? type : -ENOTSOCK;
}

/* A call that only polls does not determine the type, so an entry of unknown type may have waiters too. */
static bool is_awaited(const struct rsi_fd *entry)
{
    return rsi_load_relaxed(&entry->sides[RSI_FD_READ].first) != NULL ||
           rsi_load_relaxed(&entry->sides[RSI_FD_WRITE].first) != NULL;
}

int rsi_fdtable_fresh(int fd, uint8_t type, uint8_t flags)
{
    struct rsi_fd *entry;
    int result = entry_make(fd, &entry);
    if (result < 0)
        return result;
    if (rsi_load_relaxed(&entry->type) > RSI_FD_CLOSING || is_awaited(entry))
        rsi_fdtable_forget(fd, entry, NULL);
    rsi_guard_lock(&entry->guard);
    reset_locked(entry, flags);
    rsi_store_release(&entry->type, type); /* as in rsi_fdtable_adopt */
    rsi_guard_unlock(&entry->guard);
    return 0;
}

/* Begin a new generation and end all waits. Returns it. *receive: see rsi_multishot_drop. */
static uint32_t end_generation(int fd, struct rsi_fd *entry, uint8_t type, const void *site,
                               struct rsi_multishot **receive)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    rsi_guard_lock(&entry->arming); /* from here no epoll_ctl is made for the old generation */
    rsi_guard_lock(&entry->guard);
    uint32_t generation = entry->generation + 1;
    rsi_store_relaxed(&entry->type, type);
    rsi_store_release(&entry->generation, generation); /* after type: rsi_fdtable_find */
    rsi_store_relaxed(&entry->armed, 0);
    struct rsi_multishot *shot = rsi_multishot_detach_locked(entry, fd);
    for (unsigned i = 0; i < 2; i++)
        rsi_fdtable_end_locked(&entry->sides[i], site, &batch);
    if ((entry->flags & RSI_FD_IS_ORDERED) != 0)
        rsi_order_end_locked(entry, site, &batch);
    rsi_guard_unlock(&entry->guard);
    rsi_guard_unlock(&entry->arming);
    *receive = rsi_multishot_drop(shot);
    rsi_fdtable_publish(&batch);
    return generation;
}

void rsi_fdtable_forget(int fd, struct rsi_fd *entry, const void *site)
{
    struct rsi_multishot *receive;
    end_generation(fd, entry, RSI_FD_UNKNOWN, site, &receive);
    rsi_multishot_cancel(receive);
}

int rsi_fdtable_close_begin(int fd, struct rsi_fd_ref *ref, struct rsi_multishot **receive,
                            const void *site)
{
    int result = entry_make(fd, &ref->entry);
    *receive = NULL;
    if (result == 0)
        ref->generation = end_generation(fd, ref->entry, RSI_FD_CLOSING, site, receive);
    return result;
}

void rsi_fdtable_close_end(const struct rsi_fd_ref *ref)
{
    struct rsi_fd *entry = ref->entry;
    rsi_guard_lock(&entry->guard);
    /* Otherwise rsi_fdtable_fresh was faster, or the next descriptor is being closed too. */
    if (entry->generation == ref->generation && entry->type == RSI_FD_CLOSING)
        rsi_store_release(&entry->type, RSI_FD_UNKNOWN);
    rsi_guard_unlock(&entry->guard);
}

void rsi_fdtable_refresh(int fd)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    struct rsi_multishot *shot = NULL;
    if (entry == NULL)
        return;
    rsi_guard_lock(&entry->arming);
    rsi_guard_lock(&entry->guard);
    if (entry->type > RSI_FD_CLOSING && entry->sides[RSI_FD_READ].first == NULL &&
        entry->sides[RSI_FD_WRITE].first == NULL && !rsi_order_has_waiters_locked(entry)) {
        rsi_store_relaxed(&entry->armed, 0);
        rsi_store_release(&entry->type, RSI_FD_UNKNOWN);
        shot = rsi_multishot_detach_locked(entry, fd);
    }
    rsi_guard_unlock(&entry->guard);
    rsi_guard_unlock(&entry->arming);
    rsi_multishot_cancel(rsi_multishot_drop(shot));
}

int rsi_fdtable_nonblock(int fd, const struct rsi_fd_ref *ref)
{
    struct rsi_fd *entry = ref->entry;
    if ((rsi_load_relaxed(&entry->flags) & RSI_FD_IS_NONBLOCK) != 0)
        return 0;
    int result = set_nonblock(fd);
    if (result < 0)
        return result;
    rsi_guard_lock(&entry->guard);
    if (entry->generation == ref->generation)
        rsi_store_relaxed(&entry->flags, entry->flags | RSI_FD_IS_NONBLOCK);
    rsi_guard_unlock(&entry->guard);
    return 0;
}

void rsi_fdtable_list_locked(struct rsi_fd_side *side, struct rsi_fd_waiter *waiter)
{
    waiter->next = NULL;
    waiter->prev = side->last;
    waiter->is_listed = true;
    if (side->last != NULL)
        side->last->next = waiter;
    else
        rsi_store_relaxed(&side->first, waiter);
    side->last = waiter;
}

void rsi_fdtable_unlist_locked(struct rsi_fd_side *side, struct rsi_fd_waiter *waiter)
{
    if (!waiter->is_listed)
        return;
    waiter->is_listed = false;
    if (waiter->prev != NULL)
        waiter->prev->next = waiter->next;
    else
        rsi_store_relaxed(&side->first, waiter->next);
    if (waiter->next != NULL)
        waiter->next->prev = waiter->prev;
    else
        side->last = waiter->prev;
}

/* Returns false if it timed out or was cancelled: the event is then for the next waiter. */
static bool wake(struct rsi_fd_side *side, struct rsi_fd_waiter *waiter, int result,
                 const void *site, struct rsi_fd_batch *batch)
{
    rsi_fdtable_unlist_locked(side, waiter);
    return rsi_fdtable_claim(waiter->thread, waiter->ticket, result, site, batch);
}

void rsi_fdtable_event_locked(struct rsi_fd_side *side, uint32_t events, bool is_last,
                              struct rsi_fd_batch *batch)
{
    struct rsi_fd_waiter *waiter, *next;
    bool is_taken = false;
    for (waiter = side->first; waiter != NULL; waiter = next) {
        next = waiter->next;
        if ((waiter->events & events) == 0 || waiter->kind == RSI_FD_WATCHER)
            continue;
        if (waiter->kind == RSI_FD_MEMBER)
            rsi_set_event_locked(waiter, events, batch);
        else if (waiter->kind == RSI_FD_POLLER)
            wake(side, waiter, waiter->result, NULL, batch);
        else if (!is_taken || (is_last && waiter->kind == RSI_FD_TAKER))
            is_taken = wake(side, waiter, waiter->result, NULL, batch) || is_taken;
    }
}

void rsi_fdtable_pass_on_locked(struct rsi_fd_side *side, uint32_t events, const void *site,
                                struct rsi_fd_batch *batch)
{
    struct rsi_fd_waiter *waiter, *next;
    for (waiter = side->first; waiter != NULL; waiter = next) {
        next = waiter->next;
        if (waiter->kind <= RSI_FD_EXCLUSIVE && (waiter->events & events) != 0 &&
            wake(side, waiter, waiter->result, site, batch))
            return;
    }
}

void rsi_fdtable_end_locked(struct rsi_fd_side *side, const void *site, struct rsi_fd_batch *batch)
{
    while (side->first != NULL)
        if (side->first->kind == RSI_FD_MEMBER)
            rsi_set_close_locked(side->first);
        else
            wake(side, side->first, -EBADF, site, batch);
}

static bool entry_has_waiter(struct rsi_fd *entry)
{
    bool found = false;
    if ((rsi_load_relaxed(&entry->flags) & RSI_FD_IS_ORDERED) != 0) {
        rsi_guard_lock(&entry->guard);
        found = rsi_order_has_waiters_locked(entry);
        rsi_guard_unlock(&entry->guard);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (rsi_load_relaxed(&entry->sides[i].first) == NULL)
            continue;
        rsi_guard_lock(&entry->guard);
        for (struct rsi_fd_waiter *w = entry->sides[i].first; w != NULL && !found; w = w->next)
            found = w->kind == RSI_FD_MEMBER ? rsi_set_has_sleepers_locked(w)
                                             : w->kind != RSI_FD_WATCHER;
        rsi_guard_unlock(&entry->guard);
    }
    return found;
}

bool rsi_fdtable_has_waiters(void)
{
    struct rsi_fd *hinted = rsi_fdtable_peek((int)rsi_load_relaxed(&waiter_hint));
    if (hinted != NULL && entry_has_waiter(hinted))
        return true;
    uint32_t end = rsi_load_relaxed(&chunk_end) * RSI_FD_CHUNK;
    for (uint32_t fd = 0; fd < end; fd++) {
        struct rsi_fd *entry = rsi_fdtable_peek((int)fd);
        if (entry != NULL && entry_has_waiter(entry)) {
            rsi_store_relaxed(&waiter_hint, fd);
            return true;
        }
    }
    return false;
}

void rsi_fdtable_child(void)
{
    rsi_fdtable_forks++;
    rsi_set_child();
    uint32_t end = rsi_load_relaxed(&chunk_end) * RSI_FD_CHUNK;
    rsi_listener_reset();
    for (uint32_t fd = 0; fd < end; fd++) {
        struct rsi_fd *entry = rsi_fdtable_peek((int)fd);
        /* Only entries that were used: the pages of the others stay untouched. */
        if (entry == NULL || (entry->type | entry->guard | entry->arming | entry->generation) == 0)
            continue;
        rsi_store_relaxed(&entry->guard, 0);
        rsi_store_relaxed(&entry->arming, 0);
        rsi_store_relaxed(&entry->armed, 0);
        /* The parent's rings still receive for the parent. */
        rsi_store_relaxed(&entry->flags, entry->flags & (uint8_t)~RSI_FD_IS_MULTISHOT);
        /* fork copied the descriptors before the memory, so the entry may describe a later descriptor. */
        bool is_kept = (entry->flags & RSI_FD_IS_ORDERED) != 0 &&
                       rsi_listener_child(entry, (int)fd);
        if (!is_kept)
            rsi_store_relaxed(&entry->type, RSI_FD_UNKNOWN);
        for (unsigned i = 0; i < 2; i++) {
            entry->sides[i].last = NULL;
            rsi_store_relaxed(&entry->sides[i].first, NULL);
            rsi_store_relaxed(&entry->sides[i].spent, entry->sides[i].edges - 1);
        }
    }
}
