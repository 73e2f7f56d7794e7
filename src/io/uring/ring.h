/* SPDX-License-Identifier: MIT */
/*
 * ring.h - a worker's io_uring: entries out, completions in.
 *
 * Each worker has a ring of its own, made by its kernel thread at its first operation, with
 * IORING_SETUP_SINGLE_ISSUER and IORING_SETUP_DEFER_TASKRUN: only that kernel thread submits and reaps, so
 * that nothing here needs a lock, and completions are made while it asks for them and never interrupt it.
 * The price: what a worker has submitted, or has yet to submit, waits as long as that worker is stuck in a
 * thread that neither blocks nor yields. Measured beside it: a ring that any worker may reap (without
 * either flag) costs 6 % more CPU a request.
 *
 * Entries are collected and submitted once a scheduling round: when the worker has nothing left to run,
 * when it looks at events though it is busy (core/worker.c), or when the queue of entries is full.
 *
 * A completion's user_data is an address with one of the tags below in its low bits.
 */
#ifndef RSI_IO_URING_RING_H
#define RSI_IO_URING_RING_H

#include "io/fdtable.h"
#include "os/os.h"

#include <errno.h>
#include <linux/io_uring.h>

#define RSI_RING_TAGS 7u /* mask */
enum rsi_ring_tag {
    RSI_RING_INFLIGHT,        /* struct rsi_inflight: one operation, inflight.c */
    RSI_RING_MULTISHOT,       /* struct rsi_multishot: a receive that goes on, multishot.c */
    RSI_RING_WAKE,            /* the worker was woken by its wake word */
    RSI_RING_SET,             /* the epoll set has events */
    RSI_RING_CANCEL,          /* nothing to be done */
    RSI_RING_INFLIGHT_CANCEL, /* of a struct rsi_inflight: a request to stop it has been answered */
    RSI_RING_MULTISHOT_CANCEL, /* as above, of a struct rsi_multishot */
};

/* Buffers that receives take from; see multishot.c. */
#define RSI_RING_OP_FUTEX_WAIT 51 /* younger than the headers of some systems */

#define RSI_RING_BUFFER_BYTES 2048u
#define RSI_RING_BUFFERS 4096u /* at most; a power of two */
#define RSI_RING_BUFFERS_FIRST 64u

/* A buffer that holds data, or is on its way back. */
struct rsi_ring_buffer {
    uint16_t next; /* number + 1 of the next one in its list, 0: none */
    uint16_t bytes;
};

struct rsi_ring {
    struct io_uring_sqe *entries;
    uint32_t *sq_head, *sq_tail, *sq_flags; /* shared with the kernel */
    uint32_t *cq_head, *cq_tail;
    struct io_uring_cqe *completions;
    uint32_t sq_mask, cq_mask;
    uint32_t tail;  /* entries made so far; the kernel knows of them up to *sq_tail */
    uint32_t index; /* the worker's */
    int fd;
    int enter_fd;            /* fd, or, if that is -1, its registered number */
    uint32_t enter_flags;    /* of the latter */
    uint32_t inflight_count; /* operations under way; read by any thread */
    uint32_t phase;          /* of a submission; read by closers */
    bool is_short;           /* a receive of this round found no buffer */
    bool has_wake_wait;      /* the kernel waits for the worker's wake word */
    bool has_set_wait;       /* and for the epoll set */
    void *memory, *entries_memory;
    size_t memory_bytes, entries_bytes;

    /* Buffers: given to the kernel by the worker; given back by any. */
    struct io_uring_buf_ring *buffer_ring;
    char *buffer_memory;
    uint16_t buffer_tail;
    uint32_t buffer_count; /* made so far */
    struct rsi_ring_buffer buffers[RSI_RING_BUFFERS];
    _Alignas(RSI_CACHE_LINE) uint32_t returned; /* number + 1 of the first of a list */
};

/* The enabled ring of each worker, by index. Written by its worker (release), read by any (acquire). */
extern struct rsi_ring *rsi_rings[RSI_WORKERS_MAX];

