/* SPDX-License-Identifier: MIT */
/*
 * fdtable.h - what is known of each descriptor number, and who waits for it.
 *
 * Problem: every I/O call needs its descriptor's entry, from every worker at once.
 * Two levels: a fixed array of chunks, each of 1,024 entries of one cache line. A chunk is made at the
 * first use of one of its numbers, published by a release store and never freed, so that a look-up is
 * two loads: no lock, no shared line written, and growth moves nothing.
 * Rejected: one array that grows (every user must be stopped when it moves); a hash of descriptors (a
 * lock or a chain on the way of each call).
 *
 * An entry outlives its descriptor. Its generation tells the users of a number apart: whoever keeps an
 * entry over anything that may wait keeps the generation too and compares it: under the guard before it
 * sleeps, and without before each system call, so that a thread that was woken just before a close does
 * not meet the number's next descriptor. (Between that look and the kernel's a close and a reuse go
 * unseen, as POSIX has it for every call that races with a close. Rejected: counting the calls under way,
 * which writes a shared line at each.)
 *
 * Closing: mark CLOSING and count the generation, wake everyone, close(2), then unmark, unless the number
 * has already been given out again. While it is marked nobody adopts the number: a thread that began to
 * wait after the others were woken and before close(2) would sleep for ever, for close(2) tells nobody.
 *
 * Lock order: arming < guard < everything inside core/park. epoll_ctl is called under arming, never
 * under guard; nothing waits under guard.
 *
 * What cannot be seen: a descriptor closed by close() instead of rouse_close, its number reused for
 * something of the same sort. A socket in the place of another sort is noticed by ENOTSOCK, an entry
 * believed to be in the epoll set by ENOENT, and accept and connect start their number afresh.
 */
#ifndef RSI_IO_FDTABLE_H
#define RSI_IO_FDTABLE_H

#include "core/park.h"

#include <sys/epoll.h>

#define RSI_FD_CHUNK 1024u
#define RSI_FD_CHUNKS 16384u /* 16,777,216 descriptors; the array is 128 KiB of untouched zeros */

enum rsi_fd_type {
    RSI_FD_UNKNOWN,  /* not used yet, or closed */
    RSI_FD_CLOSING,  /* see above */
    RSI_FD_TCP,      /* a short read or write proves that the queue is empty or full */
    RSI_FD_STREAM,   /* other stream and seqpacket sockets */
    RSI_FD_DATAGRAM, /* other sockets */
    RSI_FD_POLLABLE, /* pipes, eventfds and the like: O_NONBLOCK is set */
    RSI_FD_FILE,     /* regular files, directories, block devices: served by helper threads */
    RSI_FD_SLOW,     /* terminals, devices, standard streams: helper threads, when ready */
};

/* flags */
#define RSI_FD_IS_UNIX 1u
#define RSI_FD_IS_NONBLOCK 2u  /* a socket on which O_NONBLOCK is known to be set */
#define RSI_FD_IS_ORDERED 4u   /* a listener with a queue of its own: listener.h */
#define RSI_FD_IS_MULTISHOT 8u /* a ring receives for it: multishot.h */
#define RSI_FD_IS_BULK 16u     /* and shall not again */

/* sides; also bits of armed: 1 << side */
enum rsi_fd_side_index { RSI_FD_READ, RSI_FD_WRITE };

/* sticky: seen once, true until the descriptor is closed */
#define RSI_FD_READ_ENDED 1u  /* EPOLLRDHUP, EPOLLHUP or EPOLLERR */
#define RSI_FD_WRITE_ENDED 2u /* EPOLLHUP or EPOLLERR */
#define RSI_FD_URGENT 4u      /* EPOLLPRI: reads stop at the urgent mark, short or not */

/* What an event does to a waiter whose events it has. */
enum rsi_fd_waiter_kind {
    RSI_FD_TAKER, /* a call that takes what there is: an event wakes one taker, or all if it is the last */
    RSI_FD_EXCLUSIVE, /* a taker too, but never more than one: what is left is passed on */
    RSI_FD_POLLER,    /* wakes it, as POSIX has it of poll */
    RSI_FD_MEMBER,    /* of a set, listed as long as it is one: is told to the set */
    RSI_FD_WATCHER, /* nothing: its thread watches the descriptor itself, and is told of a close only */
};

