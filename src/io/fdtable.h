/* SPDX-License-Identifier: MIT */
/*
 * fdtable.h - the table of descriptor numbers: the state of each, and the threads that wait for it.
 *
 * Problem: every I/O call needs its descriptor's entry, from every worker at once.
 * The table has two levels: a fixed array of chunks, each of 1,024 entries of one cache line. A chunk is made at the
 * first use of one of its numbers, made visible by a release store and never freed, so a look-up is two loads: no
 * lock, no write to a shared line, and growth moves nothing.
 * Rejected: one array that grows (every user must stop when it moves); a hash of descriptors (a lock or a chain on the
 * path of each call).
 *
 * An entry outlives its descriptor. Its generation distinguishes the successive users of a number. Code that keeps an
 * entry across anything that may wait also keeps the generation, and compares it: under the guard before it sleeps, and
 * without the guard before each system call, so that a thread that was woken just before a close does not use the
 * number's next descriptor. (A close and a reuse between that check and the kernel's look-up are not detected. POSIX
 * has the same race for every call that overlaps a close. Rejected: counting the calls under way, which writes a shared
 * line per call.)
 *
 * Closing: mark CLOSING and count the generation, wake all waiters, close(2), then unmark, unless the number has
 * already been reused. While a number is marked no thread adopts it: a thread that began to wait after the others were
 * woken and before close(2) would sleep for ever, since close(2) wakes no waiter.
 *
 * Lock order: arming < guard < everything inside core/park. epoll_ctl is called under arming, never under guard.
 * Nothing waits under guard.
 *
 * Not detected: a descriptor closed by close() instead of rouse_close, whose number is reused for the same type. A
 * socket that replaces another type is detected by ENOTSOCK, an entry that is wrongly believed to be in the epoll set
 * by ENOENT, and accept and connect reset their number's entry.
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
#define RSI_FD_IS_BULK 16u     /* a ring must not receive for it any more */

/* sides; also bits of armed: 1 << side */
enum rsi_fd_side_index { RSI_FD_READ, RSI_FD_WRITE };

/* sticky: seen once, true until the descriptor is closed */
#define RSI_FD_READ_ENDED 1u  /* EPOLLRDHUP, EPOLLHUP or EPOLLERR */
#define RSI_FD_WRITE_ENDED 2u /* EPOLLHUP or EPOLLERR */
#define RSI_FD_URGENT 4u      /* EPOLLPRI: reads stop at the urgent mark, short or not */

/* The effect of an event on a waiter that requested it. */
enum rsi_fd_waiter_kind {
    /* A call that takes data: an event wakes one taker, or all takers if it is the last event. */
    RSI_FD_TAKER,
    /* An exclusive poll. Also a taker, but an event never wakes more than one: the thread passes on what is left. */
    RSI_FD_EXCLUSIVE,
    /* A poll: every event wakes it, as POSIX requires. */
    RSI_FD_POLLER,
    /* A member of a set, listed while it is one: an event is reported to the set. */
    RSI_FD_MEMBER,
    /* Its thread watches the descriptor itself: events are ignored, only a close wakes it. */
    RSI_FD_WATCHER,
};

/* A thread that waits for one side. Under the entry's guard while it is listed. */
struct rsi_fd_waiter {
    struct rsi_fd_waiter *next, *prev;
    union {
        struct rouse_thread *thread;
        struct rsi_set_member *member;
    };
    uint64_t ticket;
    uint32_t events; /* requested, as epoll bits */
    int32_t result;  /* the result of the wait if an event ends it */
    uint8_t kind;    /* enum rsi_fd_waiter_kind */
    bool is_listed;
};
#define RSI_FD_ANY_EVENT UINT32_MAX

/* The events of a side that the poller requests and counts. The kernel reports END_EVENTS unrequested. */
#define RSI_FD_READ_EVENTS \
    ((uint32_t)(EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLRDBAND | EPOLLMSG))
#define RSI_FD_WRITE_EVENTS ((uint32_t)(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND))
#define RSI_FD_END_EVENTS ((uint32_t)(EPOLLERR | EPOLLHUP))

/*
 * edges: the number of events that the poller has counted. spent: the value of edges that a call read before it found
 * the queue empty (or full).
 *
 * Invariant, by which no wake-up is lost: if the side is armed and a call that began after edge n was counted found
 * nothing, then anything that arrives after that call raises another event, and edges becomes n + 1 or more. So a
 * thread that found nothing may sleep if, and only if, edges is still the value that it read before its call. The
 * comparison is made under the guard, where edges is counted. spent == edges shows the next caller the same, so it
 * need not try: one thread's result holds for all. An old value stored late over a newer one only costs a call that
 * finds nothing.
 */
