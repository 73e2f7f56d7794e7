/* SPDX-License-Identifier: MIT */
/*
 * ring.h - a worker's io_uring: submission entries out, completions in.
 *
 * Each worker has its own ring, enabled by the worker's kernel thread. Only that kernel thread submits
 * (IORING_SETUP_SINGLE_ISSUER). The kernel runs the ring's work on it whenever it enters the kernel for any reason, at
 * the latest at the next timer tick (IORING_SETUP_COOP_TASKRUN), and posts the completions then.
 *
 * Rescue. Normally the worker also reaps. If it runs a thread that neither blocks nor yields, or sits in a system call,
 * another kernel thread reaps its completions instead (core/watch.c, or core/spares.c where no worker is idle), and
 * ends the waits whose entries were not submitted: their threads repeat the operation on another worker. So a
 * descriptor does not wait longer than the watcher's period and one tick. The ring has a lock for that, biased to the
 * worker (os/biased.h). The worker is inside while it fills in entries, submits, reaps, and sleeps on its ring. The
 * rescuer gives up if the worker is inside: then it is not stuck. While the rescuer is inside it may fill in entries,
 * but never submits. Not rescued: operations that the kernel waits for only with the worker's help, such as a second
 * cancel, and a worker in uninterruptible sleep. A receive may take data until the request to stop it is submitted, so
 * a close waits for that (multishot.h). Rejected: IORING_SETUP_DEFER_TASKRUN, with which only the worker can make
 * completions appear.
 *
 * Entries are collected and submitted once per scheduling round: when the worker has nothing left to run, when it
 * looks for events although it is busy (core/worker.c), or when the submission queue is full.
 *
 * A completion's user_data is an address with one of the tags below in its low bits.
 */
#ifndef RSI_IO_URING_RING_H
#define RSI_IO_URING_RING_H

#include "io/fdtable.h"
#include "os/biased.h"

#include <errno.h>
#include <linux/io_uring.h>

#define RSI_RING_TAGS 7u /* mask */
enum rsi_ring_tag {
    RSI_RING_INFLIGHT,  /* struct rsi_inflight: one operation (inflight.c) */
    RSI_RING_MULTISHOT, /* struct rsi_multishot: a multishot receive or accept (multishot.c) */
    RSI_RING_WAKE,      /* the worker's wake word was woken */
    RSI_RING_SET,       /* the epoll set has events */
    RSI_RING_CANCEL,    /* ignored */
    RSI_RING_INFLIGHT_CANCEL,  /* struct rsi_inflight: the answer to a request to stop it */
    RSI_RING_MULTISHOT_CANCEL, /* struct rsi_multishot: the same */
};

#define RSI_RING_OP_FUTEX_WAIT 51 /* newer than the headers of some systems */

/* Buffers that the kernel receives into (multishot.c). */
#define RSI_RING_BUFFER_BYTES 2048u
#define RSI_RING_BUFFERS 16384u /* at most; a power of two */
#define RSI_RING_BUFFERS_FIRST 64u

/* A buffer that holds data, or is being returned to the kernel. */
struct rsi_ring_buffer {
    uint16_t next; /* next in its list, as number + 1; 0 if none */
    uint16_t bytes;
};

struct rsi_ring {
    struct io_uring_sqe *entries;
    uint32_t *sq_head, *sq_tail, *sq_flags; /* shared with the kernel */
    uint32_t *cq_head, *cq_tail;
    struct io_uring_cqe *completions;
    uint32_t sq_mask, cq_mask;
    uint32_t
        tail; /* entries filled so far. The kernel sees them up to *sq_tail. The watcher peeks */
    uint32_t index; /* the worker's */
    int fd;
    int enter_fd;         /* fd, or the registered ring number if fd is -1 */
    uint32_t enter_flags; /* flags for enter_fd */
    uint32_t begun,
        ended;         /* operations whose threads wait began, and have ended. Read by any thread */
    uint32_t phase;    /* enum phase of the submission. Read by threads that close */
    uint32_t owner_in; /* the worker is inside; see above */
    bool is_short;     /* a receive found no free buffer in this round */
    bool has_wake_wait; /* a futex wait on the worker's wake word is pending */
    bool has_set_wait;  /* a poll of the epoll set is pending. The worker peeks */
    void *memory, *entries_memory;
    size_t memory_bytes, entries_bytes;

    /* Buffers: handed to the kernel by the worker, returned by any thread. */
    struct io_uring_buf_ring *buffer_ring;
    char *buffer_memory;
    uint16_t buffer_tail;
    uint32_t buffer_count; /* created so far */
    struct rsi_ring_buffer buffers[RSI_RING_BUFFERS];
    _Alignas(RSI_CACHE_LINE)
        uint32_t returned; /* list of buffers returned by other threads: number + 1 of the first */
    uint32_t rescuer_in;   /* another kernel thread is inside; see above */
};

/* The enabled ring of each worker, by index. Written by its worker (release), read by any (acquire). */
extern struct rsi_ring *rsi_rings[RSI_WORKERS_MAX];