/* The calling worker's ring if it is already enabled. NULL otherwise. */
RSI_INLINE struct rsi_ring *rsi_ring_mine(void)
{
    int index = rouse_worker_index();
    return index < 0 ? NULL : rsi_load_relaxed(&rsi_rings[index]);
}

/* The calling worker's ring; NULL on other kernel threads and spares, where io_uring is not the backend or was refused. */
struct rsi_ring *rsi_ring_self(void);

/*
 * Make a ring for each worker that there is. Returns NULL, or why there is none. A ring takes a descriptor number
 * until its worker enables it: the numbers are taken here, before the first wait of the program, and not when it
 * has just closed one somewhere and still uses it elsewhere.
 */
const char *rsi_ring_make_all(void);

/* The same for one more, in the call by which the program gets it. Spares come unasked, and have none. */
void rsi_ring_make(unsigned index);

/* Have each worker enable its ring. */
void rsi_ring_enable_all(void);

/* Whether the calling worker's ring tells when the epoll set has events. */
bool rsi_ring_watches_set(void);

/* Whether an operation of any ring is under way that its thread waits for. */
bool rsi_ring_has_inflight(void);

/*
 * An entry to fill in, zeroed but for its user_data; submitted with the round. NULL when the kernel takes no
 * more: do it another way.
 */
struct io_uring_sqe *rsi_ring_entry(struct rsi_ring *ring, const void *object,
                                    enum rsi_ring_tag tag);

/*
 * Ask that what was submitted with this object and tag be stopped: its own completion tells how it ended. The
 * kernel answers to answer_tag, or to nobody if that is RSI_RING_CANCEL. Returns false as above.
 */
bool rsi_ring_cancel(struct rsi_ring *ring, const void *object, enum rsi_ring_tag tag,
                     enum rsi_ring_tag answer_tag);

/*
 * Whether the request may have been overlooked, so that it must be made again unless the operation has ended. The
 * kernel says ENOENT not only of what is over: an operation that found nothing, and whose descriptor is ready by
 * the time it would wait, is taken up once more, and is neither waiting nor running until then. (A send to a full
 * socket that poll calls writable was seen to go round so 128 times.) It says EALREADY of what one of its own
 * workers runs, which is interrupted, but may wait again.
 */
RSI_INLINE bool rsi_ring_overlooked(int answer)
{
    return answer == -ENOENT || answer == -EALREADY;
}

/*
 * After what closes a descriptor has been marked, and before it is closed: return when no entry that the ring's
 * worker looked at before the mark waits for the kernel to look its descriptor up. Blocks for a moment.
 */
void rsi_ring_await_taken(const struct rsi_ring *ring);

/* Whether entries wait to be submitted. */
RSI_INLINE bool rsi_ring_has_entries(const struct rsi_ring *ring)
{
    return ring->tail != rsi_load_relaxed(ring->sq_head);
}

/*
 * Submit and take what has completed, without waiting; completed threads become runnable. is_due: also
 * when nothing is to be submitted. On a worker.
 */
void rsi_ring_turn(bool is_due);

/*
 * Sleep until something completes, *wake_word is 1 and was woken by futex, or deadline_ns. watches_set: also
 * until the epoll set has events; they are then handled. False: the worker has no ring.
 */
bool rsi_ring_sleep(uint32_t *wake_word, uint64_t deadline_ns, bool watches_set);

/* In a child after fork: the rings are the parent's. */
void rsi_ring_child(void);

/* The buffer with this number. */
RSI_INLINE char *rsi_ring_buffer(const struct rsi_ring *ring, unsigned number)
{
    return ring->buffer_memory + (size_t)number * RSI_RING_BUFFER_BYTES;
}

/* Make more buffers, if there may be more; and take back what was returned. */
void rsi_ring_buffers_more(struct rsi_ring *ring);

/* Give a list of buffers of ring back, from any thread. */
void rsi_ring_buffers_return(struct rsi_ring *ring, unsigned first);

#endif