/* One thread that waits for one side, while it is listed. All under the entry's guard. */
struct rsi_fd_waiter {
    struct rsi_fd_waiter *next, *prev;
    union {
        struct rouse_thread *thread;
        struct rsi_set_member *member;
    };
    uint64_t ticket;
    uint32_t events; /* in epoll's terms */
    int32_t result;  /* what an event makes of the wait */
    uint8_t kind;    /* enum rsi_fd_waiter_kind */
    bool is_listed;
};
#define RSI_FD_ANY_EVENT UINT32_MAX

/* The events of a side: what the poller is asked for, and what it counts. END_EVENTS come unasked. */
#define RSI_FD_READ_EVENTS \
    ((uint32_t)(EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLRDBAND | EPOLLMSG))
#define RSI_FD_WRITE_EVENTS ((uint32_t)(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND))
#define RSI_FD_END_EVENTS ((uint32_t)(EPOLLERR | EPOLLHUP))

/*
 * edges: how many events the poller has counted. spent: the value of edges that a call had read before
 * it found the queue empty (or full).
 *
 * Invariant, from which follows that no wake-up is lost: if the side is armed and some call that began
 * after edge number n was counted found nothing, then whatever comes after that call raises another
 * event, and edges becomes n + 1 or more. So a thread that has found nothing may sleep if, and only if,
 * edges is still what it read before its call; that is compared under the guard, where edges is
 * counted. spent == edges says the same to the next caller, which then need not try: what another has
 * found holds for all. An old value stored late over a newer one only costs a call that finds nothing.
 */
struct rsi_fd_side {
    uint32_t edges;                     /* written under the guard */
    uint32_t spent;                     /* written by anyone, relaxed */
    struct rsi_fd_waiter *first, *last; /* oldest first; under the guard */
};

struct rsi_fd {
    uint32_t guard;
    uint32_t arming; /* held over epoll_ctl, so that the set and armed agree */
    uint32_t generation;
    uint8_t type;   /* written under the guard; release, see rsi_fdtable_find */
    uint8_t flags;  /* written under the guard */
    uint8_t armed;  /* written under arming and the guard */
    uint8_t sticky; /* written under the guard */
    struct rsi_fd_side sides[2];
};
_Static_assert(sizeof(struct rsi_fd) == RSI_CACHE_LINE, "an entry is one cache line");

/* An entry and the generation of it that is meant. */
struct rsi_fd_ref {
    struct rsi_fd *entry;
    uint32_t generation;
};

/* Threads claimed under a guard, to be published after it is released. */
struct rsi_fd_batch {
    struct rouse_thread *first, *last;
};

extern struct rsi_fd *rsi_fdtable_chunks[RSI_FD_CHUNKS];

/* The entry of fd, or NULL if its chunk does not exist yet or fd is no descriptor number. */
RSI_INLINE struct rsi_fd *rsi_fdtable_peek(int fd)
{
    unsigned number = (unsigned)fd;
    if (rsi_unlikely(number >= RSI_FD_CHUNKS * RSI_FD_CHUNK))
        return NULL;
    /* Acquire: pairs with the release that publishes the chunk. */
    struct rsi_fd *chunk = rsi_load_acquire(&rsi_fdtable_chunks[number / RSI_FD_CHUNK]);
    return rsi_likely(chunk != NULL) ? &chunk[number % RSI_FD_CHUNK] : NULL;
}

/* Make the entry and learn what fd is. Returns its type or -errno. */
int rsi_fdtable_adopt(int fd, struct rsi_fd_ref *ref);

/* The entry of fd, adopted if need be. Returns its type or -errno. */
RSI_INLINE int rsi_fdtable_find(int fd, struct rsi_fd_ref *ref)
{
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    if (rsi_likely(entry != NULL)) {
        ref->entry = entry;
        /* Acquire: pairs with rsi_fdtable_forget, which clears type before it counts generation. */
        ref->generation = rsi_load_acquire(&entry->generation);
        int type = rsi_load_acquire(&entry->type);
        if (rsi_likely(type > RSI_FD_CLOSING))
            return type;
    }
    return rsi_fdtable_adopt(fd, ref);
}

/*
 * The entry of fd and its generation, without learning what fd is: for those who only wait for it. Returns 0
 * or -errno: -EBADF if fd is no descriptor, as far as is seen.
 */