/* The calling worker's ring if it is already enabled. NULL otherwise. */
RSI_INLINE struct rsi_ring *rsi_ring_mine(void)
{
    int index = rouse_worker_index();
    return index < 0 ? NULL : rsi_load_relaxed(&rsi_rings[index]);
}

/*
 * The calling worker's ring, enabled if necessary. NULL on other kernel threads and on spares, and where io_uring
 * is not the backend or was refused.
 */
struct rsi_ring *rsi_ring_self(void);

/*
 * Make a ring for each existing worker. Returns NULL, or why there is none. A ring uses a descriptor number until
 * its worker enables it. The numbers are taken here, before the program's first wait, so that a ring never takes a
 * number which the program has just closed in one place and still uses in another.
 */
const char *rsi_ring_make_all(void);

/* The same for one more worker, in the call by which the program adds it. Spares have no ring. */
void rsi_ring_make(unsigned index);

/* Ask each worker to enable its ring. */
void rsi_ring_enable_all(void);

/* Whether the calling worker's ring polls the epoll set. */
bool rsi_ring_watches_set(void);

/* Whether any ring has an operation that a thread waits for. */
bool rsi_ring_has_inflight(void);

/*
 * A submission entry to fill in, zeroed except for its user_data. It is submitted with the round. NULL if the queue
 * is full and the kernel takes no more: the caller must do without the ring. Inside the ring's lock.
 */
struct io_uring_sqe *rsi_ring_entry(struct rsi_ring *ring, const void *object,
                                    enum rsi_ring_tag tag);

/*
 * Ask the kernel to stop the operation that was submitted with this object and tag. The operation's own completion
 * shows how it ended. The answer to this request arrives with answer_tag, or is suppressed if that is
 * RSI_RING_CANCEL. Returns false if there is no free entry.
 */
bool rsi_ring_cancel(struct rsi_ring *ring, const void *object, enum rsi_ring_tag tag,
                     enum rsi_ring_tag answer_tag);

/*
 * Whether the kernel may have overlooked the request to stop, so that it must be repeated unless the operation has
 * ended. ENOENT does not only mean that the operation is over: if it found nothing, but its descriptor was ready by
 * the time it would have waited, the kernel retries it, and until then it is neither waiting nor running. (A send to
 * a full socket that poll reports writable was seen to go round 128 times.) EALREADY means that a kernel worker runs
 * it: that worker is interrupted, but may wait again.
 */
RSI_INLINE bool rsi_ring_overlooked(int answer)
{
    return answer == -ENOENT || answer == -EALREADY;
}

/*
 * Called between marking a descriptor as closed and closing it. Returns when the kernel has looked up the
 * descriptors of all entries that the ring's worker checked before the mark. Spins for a moment.
 */
void rsi_ring_await_taken(const struct rsi_ring *ring);

/* Whether there are unsubmitted entries. */
RSI_INLINE bool rsi_ring_has_entries(const struct rsi_ring *ring)
{
    return rsi_load_relaxed(&ring->tail) != rsi_load_relaxed(ring->sq_head);
}

/*
 * End a round: submit the collected entries and reap completions, without waiting. Threads whose operations completed
 * become runnable. With is_due, enter the kernel even if there is nothing to submit. On a worker.
 */
void rsi_ring_round(bool is_due);

/*
 * Sleep until something completes, *wake_word is 1 and was woken by futex, or deadline_ns passes. With watches_set
 * also until the epoll set has events, which are then handled. Returns false if the worker has no ring.
 */
bool rsi_ring_sleep(uint32_t *wake_word, uint64_t deadline_ns, bool watches_set);

/* Enter and leave the ring's lock. On its worker, outside of it. */
RSI_INLINE void rsi_ring_enter(struct rsi_ring *ring)
{
    rsi_biased_enter(&ring->owner_in, &ring->rescuer_in);
}

RSI_INLINE void rsi_ring_leave(struct rsi_ring *ring)
{
    rsi_biased_leave(&ring->owner_in);
}

/* Whether the worker is inside its ring. A peek. */
bool rsi_ring_is_inside(unsigned worker_index);

/* Whether another worker has completions to reap or entries to submit, and is not inside its ring. A peek. */
bool rsi_ring_needs_rescue(unsigned worker_index);

/* By another kernel thread: reap the worker's ring, and take back its unsubmitted operations. False: it has no ring. */
bool rsi_ring_rescue(unsigned worker_index);

/* In a child after fork: drop the rings, which belong to the parent. */
void rsi_ring_child(void);

/* The buffer with this number. */
RSI_INLINE char *rsi_ring_buffer(const struct rsi_ring *ring, unsigned number)
{
    return ring->buffer_memory + (size_t)number * RSI_RING_BUFFER_BYTES;
}

/* Hand returned buffers to the kernel again, or, if there are none, create more up to the limit. */
void rsi_ring_buffers_more(struct rsi_ring *ring);

/* Return a list of the ring's buffers, from any thread. first is number + 1. */
void rsi_ring_buffers_return(struct rsi_ring *ring, unsigned first);

#endif