struct rsi_fd_side {
    uint32_t edges;                     /* written under the guard */
    uint32_t spent;                     /* written by anyone, relaxed */
    struct rsi_fd_waiter *first, *last; /* oldest first; under the guard */
};

struct rsi_fd {
    uint32_t guard;
    uint32_t arming; /* held during epoll_ctl, so that the epoll set and armed agree */
    uint32_t generation;
    uint8_t type;   /* written under the guard; release, see rsi_fdtable_find */
    uint8_t flags;  /* written under the guard */
    uint8_t armed;  /* written under arming and the guard */
    uint8_t sticky; /* written under the guard */
    struct rsi_fd_side sides[2];
};
_Static_assert(sizeof(struct rsi_fd) == RSI_CACHE_LINE, "an entry is one cache line");

/* An entry and the generation that the caller means. */
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
    /* Acquire: pairs with the release that stores the chunk. */
    struct rsi_fd *chunk = rsi_load_acquire(&rsi_fdtable_chunks[number / RSI_FD_CHUNK]);
    return rsi_likely(chunk != NULL) ? &chunk[number % RSI_FD_CHUNK] : NULL;
}

/* Make the entry and determine the type of fd. Returns the type or -errno. */
int rsi_fdtable_adopt(int fd, struct rsi_fd_ref *ref);

/* The entry of fd, adopted if necessary. Returns its type or -errno. */
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
 * The entry of fd and its generation, without determining the type: for calls that only wait for it. Returns 0 or
 * -errno. -EBADF is returned only if fd was seen to be invalid.
 */
int rsi_fdtable_ref(int fd, struct rsi_fd_ref *ref);

/* The kernel has just returned fd, of this type: reset the entry. */
int rsi_fdtable_fresh(int fd, uint8_t type, uint8_t flags);

/* The number's descriptor was closed unseen: reset the entry. Waiting threads get -EBADF. */
void rsi_fdtable_forget(int fd, struct rsi_fd *entry, const void *site);

/*
 * The two halves of closing fd, before and after close(2): see above. begin returns 0 or -errno. After -ENOMEM the
 * descriptor may be closed anyway, since without an entry no thread waits for it. *receive is for rsi_multishot_stop,
 * after end.
 */
struct rsi_multishot;
int rsi_fdtable_close_begin(int fd, struct rsi_fd_ref *ref, struct rsi_multishot **receive,
                            const void *site);
void rsi_fdtable_close_end(const struct rsi_fd_ref *ref);

/*
 * For a call that is usually the first on a descriptor: fd may have been closed unseen and reused. Reset the parts of
 * the entry that may be wrong, unless a thread waits for it. Calls under way for the same descriptor continue.
 */
void rsi_fdtable_refresh(int fd);

/* Set O_NONBLOCK on a socket, once. Returns 0 or -errno. */
int rsi_fdtable_nonblock(int fd, const struct rsi_fd_ref *ref);

RSI_INLINE bool rsi_fdtable_is_socket(int type)
{
    return type >= RSI_FD_TCP && type <= RSI_FD_DATAGRAM;
}

/*
 * rsi_fdtable_find for a call that only sockets support. Returns a socket's type, -ENOTSOCK or another -errno. If the
 * number was not a socket before and is one now, its entry is reset.
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
 * End waits for side. Called under the guard. The batch is published after the guard is released.
 *
 * event:   events have arrived. Wake each thread that polls for one of them, and the first taker that can still be
 * claimed, or all
 *          takers if is_last, that is, if the event concerns every thread (end of stream, error).
 * pass_on: a woken taker has left something. Wake the next taker. The event has already woken the threads that poll.
 * end:     the descriptor is closed. End every wait with -EBADF.
 */
void rsi_fdtable_event_locked(struct rsi_fd_side *side, uint32_t events, bool is_last,
                              struct rsi_fd_batch *batch);
void rsi_fdtable_pass_on_locked(struct rsi_fd_side *side, uint32_t events, const void *site,
                                struct rsi_fd_batch *batch);
void rsi_fdtable_end_locked(struct rsi_fd_side *side, const void *site, struct rsi_fd_batch *batch);

/* End the wait of an unlisted thread, which joins batch. Returns false if it timed out or was cancelled. */
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

/* Make all claimed threads runnable. No guard is held. */
RSI_INLINE void rsi_fdtable_publish(struct rsi_fd_batch *batch)
{
    if (batch->first == NULL)
        return;
    rsi_waiter(batch->last)->next = NULL;
    rsi_park_publish_list(batch->first);
}

/* Whether a user thread waits for any descriptor. Walks the table, for idle workers. */
bool rsi_fdtable_has_waiters(void);

/* How many forks lie between this process and the first one. */
extern uint32_t rsi_fdtable_forks;

/* After fork, in the child, whose epoll set is empty and where no thread waits. */
void rsi_fdtable_child(void);

#endif