int rsi_fdtable_ref(int fd, struct rsi_fd_ref *ref);

/* The kernel has just given out fd, which is of this type: whatever was known of the number is void. */
int rsi_fdtable_fresh(int fd, uint8_t type, uint8_t flags);

/* The number's descriptor has gone, unseen. Those that wait for it get -EBADF. */
void rsi_fdtable_forget(int fd, struct rsi_fd *entry, const void *site);

/*
 * The two halves of closing fd, before and after close(2): see above. begin: 0 or -errno; with -ENOMEM the
 * descriptor may be closed all the same, for without an entry nobody waits for it.
 */
int rsi_fdtable_close_begin(int fd, struct rsi_fd_ref *ref, const void *site);
void rsi_fdtable_close_end(const struct rsi_fd_ref *ref);

/*
 * fd, of a call that new descriptors begin with, may be another than the one that was known: drop what may
 * be wrong, unless somebody waits for it. Calls that are under way for the same descriptor go on.
 */
void rsi_fdtable_refresh(int fd);

/* Set O_NONBLOCK on a socket, once. Returns 0 or -errno. */
int rsi_fdtable_nonblock(int fd, const struct rsi_fd_ref *ref);

RSI_INLINE bool rsi_fdtable_is_socket(int type)
{
    return type >= RSI_FD_TCP && type <= RSI_FD_DATAGRAM;
}

/*
 * rsi_fdtable_find for a call that only sockets have. Returns a socket's type, -ENOTSOCK or another
 * -errno. What was known of a number that is a socket now, and was none, is dropped.
 */
int rsi_fdtable_find_socket_slow(int fd, struct rsi_fd_ref *ref, const void *site);

RSI_INLINE int rsi_fdtable_find_socket(int fd, struct rsi_fd_ref *ref, const void *site)
{
    int type = rsi_fdtable_find(fd, ref);
    if (rsi_likely(type < 0 || rsi_fdtable_is_socket(type)))
        return type;
    return rsi_fdtable_find_socket_slow(fd, ref, site);
}

/* Lists of waiters, under the guard. */
void rsi_fdtable_list_locked(struct rsi_fd_side *side, struct rsi_fd_waiter *waiter);
void rsi_fdtable_unlist_locked(struct rsi_fd_side *side, struct rsi_fd_waiter *waiter);

/*
 * End waits for side. Under the guard; the batch is published after its release.
 *
 * event: events have come. Each poller of one of them wakes, and the first taker that can still be had; all
 * takers if is_last, that is, if what has come is there for everyone.
 * pass_on: a taker that was woken leaves something: the next one wakes. Pollers were told by the event.
 * end: the descriptor is closed. Everyone's wait ends, with -EBADF.
 */
void rsi_fdtable_event_locked(struct rsi_fd_side *side, uint32_t events, bool is_last,
                              struct rsi_fd_batch *batch);
void rsi_fdtable_pass_on_locked(struct rsi_fd_side *side, uint32_t events, const void *site,
                                struct rsi_fd_batch *batch);
void rsi_fdtable_end_locked(struct rsi_fd_side *side, const void *site, struct rsi_fd_batch *batch);

/* End the wait of a thread that was unlisted. False: it timed out or was cancelled. */
RSI_INLINE bool rsi_fdtable_claim(struct rouse_thread *thread, uint64_t ticket, int result,
                                  const void *site, struct rsi_fd_batch *batch)
{
    if (!rsi_park_claim(thread, ticket, result, site))
        return false;
    if (batch->first == NULL)
        batch->first = thread;
    else
        rsi_waiter(batch->last)->next = thread;
    batch->last = thread;
    return true;
}

RSI_INLINE void rsi_fdtable_publish(struct rsi_fd_batch *batch)
{
    if (batch->first == NULL)
        return;
    rsi_waiter(batch->last)->next = NULL;
    rsi_park_publish_list(batch->first);
}

/* Whether a user thread waits for any descriptor. Walks the table: for idle workers. */
bool rsi_fdtable_has_waiters(void);

/* How often this process is a fork's child. */
extern uint32_t rsi_fdtable_forks;

/* After fork, in the child: nothing is in the child's epoll set, and nobody waits. */
void rsi_fdtable_child(void);

#endif
